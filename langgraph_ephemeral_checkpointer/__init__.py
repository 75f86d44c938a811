"""Retention for LangGraph checkpointers."""
