"""Retention per message: stamps, exchanges, and what a purge changes; no storage."""
