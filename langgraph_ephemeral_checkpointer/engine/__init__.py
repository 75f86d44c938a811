"""How plans are run, synchronously and asynchronously; nothing of what is planned."""
