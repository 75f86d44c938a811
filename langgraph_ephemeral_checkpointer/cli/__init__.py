"""The command line: ``python -m langgraph_ephemeral_checkpointer``.

``main`` decides exit codes, ``arguments`` reads the line, ``app`` has the commands,
``backends`` opens storage, ``output`` and ``console`` write.
"""
