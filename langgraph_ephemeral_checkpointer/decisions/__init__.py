"""Decisions: pure functions, the clock passed in, no I/O."""
