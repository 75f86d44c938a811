"""A storage of one's own: a folder with a file for each thread. One folder, one registry call."""

from __future__ import annotations

from langgraph_ephemeral_checkpointer.strategies import register_strategy
from tests.storages.folder.saver import FolderSaver
from tests.storages.folder.strategy import FolderStrategy

register_strategy(FolderSaver, FolderStrategy)
