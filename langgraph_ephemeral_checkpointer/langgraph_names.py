"""The names under which LangGraph stores things of its own, each written once.

They are imported where the oldest supported LangGraph has them in public; a test compares the
others with the LangGraph that is installed. The names of its tables, their columns and the
fields of a checkpoint (``channel_values`` and so on) are not here: SQL has to be readable.
"""

from __future__ import annotations

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, SCHEDULED, TASKS

START = "__start__"
"""The channel that holds the input of a run, and the node before the first."""

END = "__end__"
"""The node after the last, and a channel that holds the output in functional graphs."""

RETURN = "__return__"
"""The channel of writes with what a task returned, in functional graphs."""

ERROR_SOURCE_NODE = "__error_source_node__"
"""The channel of writes that name the node that failed."""

CONTROL_CHANNELS = (INTERRUPT, RESUME, ERROR, ERROR_SOURCE_NODE, SCHEDULED)
"""Channels of writes that are not the output of a task."""

ONE_STEP_CHANNELS = frozenset({START, TASKS})
"""Channels whose value lives for one step, so that they are never delta channels."""

ONE_STEP_PREFIXES = ("branch:", "start:", "join:")
"""How the names of further channels of that kind begin."""

RUN_CHANNELS = frozenset({START, END, TASKS, RETURN, INTERRUPT, RESUME})
"""What a run leaves beside the state: input, output, tasks, their results, questions, answers."""

ROOT = ""
"""The namespace of the graph itself, as opposed to its subgraphs."""

CALL_MARK = ":"
"""Stands in a namespace before the id of the task that called the subgraph."""

PARENTS = "parents"
"""Metadata: by namespace, the checkpoint whose step made this call of a subgraph."""

SOURCE = "source"
"""Metadata: what made the checkpoint: an input, the loop, an update or a fork."""

STEP = "step"
"""Metadata: the checkpoint's number in its run."""

DELTA_COUNTERS = "counters_since_delta_snapshot"
"""Metadata: how often each delta channel was updated since a snapshot of it was stored."""

DELTA_MARK = "delta_writes_versioned"
"""Metadata: LangGraph.js's mark of a thread that uses delta channels; it does not say which."""

SNAPSHOT_CODE = 7
"""The msgpack extension code of a delta channel's snapshot."""

SNAPSHOT_CLASS = "_DeltaSnapshot"
"""The name of its class, which the oldest LangGraph does not have."""

OVERWRITE = "__overwrite__"
"""The one key of a write, as a mapping, that replaces a channel's value instead of adding to it."""

REMOVE_ALL = "__remove_all__"
"""The id of the order to remove every message."""

__all__ = [
    "CALL_MARK",
    "CONTROL_CHANNELS",
    "DELTA_COUNTERS",
    "DELTA_MARK",
    "END",
    "ERROR",
    "ERROR_SOURCE_NODE",
    "INTERRUPT",
    "ONE_STEP_CHANNELS",
    "ONE_STEP_PREFIXES",
    "OVERWRITE",
    "PARENTS",
    "REMOVE_ALL",
    "RESUME",
    "RETURN",
    "ROOT",
    "RUN_CHANNELS",
    "SCHEDULED",
    "SNAPSHOT_CLASS",
    "SNAPSHOT_CODE",
    "SOURCE",
    "START",
    "STEP",
    "TASKS",
]
