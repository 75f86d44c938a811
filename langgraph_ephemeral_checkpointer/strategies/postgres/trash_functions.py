"""The functions behind the triggers of the Postgres trash, with names still to be filled in."""

from __future__ import annotations

# Default privileges may have given a new table to roles that the saver's tables hide rows from.
# Whom they name now loses it; what was granted by hand to others stays.
CLOSE = """
DO $lgec$
DECLARE
    name regclass;
    kind text;
    role_ text;
BEGIN
    FOR name, kind, role_ IN
        SELECT c.oid::regclass, CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END,
            CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE g.grantee::regrole::text END
        FROM pg_catalog.pg_class AS c CROSS JOIN LATERAL (
            SELECT 0::oid AS grantee UNION
            SELECT a.grantee
            FROM pg_catalog.pg_default_acl AS d, pg_catalog.aclexplode(d.defaclacl) AS a
            WHERE d.defaclrole = c.relowner AND d.defaclnamespace IN (0, c.relnamespace)
              AND d.defaclobjtype = CASE c.relkind WHEN 'S' THEN 'S'::"char" ELSE 'r'::"char" END
        ) AS g
        WHERE c.oid IN ({regclasses}) AND g.grantee <> c.relowner
    LOOP
        EXECUTE pg_catalog.concat('REVOKE ALL ON ', kind, ' ', name, ' FROM ', role_, ' CASCADE');
    END LOOP;
END
$lgec$
"""

# The list of threads goes first: the triggers that fire for the rows put back then find
# nothing to do. A row that is there already is newer, or the same.
RESTORE = """
CREATE OR REPLACE FUNCTION {restore}(generations bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $lgec$
BEGIN
    WITH back AS (DELETE FROM {trash} WHERE generation = ANY (generations) RETURNING thread_id)
    INSERT INTO {restored} (thread_id) SELECT DISTINCT thread_id FROM back
    ON CONFLICT (thread_id) DO UPDATE SET restored_at = NULL, keep_until = NULL;
    {moves}
END
$lgec$
"""

# All ids in the trash are below a bound, in the order of the "C" collation: the first eight
# digits of the greatest one (of an id of LangGraph the time, to half a minute), plus one. It is
# kept in a sequence, since reading one costs a small part of asking a table and needs no
# snapshot. It only ever rises; too high, it makes saves ask the trash in vain. Where an id does
# not begin like a UUID, the sequence is marked as not called, so that savers read NULL and ask.
# So it is before the first move, which then looks through the whole trash, whatever brought that
# here. A sweep calls this under the locks of its threads, and two sweeps one after the other.
TRASH_GREW = """
CREATE OR REPLACE FUNCTION {trash_grew}(generations bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $lgec$
DECLARE
    bound bigint;
    greatest_id text;
    digits text;
    needed bigint := x'ffffffff'::bigint;
BEGIN
    PERFORM pg_advisory_xact_lock({key_of_bound});
    SELECT last_value INTO bound FROM {sequence};
    SELECT max(checkpoint_id COLLATE "C") INTO greatest_id FROM {trash_checkpoints}
    WHERE bound = 1 OR generation = ANY (generations);
    IF greatest_id IS NULL THEN
        RETURN;
    END IF;
    -- As text the bound has no leading zeros, which can only make it greater.
    digits := substring(greatest_id COLLATE "C" FROM '^[0-9a-e][0-9a-f]{{7}}');
    IF digits IS NOT NULL THEN
        needed := ('x' || digits)::bit(32)::bigint + 1;
    END IF;
    IF needed > bound THEN
        PERFORM setval({bound}, needed, digits IS NOT NULL);
    END IF;
END
$lgec$
"""

