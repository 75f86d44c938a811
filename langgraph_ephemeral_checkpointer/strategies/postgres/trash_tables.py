"""The trash of the Postgres savers as tables, functions and triggers.

Everything is put into the schema of the saver's tables and names it in full, so that it works
whatever the search path of the session that saves. The trigger functions run with the rights
of whoever set them up (SECURITY DEFINER): a role that may only save needs no right on the trash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql
from psycopg.abc import AdaptContext

from langgraph_ephemeral_checkpointer.langgraph_names import PARENTS
from langgraph_ephemeral_checkpointer.strategies.postgres.tables import DIGEST, KEYS, TABLES
from langgraph_ephemeral_checkpointer.strategies.postgres.trash_functions import (
    BRING_BACK,
    CANNOT_DESCEND,
    CLOSE,
    NOT_THE_FIRST,
    ON_SAVE,
    RESTORE,
    STILL_THERE,
    TRASH_GREW,
)

VERSION = 4
"""Goes up with every change of the DDL, so that check() notices what an older version made."""

CLOSED_SINCE = 4
"""The version from which on the tables are closed when they are made."""

TRIGGERED = ("checkpoints", "checkpoint_writes")
_TRIGGER = "lgec_undo"
_KEPT = {
    "checkpoints": "lgec_trash_checkpoints",
    "checkpoint_blobs": "lgec_trash_blobs",
    "checkpoint_writes": "lgec_trash_writes",
}

_LISTS = ("lgec_trash", "lgec_restored")
_LIVE = ", ".join(f"'{live}'::regclass" for live in TABLES)
_VALUES = ", ".join(f"('{live}', '{live}'::regclass, '{kept}')" for live, kept in _KEPT.items())
FIND_LAYOUT = f"""
    SELECT wanted.live, n.nspname,
        ARRAY(SELECT a.attname::text FROM pg_attribute AS a
              WHERE a.attrelid = live.oid AND a.attnum > 0 AND NOT a.attisdropped
                AND a.attgenerated = '' ORDER BY a.attnum),
        ARRAY(SELECT a.attname::text FROM pg_attribute AS a
              WHERE a.attrelid = to_regclass(quote_ident(n.nspname) || '.' || wanted.kept)
                AND a.attnum > 0 AND NOT a.attisdropped),
        EXISTS (SELECT 1 FROM pg_trigger AS t
                WHERE t.tgrelid = live.oid AND t.tgname = '{_TRIGGER}'
                  AND t.tgenabled IN ('O', 'A')),
        (SELECT obj_description(p.oid, 'pg_proc') FROM pg_proc AS p
         WHERE p.pronamespace = n.oid AND p.proname = 'lgec_restore'),
        to_regclass(quote_ident(n.nspname) || '.lgec_trash') IS NOT NULL,
        to_regclass(quote_ident(n.nspname) || '.lgec_trash_bound') IS NOT NULL,
        ARRAY(SELECT format_type(a.atttypid, a.atttypmod)
                     || coalesce(' DEFAULT ' || CASE WHEN a.attidentity = ''
                            THEN pg_get_expr(d.adbin, d.adrelid)
                            ELSE 'nextval(' || quote_literal(pg_get_serial_sequence(
                                quote_ident(n.nspname) || '.' || wanted.live, a.attname)) || ')'
                        END, '')
              FROM pg_attribute AS a
              LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
              WHERE a.attrelid = live.oid AND a.attnum > 0 AND NOT a.attisdropped
                AND a.attgenerated = '' ORDER BY a.attnum),
        (SELECT r.relname || ' hides rows from role ' || quote_literal(o.rolname)
         FROM pg_class AS r, pg_proc AS p JOIN pg_roles AS o ON o.oid = p.proowner
         WHERE r.oid IN (live.oid, to_regclass(quote_ident(n.nspname) || '.' || wanted.kept),
                         to_regclass(quote_ident(n.nspname) || '.lgec_trash'),
                         to_regclass(quote_ident(n.nspname) || '.lgec_restored'))
           AND p.pronamespace = n.oid
           AND p.proname IN ('lgec_restore', {", ".join(f"'lgec_undo_{t}'" for t in TRIGGERED)})
           AND r.relrowsecurity AND NOT (o.rolsuper OR o.rolbypassrls OR
               (NOT r.relforcerowsecurity AND pg_has_role(o.oid, r.relowner, 'USAGE')))
         LIMIT 1),
        (SELECT quote_literal(k.conname) || ' of ' || k.conrelid::regclass
         FROM pg_trigger AS t JOIN pg_constraint AS k ON k.oid = t.tgconstraint
         WHERE t.tgrelid = live.oid AND k.confrelid = live.oid
           AND k.confdeltype IN ('c', 'n', 'd')
           AND k.conrelid <> ALL (ARRAY[{_LIVE}])
         LIMIT 1),
        ARRAY(SELECT a.attname::text FROM pg_attribute AS a
              WHERE a.attrelid = live.oid AND a.attnum > 0 AND NOT a.attisdropped
                AND a.attgenerated <> ''),
        live.relrowsecurity,
        ARRAY(SELECT r.relname::text FROM pg_class AS r
              WHERE r.relnamespace = n.oid AND NOT r.relrowsecurity
                AND (r.relname = wanted.kept OR wanted.live = 'checkpoints'
                     AND r.relname IN ('lgec_trash', 'lgec_restored')))
    FROM (VALUES {_VALUES})
        AS wanted (live, oid, kept)
    JOIN pg_class AS live ON live.oid = wanted.oid
    JOIN pg_namespace AS n ON n.oid = live.relnamespace
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the saver's tables are, their columns, and what of the trash is there.

    Attributes:
        schema: The schema of the saver's checkpoints.
        columns: The columns of each of the saver's tables.
        missing: What is missing or out of date in the set-up, or None.
        has_trash: Whether the list of trashed threads is there.
        lacking: Columns that the trash of a table lacks, with their types.
        unused: Columns of the trash of a table that nothing is put into: what the saver's table
            computes, and what it no longer has.
        is_closed: Whether default privileges were taken from the trash already.
        secured: The tables of the trash that should have row security, as the saver's have.
        unkept: A foreign key, and the other table whose rows it changes when a thread goes.
    """

    schema: str
    columns: dict[str, tuple[str, ...]]
    missing: str | None
    has_trash: bool
    lacking: dict[str, tuple[tuple[str, str], ...]]
    unkept: str | None
    unused: dict[str, tuple[str, ...]]
    is_closed: bool
    secured: tuple[str, ...]

    @classmethod
    def of(cls, rows: Iterable[Sequence[Any]]) -> Layout:
        """Make sense of what :data:`FIND_LAYOUT` gave, a row for each of the saver's tables."""
        found = {row[0]: row for row in rows}
        schema, mark, has_trash = (found["checkpoints"][n] for n in (1, 5, 6))
        columns = {table: tuple(row[2]) for table, row in found.items()}
        missing: str | None = None
        if not has_trash or mark is None:
            missing = "it was never set up"
        elif mark != _mark(columns):
            missing = "it was made for another version of the tables or of this package"
        elif not found["checkpoints"][7]:
            missing = "the sequence lgec_trash_bound is missing"
        lacking = {}
        for table, row in found.items():
            lacking[table] = tuple(
                (column, type_)
                for column, type_ in zip(row[2], row[8], strict=True)
                if row[3] and column not in row[3]
            )
            if missing is None and (lacking[table] or not row[3]):
                missing = f"the table {_KEPT[table]} lacks columns"
            if missing is None and table in TRIGGERED and not row[4]:
                missing = f"the trigger on {table} is missing or switched off"
            if missing is None and row[9]:
                missing = (
                    f"row security on {row[9]}, with whose rights the triggers look for a thread "
                    "that comes back: give it BYPASSRLS, or switch FORCE ROW LEVEL SECURITY off"
                )
            if missing is None and row[12] and row[13]:
                missing = f"row security is on for {table} and off for {', '.join(row[13])}"
        is_closed = mark is not None and int(mark.split(";")[0].split()[-1]) >= CLOSED_SINCE
        secured = tuple(
            name
            for table, row in found.items()
            if row[12]
            for name in (_KEPT[table], *(_LISTS if table == "checkpoints" else ()))
        )
        unkept = next((row[10] for row in found.values() if row[10]), None)
        unused = {
            table: (*row[11], *(c for c in row[3] if c not in ("generation", *row[2], *row[11])))
            for table, row in found.items()
        }
        return cls(schema, columns, missing, has_trash, lacking, unkept, unused, is_closed, secured)

    def name(self, table: str) -> sql.Composable:
        """Name something in the schema in full."""
        return _Escaped(sql.Identifier(self.schema, table))

    def kept(self, table: str) -> sql.Composable:
        """Name the trash of one of the saver's tables."""
        return self.name(_KEPT[table])

    def fill(self, text: str, **more: sql.Composable) -> sql.Composed:
        """Fill names into a statement that is executed with parameters."""
        # The lock of a thread is keyed by the trash table too, so that two schemas of one
        # database never meet. Two threads whose hashes collide only wait for each other.
        seed = sql.SQL("{}::pg_catalog.oid::pg_catalog.int8").format(self._regclass("lgec_trash"))
        bound = self._regclass("lgec_trash_bound")
        names: dict[str, sql.Composable] = {
            "schema": _Escaped(sql.Identifier(self.schema)),
            "trash": self.name("lgec_trash"),
            "restored": self.name("lgec_restored"),
            "restore": self.name("lgec_restore"),
            "checkpoints": self.name("checkpoints"),
            "blobs": self.name("checkpoint_blobs"),
            "writes": self.name("checkpoint_writes"),
            "trash_checkpoints": self.kept("checkpoints"),
            "trash_blobs": self.kept("checkpoint_blobs"),
            "trash_writes": self.kept("checkpoint_writes"),
            "bound": bound,
            "sequence": self.name("lgec_trash_bound"),
            "trash_grew": self.name("lgec_trash_grew"),
            "parents": sql.SQL(f"'{PARENTS}'"),
            "key": sql.SQL("hashtextextended(%(thread_id)s, {})").format(seed),
            "key_of_bound": sql.SQL("hashtextextended('', {})").format(
                sql.SQL("{}::pg_catalog.oid::pg_catalog.int8").format(bound)
            ),
            "key_of_row": sql.SQL("hashtextextended(thread_id, {})").format(seed),
            "key_of_new": sql.SQL("pg_catalog.hashtextextended(NEW.thread_id, {})").format(seed),
            "trigger": sql.Identifier(_TRIGGER),
        }
        return sql.SQL(text).format(**{**names, **more})

    def move(self, table: str) -> sql.Composed:
        """Move the rows of threads (ids, then generations and whose they are) to the trash.

        Its rows give each thread, how many of its rows went, and the digest of its checkpoints.
        """
        columns, is_judged = self._columns(table), table == "checkpoints"
        return self.fill(
            "WITH gone AS (DELETE FROM {live} WHERE thread_id = ANY(%s::text[]) RETURNING *), "
            "kept AS (INSERT INTO {kept} (generation, {columns}) "
            "SELECT owner.generation, {gone} FROM gone "
            "JOIN unnest(%s::bigint[], %s::text[]) AS owner (generation, thread_id) "
            "ON owner.thread_id = gone.thread_id RETURNING {returned}) "
            "SELECT thread_id, count(*), {digest} FROM kept GROUP BY thread_id",
            live=self.name(table),
            kept=self.kept(table),
            columns=columns,
            gone=_names(self.columns[table], of="gone"),
            returned=sql.SQL("thread_id, checkpoint_id" if is_judged else "thread_id"),
            digest=sql.SQL(DIGEST if is_judged else "0"),
        )

    def ddl(self) -> list[str]:
        """Give the statements of :meth:`create` as they are executed without parameters."""
        return [statement.as_string(None).replace("%%", "%") for statement in self.create()]

    def create(self) -> list[sql.Composed]:
        """Give the statements that make the trash, or bring an older one up to date."""
        made = [
            self.fill(
                "CREATE TABLE IF NOT EXISTS {trash} ("
                "generation bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
                "thread_id text NOT NULL, reason text NOT NULL, deleted_at float8 NOT NULL, "
                "keep_until float8 NOT NULL, row_count bigint NOT NULL DEFAULT 0)"
            ),
            self.fill("CREATE INDEX IF NOT EXISTS lgec_trash_thread_id_idx ON {trash} (thread_id)"),
            self.fill(
                "CREATE TABLE IF NOT EXISTS {restored} ("
                "thread_id text PRIMARY KEY, restored_at float8, keep_until float8)"
            ),
            self.fill("CREATE SEQUENCE IF NOT EXISTS {sequence}"),
        ]
        for table in TABLES:
            names = {"live": self.name(table), "kept": self.kept(table)}
            made.append(
                self.fill(
                    "CREATE TABLE IF NOT EXISTS {kept} (generation bigint NOT NULL, "
                    "LIKE {live}, PRIMARY KEY (generation, {primary_key}))",
                    primary_key=_names(KEYS[table]),
                    **names,
                )
            )
            made += [
                self.fill(
                    "ALTER TABLE {kept} ADD COLUMN IF NOT EXISTS {column} {type}",
                    column=_Escaped(sql.Identifier(column)),
                    type=_Escaped(sql.SQL(type_)),
                    **names,
                )
                for column, type_ in self.lacking[table]
            ]
            # A default is for the rows that are there: later it would tie the trash to a sequence.
            drops = [(column, "DEFAULT") for column, _ in self.lacking[table]]
            drops += [(column, "NOT NULL") for column in self.unused[table]]
            made += [
                self.fill(
                    f"ALTER TABLE {{kept}} ALTER COLUMN {{column}} DROP {what}",
                    column=_Escaped(sql.Identifier(column)),
                    **names,
                )
                for column, what in drops
            ]
        if not self.is_closed:
            new = (*_LISTS, *_KEPT.values(), "lgec_trash_bound", "lgec_trash_generation_seq")
            made.append(self.fill(CLOSE, regclasses=sql.SQL(", ").join(map(self._regclass, new))))
        made += [
            self.fill("ALTER TABLE {table} ENABLE ROW LEVEL SECURITY", table=self.name(table))
            for table in self.secured
        ]
        made += [self.fill(TRASH_GREW), self._restore_function(), self._mark_function()]
        for table in TRIGGERED:
            others = [c for c in self.columns[table] if c not in KEYS[table]]
            more: dict[str, sql.Composable] = {
                "function": self.name(f"lgec_undo_{table}"),
                "still_there": self.name(f"lgec_still_there_{table}"),
                "bring_back": self.name(f"lgec_bring_back_{table}"),
                "not_the_first": sql.SQL(NOT_THE_FIRST[table]),
                "cannot_descend": self.fill(CANNOT_DESCEND[table]),
                "live": self.name(table),
                "others": _names(others),
                "into_new": _names(others, of="row_"),
            }
            made += [
                self.fill(STILL_THERE[table], **more),
                self.fill(BRING_BACK[table], **more),
                self.fill(ON_SAVE, **more),
                self.fill("DROP TRIGGER IF EXISTS {trigger} ON {live}", **more),
                self.fill(
                    "CREATE TRIGGER {trigger} BEFORE INSERT ON {live} FOR EACH ROW "
                    "EXECUTE FUNCTION {function}()",
                    **more,
                ),
            ]
        return made

    def drop_triggers(self) -> list[sql.Composed]:
        """Give the statements that unhook the trash from the saver's tables."""
        return [
            self.fill("DROP TRIGGER IF EXISTS {trigger} ON {live}", live=self.name(table))
            for table in TRIGGERED
        ]

    def drop_rest(self) -> list[sql.Composed]:
        """Give the statements that remove all but the triggers."""
        drops = []
        for table in TRIGGERED:
            for name, args in (
                (f"lgec_undo_{table}", ""),
                (f"lgec_still_there_{table}", "anyelement"),
                (f"lgec_bring_back_{table}", "anyelement"),
            ):
                drops.append(
                    self.fill(
                        f"DROP FUNCTION IF EXISTS {{function}}({args})",
                        function=self.name(name),
                        live=self.name(table),
                    )
                )
        return [
            *drops,
            self.fill("DROP FUNCTION IF EXISTS {restore}(bigint[])"),
            self.fill("DROP FUNCTION IF EXISTS {trash_grew}(bigint[])"),
            self.fill("DROP SEQUENCE IF EXISTS {sequence}"),
            *(
                self.fill("DROP TABLE IF EXISTS {table}", table=self.name(table))
                for table in (*_KEPT.values(), "lgec_restored", "lgec_trash")
            ),
        ]

    def _restore_function(self) -> sql.Composed:
        moves = [
            self.fill(
                "WITH back AS "
                "(DELETE FROM {kept} WHERE generation = ANY (generations) RETURNING *) "
                "INSERT INTO {live} ({columns}) OVERRIDING SYSTEM VALUE "
                "SELECT {columns} FROM back ON CONFLICT DO NOTHING;",
                live=self.name(table),
                kept=self.kept(table),
                columns=self._columns(table),
            )
            for table in TABLES
        ]
        return self.fill(RESTORE, moves=sql.SQL("\n    ").join(moves))

    def _mark_function(self) -> sql.Composed:
        return self.fill(
            "COMMENT ON FUNCTION {restore}(bigint[]) IS {mark}",
            mark=_Escaped(sql.Literal(_mark(self.columns))),
        )

    def _columns(self, table: str) -> sql.Composed:
        return _names(self.columns[table])

    def _regclass(self, table: str) -> sql.Composed:
        name = sql.Identifier(self.schema, table).as_string(None)
        return sql.SQL("{}::pg_catalog.regclass").format(_Escaped(sql.Literal(name)))


class _Escaped(sql.Composable):
    """A name, a literal or a type, with each ``%`` doubled.

    psycopg looks for placeholders in quoted names and literals too.
    """

    def as_bytes(self, context: AdaptContext | None = None) -> bytes:
        plain: bytes = self._obj.as_bytes(context)
        return plain.replace(b"%", b"%%")


def _names(columns: Iterable[str], of: str | None = None) -> sql.Composed:
    """Write a list of columns, perhaps of one row."""
    row = () if of is None else (of,)
    return sql.SQL(", ").join(_Escaped(sql.Identifier(*row, column)) for column in columns)


def _mark(columns: dict[str, tuple[str, ...]]) -> str:
    tables = "; ".join(f"{table}: {', '.join(columns[table])}" for table in TABLES)
    return f"langgraph-ephemeral-checkpointer undo {VERSION}; {tables}"
