"""InMemorySaver."""
