"""The trash of the SQLite savers as tables and triggers.

The triggers are stored in the file and run in whatever process saves, so they are plain SQL
that every SQLite build understands. No lock is needed: a file has one writer at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

TABLES = ("checkpoints", "writes")
KEPT = {"checkpoints": "lgec_trash_checkpoints", "writes": "lgec_trash_writes"}
_KEYS = {
    "checkpoints": ("thread_id", "checkpoint_ns", "checkpoint_id"),
    "writes": ("thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx"),
}

# AUTOINCREMENT: a generation that was emptied never comes back as another thread's number.
LISTS = {
    "lgec_trash": (
        "CREATE TABLE lgec_trash (generation INTEGER PRIMARY KEY AUTOINCREMENT, "
        "thread_id TEXT NOT NULL, reason TEXT NOT NULL, deleted_at REAL NOT NULL, "
        "keep_until REAL NOT NULL, row_count INTEGER NOT NULL, "
        "restoring INTEGER NOT NULL DEFAULT 0)"
    ),
    "lgec_trash_thread_id_idx": "CREATE INDEX lgec_trash_thread_id_idx ON lgec_trash (thread_id)",
    "lgec_restored": (
        "CREATE TABLE lgec_restored (thread_id TEXT PRIMARY KEY, restored_at REAL, keep_until REAL)"
    ),
}

# Chosen first and carried out after: what is being restored is marked, and only inside the
# transaction that saves. Rows that the restore puts back fire the triggers in their turn,
# which do nothing while a mark is there.
#
# The saver's INSERT OR REPLACE and OR IGNORE also rule every statement in here, so none may
# lean on a conflict: what is there already is left out by NOT EXISTS. The saver's own row
# comes after, and meets what was put back as if it had never been away.
#
# The writes of a task are numbered from 0 and saved in one transaction, special ones below 0:
# the first of them stands for all.
#
# A subgraph's checkpoint names the root's in its metadata (PARENTS), as JSON text. Looked
# for as text, since not every build can read JSON, and only for subgraphs.
_TRIGGERS = {
    "checkpoints": """CREATE TRIGGER lgec_undo_checkpoints BEFORE INSERT ON checkpoints
WHEN EXISTS (SELECT 1 FROM lgec_trash WHERE thread_id = NEW.thread_id)
    AND NOT EXISTS (SELECT 1 FROM lgec_trash WHERE thread_id = NEW.thread_id AND restoring = 1)
BEGIN
    UPDATE lgec_trash SET restoring = 1
    WHERE thread_id = NEW.thread_id AND (
        EXISTS (SELECT 1 FROM lgec_trash_checkpoints AS c
                WHERE c.generation = lgec_trash.generation
                  AND c.checkpoint_ns = NEW.checkpoint_ns
                  AND c.checkpoint_id IN (NEW.parent_checkpoint_id, NEW.checkpoint_id))
        OR NEW.checkpoint_ns <> '' AND EXISTS (
            SELECT 1 FROM lgec_trash_checkpoints AS c
            WHERE c.generation = lgec_trash.generation
              AND instr(CAST(NEW.metadata AS TEXT), '"' || c.checkpoint_id || '"') > 0));
{restore}
END""",
    "writes": """CREATE TRIGGER lgec_undo_writes BEFORE INSERT ON writes
WHEN NEW.idx <= 0 AND EXISTS (SELECT 1 FROM lgec_trash WHERE thread_id = NEW.thread_id)
    AND NOT EXISTS (SELECT 1 FROM lgec_trash WHERE thread_id = NEW.thread_id AND restoring = 1)
BEGIN
    UPDATE lgec_trash SET restoring = 1
    WHERE thread_id = NEW.thread_id AND EXISTS (
        SELECT 1 FROM lgec_trash_checkpoints AS c
        WHERE c.generation = lgec_trash.generation
          AND c.checkpoint_ns = NEW.checkpoint_ns AND c.checkpoint_id = NEW.checkpoint_id);
{restore}
END""",
}
TRIGGERS = tuple(f"lgec_undo_{table}" for table in TABLES)

Columns = Mapping[str, Sequence[str]]


def quote(name: str) -> str:
    """Quote a name."""
    return '"' + name.replace('"', '""') + '"'


def listed(columns: Sequence[str], of: str = "") -> str:
    """List columns of a table."""
    return ", ".join(f"{of}{quote(column)}" for column in columns)


def kept_table(table: str, columns: Columns) -> str:
    """Make the statement for the trash of one of the saver's tables."""
    key = listed(("generation", *_KEYS[table]))
    return (
        f"CREATE TABLE {KEPT[table]} (generation INTEGER NOT NULL, {listed(columns[table])}, "
        f"PRIMARY KEY ({key}))"
    )


def triggers(columns: Columns) -> dict[str, str]:
    """Make the triggers for tables with these columns."""
    body = "\n".join(f"    {statement};" for statement in restore("NEW.thread_id", columns))
    return {f"lgec_undo_{table}": text.format(restore=body) for table, text in _TRIGGERS.items()}


def restore(thread_id: str, columns: Columns) -> list[str]:
    """Make the statements that put back what is marked of a thread.

    Args:
        thread_id: An SQL expression.
        columns: Of the saver's tables.
    """
    marked = f"SELECT generation FROM lgec_trash WHERE thread_id = {thread_id} AND restoring = 1"
    statements = [
        f"DELETE FROM lgec_restored WHERE thread_id = {thread_id} AND EXISTS ({marked})",
        f"INSERT INTO lgec_restored (thread_id) SELECT {thread_id} WHERE EXISTS ({marked})",
    ]
    for table in TABLES:
        same_key = " AND ".join(f"live.{column} = kept.{column}" for column in _KEYS[table])
        statements.append(
            f"INSERT INTO {table} ({listed(columns[table])}) "
            f"SELECT {listed(columns[table], 'kept.')} FROM {KEPT[table]} AS kept "
            f"WHERE kept.generation IN ({marked}) "
            f"AND NOT EXISTS (SELECT 1 FROM {table} AS live WHERE {same_key})"
        )
    statements += [f"DELETE FROM {KEPT[table]} WHERE generation IN ({marked})" for table in TABLES]
    statements.append(f"DELETE FROM lgec_trash WHERE thread_id = {thread_id} AND restoring = 1")
    return statements