# What every save runs, so it is short and sets nothing: a SET on a function costs more than the
# rest of it. It runs with the rights of its owner on the search path of whoever saves, so it
# names even operators in full.
#
# Most saves need no more than one expression, which plpgsql evaluates without a query, in the
# order of the CASE: the lock, which never is NULL; then, and so on what was done under it, the
# bound. Only below it the trash is asked, by a query of its own and so on a newer snapshot than
# the lock. PERFORM, since EXISTS would be planned for its first row, and so as a walk through
# the whole list.
#
# Where snapshots do not move (REPEATABLE READ and above) the query may see the trash as it was
# before a move. The bound is no part of a snapshot; below it, the checkpoint that is built upon
# is locked, which fails with a serialization error, to be retried, if a sweep took it meanwhile.
# So are the values it names: all that a fork of a first checkpoint has of what it was made from.
ON_SAVE = """
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER AS $lgec$
BEGIN
    IF (CASE {not_the_first}
        WHEN pg_catalog.pg_advisory_xact_lock_shared({key_of_new}) IS NULL THEN false
        ELSE {cannot_descend} END)
    THEN
        RETURN NEW;
    END IF;
    IF pg_catalog.current_setting('transaction_isolation')
       OPERATOR(pg_catalog.<>) 'read committed' THEN
        PERFORM {still_there}(NEW);
    END IF;
    PERFORM 1 FROM {trash} WHERE thread_id OPERATOR(pg_catalog.=) NEW.thread_id;
    IF FOUND THEN
        RETURN {bring_back}(NEW);
    END IF;
    RETURN NEW;
END
$lgec$
"""

# The writes of a task are numbered from 0 and saved in one transaction, special ones below 0:
# the first of them stands for all. A WHEN on the trigger would be parsed again at each insert,
# which costs more than calling the function.
NOT_THE_FIRST = {
    "checkpoints": "",
    "checkpoint_writes": "WHEN NEW.idx OPERATOR(pg_catalog.>) 0 THEN true",
}

# That nothing in the trash can be what a row descends from (see BRING_BACK): what it builds on
# is not below the bound. A checkpoint without a parent may descend by its values, one in a
# subgraph by the parents in its metadata; NULL asks. Each function here is looked up again in
# every transaction, so they are few.
_ABOVE = """{id} COLLATE pg_catalog."C" OPERATOR(pg_catalog.>=)
            pg_catalog.to_hex(pg_catalog.pg_sequence_last_value({{bound}}))"""
CANNOT_DESCEND = {
    "checkpoints": "NEW.checkpoint_ns OPERATOR(pg_catalog.=) '' AND "
    + _ABOVE.format(id="NEW.parent_checkpoint_id")
    + """
        AND NEW.checkpoint_id COLLATE pg_catalog."C" OPERATOR(pg_catalog.>)
            NEW.parent_checkpoint_id""",
    "checkpoint_writes": _ABOVE.format(id="NEW.checkpoint_id"),
}

STILL_THERE = {
    "checkpoints": """
CREATE OR REPLACE FUNCTION {still_there}(row_ anyelement) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $lgec$
BEGIN
    PERFORM 1 FROM {checkpoints} WHERE thread_id = row_.thread_id
        AND (checkpoint_ns, checkpoint_id) IN (
            (row_.checkpoint_ns, row_.parent_checkpoint_id),
            ('', row_.metadata -> {parents} ->> ''))
        FOR KEY SHARE;
    PERFORM 1 FROM jsonb_each_text(row_.checkpoint -> 'channel_versions') AS v
        JOIN {blobs} AS b ON b.channel = v.key AND b.version = v.value
        WHERE b.thread_id = row_.thread_id AND b.checkpoint_ns = row_.checkpoint_ns
        FOR KEY SHARE OF b;
END
$lgec$
""",
    "checkpoint_writes": """
CREATE OR REPLACE FUNCTION {still_there}(row_ anyelement) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $lgec$
BEGIN
    PERFORM 1 FROM {checkpoints} WHERE thread_id = row_.thread_id
        AND checkpoint_ns = row_.checkpoint_ns AND checkpoint_id = row_.checkpoint_id
        FOR KEY SHARE;
END
$lgec$
""",
}

