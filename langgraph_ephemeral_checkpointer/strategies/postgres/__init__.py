"""PostgresSaver and AsyncPostgresSaver."""
