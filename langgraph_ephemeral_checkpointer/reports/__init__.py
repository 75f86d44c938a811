"""What is there and what a sweep would do; nothing is written."""