# Called for a thread that is in the trash. Gives the row to be saved, which differs from the
# given one only where the same key was in the trash. A row of any type, so that the saver's
# tables can be dropped without it.
BRING_BACK = {
    "checkpoints": """
CREATE OR REPLACE FUNCTION {bring_back}(given anyelement) RETURNS anyelement
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $lgec$
DECLARE
    row_ {live} := given;
    generations bigint[];
    parents jsonb;
BEGIN
    parents := CASE WHEN jsonb_typeof(row_.metadata -> {parents}) = 'object'
                    THEN row_.metadata -> {parents} ELSE '{{}}' END;
    -- A fork of a first checkpoint has no parent, but shares its blobs. Versions of upstream
    -- end in a random fraction, so that nothing but a descendant ever names one.
    SELECT array_agg(t.generation) INTO generations FROM {trash} AS t
    WHERE t.thread_id = row_.thread_id AND (
        EXISTS (SELECT 1 FROM {trash_checkpoints} AS c
                WHERE c.generation = t.generation AND c.checkpoint_ns = row_.checkpoint_ns
                  AND c.checkpoint_id IN (row_.parent_checkpoint_id, row_.checkpoint_id))
        OR EXISTS (SELECT 1 FROM {trash_checkpoints} AS c, jsonb_each_text(parents) AS p
                   WHERE c.generation = t.generation AND c.checkpoint_ns = p.key
                     AND c.checkpoint_id = p.value)
        OR EXISTS (SELECT 1 FROM {trash_blobs} AS b,
                       jsonb_each_text(row_.checkpoint -> 'channel_versions') AS v
                   WHERE b.generation = t.generation AND b.checkpoint_ns = row_.checkpoint_ns
                     AND b.channel = v.key AND b.version = v.value
                     AND v.value ~ '^[0-9]{{32}}[.]'));
    IF generations IS NULL THEN
        RETURN row_;
    END IF;
    -- A checkpoint that is saved again replaces the row in the trash as it would replace it
    -- in the table: all but the parent. Put back, it would be in the way of this insert.
    WITH former AS (DELETE FROM {trash_checkpoints} AS c
        WHERE c.generation = ANY (generations) AND c.checkpoint_ns = row_.checkpoint_ns
          AND c.checkpoint_id = row_.checkpoint_id RETURNING c.generation, c.parent_checkpoint_id)
    SELECT chosen.parent_checkpoint_id INTO row_.parent_checkpoint_id FROM (
        SELECT 1 AS place, o.generation, o.parent_checkpoint_id FROM former AS o
        UNION ALL SELECT 2, 0, row_.parent_checkpoint_id
        ORDER BY place, generation DESC LIMIT 1) AS chosen;
    PERFORM {restore}(generations);
    RETURN row_;
END
$lgec$
""",
    "checkpoint_writes": """
CREATE OR REPLACE FUNCTION {bring_back}(given anyelement) RETURNS anyelement
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $lgec$
DECLARE
    row_ {live} := given;
    generations bigint[];
BEGIN
    SELECT array_agg(t.generation) INTO generations FROM {trash} AS t
    WHERE t.thread_id = row_.thread_id AND EXISTS (
        SELECT 1 FROM {trash_checkpoints} AS c
        WHERE c.generation = t.generation AND c.checkpoint_ns = row_.checkpoint_ns
          AND c.checkpoint_id = row_.checkpoint_id);
    IF generations IS NULL THEN
        RETURN row_;
    END IF;
    -- The same write again: of ordinary ones the first stays, special ones (their index is
    -- negative) are replaced. Put back, the old row would be in the way of this insert.
    IF row_.idx >= 0 AND EXISTS (
        SELECT 1 FROM {trash_writes} AS w
        WHERE w.generation = ANY (generations) AND w.checkpoint_ns = row_.checkpoint_ns
          AND w.checkpoint_id = row_.checkpoint_id AND w.task_id = row_.task_id
          AND w.idx = row_.idx)
    THEN
        SELECT {others} INTO {into_new} FROM {trash_writes} AS w
        WHERE w.generation = ANY (generations) AND w.checkpoint_ns = row_.checkpoint_ns
          AND w.checkpoint_id = row_.checkpoint_id AND w.task_id = row_.task_id AND w.idx = row_.idx
        ORDER BY w.generation DESC LIMIT 1;
    END IF;
    DELETE FROM {trash_writes} AS w
    WHERE w.generation = ANY (generations) AND w.checkpoint_ns = row_.checkpoint_ns
      AND w.checkpoint_id = row_.checkpoint_id AND w.task_id = row_.task_id AND w.idx = row_.idx;
    PERFORM {restore}(generations);
    RETURN row_;
END
$lgec$
""",
}
