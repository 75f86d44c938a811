"""Postgres rows by their place, which is cheaper than by their key."""

from __future__ import annotations


def at(table: str, places: str) -> str:
    """Write the condition that a row is at one of some places.

    A ctid tells a row only within a table, and each partition is one: where a table is partitioned,
    every partition has some thread's row at that place. So the partition is compared as well. In a
    plain table that condition ends with its first half, and the places are looked up once.

    Args:
        table: The table.
        places: A query that gives the ``tableoid`` of each row as ``part`` and its ``ctid`` as
            ``tid``.
    """
    return f"""
        ctid = ANY (ARRAY (SELECT tid FROM ({places}) AS places))
        AND (
            tableoid = '{table}'::regclass
            OR (tableoid, ctid) IN (SELECT part, tid FROM ({places}) AS places)
        )
    """
