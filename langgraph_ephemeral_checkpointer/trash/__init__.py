"""Undo: expired threads rest in a trash, and a run that still saves one brings it back.

``docs/undo.md`` gives the argument why no run can end with half a thread.
"""

from __future__ import annotations

from langgraph_ephemeral_checkpointer.trash.model import TrashedThread

__all__ = ["TrashedThread"]
