"""The trash as users hold it: set up, looked into, taken from, emptied, removed."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver

from langgraph_ephemeral_checkpointer import (
    AsyncRequiredError,
    KeepReason,
    NotInTrashError,
    NotSetUpError,
    StorageUnusableError,
    ThreadLivesAgainError,
    TrashNotEmptyError,
    TTLPolicy,
    TTLSweeper,
    UnsupportedCheckpointerError,
)
from langgraph_ephemeral_checkpointer.strategies import GenericStrategy
from tests.support.trash_graphs import config, plain_graph

POLICY = TTLPolicy(idle_ttl_seconds=60)


def sweeper_of(saver, policy=POLICY, **options):
    options = {"grace_seconds": 600, "clock": lambda: time.time() + 3600, **options}
    return TTLSweeper(saver, policy, **options)


def schema_of(backend):
    if backend.name == "sqlite":
        return backend.sql("SELECT name, sql FROM sqlite_master ORDER BY name")
    return backend.sql(
        "SELECT relname, relkind::text FROM pg_class WHERE relnamespace = 'public'::regnamespace "
        "UNION ALL SELECT proname, prosrc FROM pg_proc "
        "WHERE pronamespace = 'public'::regnamespace "
        "UNION ALL SELECT tgname, tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal "
        "ORDER BY 1, 2"
    )


def test_an_expired_thread_goes_to_the_trash_and_comes_back_row_by_row(backend):
    now = time.time() + 3600
    with backend.open() as saver:
        sweeper = sweeper_of(saver, clock=lambda: now)
        sweeper.setup()
        for thread_id in ("a", "A", "a ", "a%"):
            plain_graph(saver).invoke({"turns": []}, config(thread_id))
        before = backend.rows()
        assert sorted(sweeper.sweep().deleted_thread_ids) == ["A", "a", "a ", "a%"]
        assert backend.count() == 0
        found = {entry.thread_id: entry for entry in sweeper.trash()}
        assert set(found) == {"a", "A", "a ", "a%"}
        for entry in found.values():
            assert (entry.deleted_at, entry.reason, entry.keep_until) == (
                now,
                "idle_ttl",
                now + 600,
            )
            assert entry.rows == sum(map(len, before.values())) / 4
        assert sweeper.restore("a") == found["a"]
        assert {entry.thread_id for entry in sweeper.trash()} == {"A", "a ", "a%"}
        for thread_id in ("A", "a ", "a%"):
            sweeper.restore(thread_id)
        assert backend.rows() == before
        assert sorted(sweeper.sweep().kept) == ["A", "a", "a ", "a%"]


def test_restoring_an_unknown_thread_or_over_a_living_one_is_an_error_and_loses_nothing(backend):
    with backend.open() as saver:
        sweeper = sweeper_of(saver)
        sweeper.setup()
        graph = plain_graph(saver)
        graph.invoke({"turns": []}, config("t"))
        with pytest.raises(NotInTrashError, match="'t' is not in the trash"):
            sweeper.restore("t")
        old = backend.rows()
        sweeper.sweep()
        graph.invoke({"turns": []}, config("t"))
        new = backend.rows()
        with pytest.raises(ThreadLivesAgainError, match="'t' has checkpoints again"):
            sweeper.restore("t")
        assert backend.rows() == new
        (first,) = sweeper.trash()
        sweeper.sweep()
        with pytest.raises(NotInTrashError, match="generation 77"):
            sweeper.restore("t", generation=77)
        sweeper.restore("t", generation=first.generation)
        assert backend.rows() == old
        assert len(sweeper.trash()) == 1


def test_a_number_as_thread_id_means_its_text(backend):
    with backend.open() as saver:
        sweeper = sweeper_of(saver)
        sweeper.setup()
        plain_graph(saver).invoke({"turns": []}, config(5))
        before = backend.rows()
        sweeper.sweep()
        sweeper.restore(5)
        assert backend.rows() == before


def test_the_trash_is_emptied_when_the_grace_is_over_by_the_sweepers_clock(backend):
    now = [time.time() + 3600]
    with backend.open() as saver:
        sweeper = sweeper_of(saver, clock=lambda: now[0])
        sweeper.setup()
        for number in range(250):
            saver.put(config(f"t{number}", checkpoint_ns=""), _checkpoint(), {"parents": {}}, {})
        assert len(sweeper.sweep().deleted_thread_ids) == 250
        now[0] += 599
        assert sweeper.sweep().emptied_trash_count == 0
        now[0] += 1
        assert sweeper.sweep(dry_run=True).emptied_trash_count == 0
        assert sweeper.sweep().emptied_trash_count == 250
        assert sweeper.trash() == []
        for table in ("lgec_trash_checkpoints", "lgec_trash_writes", "lgec_restored"):
            assert backend.sql(f"SELECT count(*) FROM {table}") == [(0,)]


def test_grace_without_set_up_is_an_error_that_names_setup_and_deletes_nothing(backend):
    with backend.open() as saver:
        plain_graph(saver).invoke({"turns": []}, config("t"))
        before = backend.rows()
        reports = []
        sweeper = sweeper_of(saver, on_sweep_complete=reports.append)
        for attempt in (
            sweeper.sweep,
            lambda: sweeper.sweep(dry_run=True),
            sweeper.trash,
            sweeper.empty_trash,
            lambda: sweeper.restore("t"),
        ):
            with pytest.raises(NotSetUpError, match=r"setup\(\)"):
                attempt()
        assert len(reports) == 2
        sweeper.setup()
        backend.unhook()
        with pytest.raises(NotSetUpError, match=r"trigger|lgec_undo"):
            sweeper.sweep()
        assert backend.rows() == before
        sweeper.setup()
        if backend.name == "postgres":
            backend.sql("ALTER TABLE checkpoints ENABLE TRIGGER lgec_undo")
        assert sweeper.sweep().deleted_thread_ids == ["t"]


def test_set_up_and_removal_may_be_repeated_and_leave_no_trace(backend):
    with backend.open() as saver:
        sweeper = sweeper_of(saver)
        plain_graph(saver).invoke({"turns": []}, config("t"))
        bare = schema_of(backend)
        sweeper.teardown()
        sweeper.setup()
        made = schema_of(backend)
        sweeper.setup()
        assert schema_of(backend) == made
        sweeper.teardown()
        sweeper.teardown()
        assert [row for row in schema_of(backend) if row[0] != "sqlite_sequence"] == bare
        sweeper.setup()
        sweeper.sweep()
        with pytest.raises(TrashNotEmptyError, match="1 threads"):
            sweeper.teardown()
        assert [entry.thread_id for entry in sweeper.trash()] == ["t"]
        sweeper.teardown(force=True)
        assert [row for row in schema_of(backend) if row[0] != "sqlite_sequence"] == bare


def test_the_printed_statements_are_the_set_up(backend):
    with backend.open() as saver:
        sweeper = sweeper_of(saver)
        statements = sweeper.ddl()
        with pytest.raises(NotSetUpError):
            sweeper.trash()
        for statement in statements:
            backend.sql(statement)
        by_hand = schema_of(backend)
        sweeper.setup()
        assert schema_of(backend) == by_hand
        plain_graph(saver).invoke({"turns": []}, config("t"))
        assert sweeper.sweep().deleted_thread_ids == ["t"]


@pytest.mark.parametrize("name", ["100%", "%s", '5 "%(x)s"'])
def test_columns_and_defaults_may_hold_what_looks_like_a_placeholder(backend, name):
    quoted = '"' + name.replace('"', '""') + '"'
    with backend.open() as saver, backend.connect() as conn:
        column = f"ADD COLUMN {quoted} TEXT NOT NULL DEFAULT '100% of %s'"
        conn.execute(f"ALTER TABLE checkpoints {column}")
        try:
            sweeper = sweeper_of(saver)
            for statement in sweeper.ddl():
                conn.execute(statement)
            plain_graph(saver).invoke({"turns": []}, config("t"))
            before = backend.rows()
            assert sweeper.sweep().deleted_thread_ids == ["t"]
            sweeper.restore("t")
            assert backend.rows() == before
            sweeper.setup()  # made by hand, it is the same
        finally:
            sweeper.teardown(force=True)
            conn.execute(f"ALTER TABLE checkpoints DROP COLUMN {quoted}")


def test_a_column_that_the_saver_adds_later_is_noticed_and_set_up_keeps_it(backend):
    with backend.open() as saver:
        sweeper = sweeper_of(saver)
        sweeper.setup()
        graph = plain_graph(saver)
        graph.invoke({"turns": []}, config("old"))
        sweeper.sweep()
        writes = backend.tables[-1]
        backend.sql(f"ALTER TABLE {writes} ADD COLUMN extra TEXT NOT NULL DEFAULT 'none'")
        try:
            graph.invoke({"turns": []}, config("new"))
            backend.sql(f"UPDATE {writes} SET extra = 'kept'")
            before = backend.rows()
            with pytest.raises(NotSetUpError, match=r"setup\(\)"):
                sweeper.sweep()
            assert backend.rows() == before
            sweeper.setup()
            assert sweeper.sweep().deleted_thread_ids == ["new"]
            sweeper.restore("new")
            assert backend.rows() == before
            sweeper.restore("old")
            values = backend.sql(f"SELECT DISTINCT extra FROM {writes} WHERE thread_id = 'old'")
            assert values == [("none",)]
        finally:
            backend.sql(f"ALTER TABLE {writes} DROP COLUMN extra")


def test_an_erasure_passes_the_trash_by_and_takes_what_is_in_it(backend):
    with backend.open() as saver:
        sweeper = sweeper_of(saver)
        sweeper.setup()
        graph = plain_graph(saver)
        for thread_id in ("t", "other"):
            graph.invoke({"turns": []}, config(thread_id))
        sweeper.sweep()
        graph.invoke({"turns": []}, config("t"))
        assert sweeper.sweep(no_trash=True).deleted_thread_ids == ["t"]
        assert backend.count() == 0
        assert [entry.thread_id for entry in sweeper.trash()] == ["other"]
        assert sweeper.empty_trash() == 1
        assert sweeper.trash() == []
        kept = backend.sql("SELECT count(*) FROM lgec_trash_checkpoints")
        assert kept == [(0,)]


def test_an_erasure_works_without_a_trash(backend):
    with backend.open() as saver:
        plain_graph(saver).invoke({"turns": []}, config("t"))
        assert sweeper_of(saver).sweep(no_trash=True).deleted_thread_ids == ["t"]
        assert backend.count() == 0


def test_a_delete_that_fails_halfway_leaves_the_thread_alive_and_whole(backend):
    with backend.open() as saver:
        sweeper = sweeper_of(saver)
        sweeper.setup()
        graph = plain_graph(saver)
        for thread_id in ("bad", "good"):
            graph.invoke({"turns": []}, config(thread_id))
        writes = backend.tables[-1]
        if backend.name == "postgres":
            backend.sql(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN IF OLD.thread_id = 'bad' THEN RAISE 'no'; END IF; RETURN OLD; END $$"
            )
            backend.sql(
                f"CREATE TRIGGER refuse BEFORE DELETE ON {writes} "
                "FOR EACH ROW EXECUTE FUNCTION refuse()"
            )
        else:
            backend.sql(
                f"CREATE TRIGGER refuse BEFORE DELETE ON {writes} WHEN OLD.thread_id = 'bad' "
                "BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
        before = backend.rows("bad")
        try:
            result = sweeper.sweep()
        finally:
            on = f" ON {writes}" if backend.name == "postgres" else ""
            backend.sql(f"DROP TRIGGER refuse{on}")
            if backend.name == "postgres":
                backend.sql("DROP FUNCTION refuse()")
        assert result.deleted_thread_ids == ["good"]
        assert result.kept == {"bad": KeepReason.FAILED}
        assert backend.rows("bad") == before
        assert [entry.thread_id for entry in sweeper.trash()] == ["good"]
        assert sweeper.sweep().deleted_thread_ids == ["bad"]


@pytest.mark.parametrize("grace", [0, -1, float("nan")])
def test_a_grace_that_is_no_time_is_refused(backend, grace):
    with backend.open() as saver, pytest.raises(ValueError, match="grace_seconds"):
        sweeper_of(saver, grace_seconds=grace)


@pytest.mark.parametrize("strategy", [None, GenericStrategy])
def test_savers_without_a_trash_refuse_grace_at_construction(strategy):
    saver = InMemorySaver()
    chosen = strategy and strategy(saver)
    with pytest.raises(ValueError, match="grace_seconds is not supported for InMemorySaver"):
        TTLSweeper(saver, POLICY, grace_seconds=60, strategy=chosen)
    sweeper = TTLSweeper(saver, POLICY, strategy=chosen)
    for method in (sweeper.setup, sweeper.teardown, sweeper.trash, sweeper.ddl):
        with pytest.raises(UnsupportedCheckpointerError, match="has no trash"):
            method()


async def test_the_asynchronous_savers_have_the_same_trash(backend):
    async with backend.aopen() as saver:
        sweeper = sweeper_of(saver)
        with pytest.raises(AsyncRequiredError, match="await"):
            sweeper.setup()
        with pytest.raises(NotSetUpError):
            await sweeper.asweep()
        assert len(await sweeper.addl()) > 5
        await sweeper.asetup()
        graph = plain_graph(saver)
        await graph.ainvoke({"turns": []}, config("t"))
        before = backend.rows()
        assert (await sweeper.asweep()).deleted_thread_ids == ["t"]
        assert [entry.thread_id for entry in await sweeper.atrash()] == ["t"]
        await sweeper.arestore("t")
        assert backend.rows() == before
        with pytest.raises(NotInTrashError):
            await sweeper.arestore("t")
        await sweeper.asweep(no_trash=True)
        assert backend.count() == 0
        assert await sweeper.aempty_trash() == 0
        await sweeper.ateardown()


class TestPostgres:
    """What only a database with many sessions can get wrong."""

    @pytest.fixture
    def backend(self, trash_dsn):
        from tests.support.storages import PostgresStorage

        return PostgresStorage(trash_dsn)

    def test_a_thread_that_is_being_saved_is_busy_and_stays(self, backend):
        with backend.open() as saver, psycopg.connect(backend.where) as writer:
            sweeper = sweeper_of(saver)
            sweeper.setup()
            for thread_id in ("t", "other"):
                plain_graph(saver).invoke({"turns": []}, config(thread_id))
            writer.execute(*_child_of(saver, "t"))
            result = sweeper.sweep()
            assert result.deleted_thread_ids == ["other"]
            assert result.kept == {"t": KeepReason.BUSY}
            writer.commit()
            assert sweeper.sweep().deleted_thread_ids == ["t"]

    @pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
    @pytest.mark.parametrize("moment", ["IMMEDIATE", "DEFERRED"])
    def test_a_save_that_comes_while_the_thread_is_moved_waits_and_brings_it_back(
        self, backend, isolation, moment
    ):
        with backend.open() as saver, psycopg.connect(backend.where) as writer:
            sweeper = sweeper_of(saver)
            sweeper.setup()
            # As if only old threads were in the trash: what is saved now need not ask, until the
            # sweep moves what it builds on.
            backend.sql("SELECT setval('lgec_trash_bound', x'10000000'::bigint)")
            plain_graph(saver).invoke({"turns": []}, config("t"))
            before = backend.rows()
            save = _child_of(saver, "t")
            writer.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
            writer.execute("SELECT 1 FROM checkpoints LIMIT 1")  # takes the snapshot
            outcome = []

            def put():
                try:
                    writer.execute(*save)
                    writer.commit()
                    outcome.append("saved")
                except psycopg.errors.SerializationFailure:
                    writer.rollback()
                    outcome.append("refused")

            thread = threading.Thread(target=put)
            with _paused_move(backend, moment) as paused:
                mover = threading.Thread(target=sweeper.sweep)
                mover.start()
                try:
                    paused.wait_until_there()
                    thread.start()
                    _wait_for_lock(backend)
                finally:
                    paused.go_on()
                    mover.join()
                    if thread.ident is not None:
                        thread.join()
            if isolation == "READ COMMITTED":
                assert outcome == ["saved"]
                assert sweeper.trash() == []
                assert len(backend.rows()["checkpoints"]) == len(before["checkpoints"]) + 1
            else:  # its snapshot is from before: it cannot see the trash, so it must not save
                assert outcome == ["refused"]
                assert len(sweeper.trash()) == 1
                assert backend.count() == 0
                writer.execute(*save)
                writer.commit()
                assert sweeper.trash() == []

    def test_what_a_save_brings_back_is_not_emptied_under_it(self, backend):
        now = [time.time() + 3600]
        with backend.open() as saver, psycopg.connect(backend.where) as writer:
            sweeper = sweeper_of(saver, clock=lambda: now[0])
            sweeper.setup()
            plain_graph(saver).invoke({"turns": []}, config("t"))
            save = _child_of(saver, "t")
            sweeper.sweep()
            now[0] += 1000
            writer.execute(*save)
            # Without the lock the sweep would wait for the save, which this very test ends.
            saver.conn.execute("SET lock_timeout = '5s'")
            assert sweeper.sweep().emptied_trash_count == 0
            writer.rollback()
            assert sweeper.sweep().emptied_trash_count == 1

    def test_a_role_that_may_only_save_needs_no_right_on_the_trash(self, backend):
        role = f"saver_{time.time_ns()}"
        with backend.open() as saver:
            sweeper = sweeper_of(saver)
            sweeper.setup()
            plain_graph(saver).invoke({"turns": []}, config("t"))
            before = backend.rows()
            save = _child_of(saver, "t")
            sweeper.sweep()
            backend.sql(f"CREATE ROLE {role}")
            try:
                for table in backend.tables:
                    backend.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role}")
                with backend.connect() as conn:
                    conn.execute(f"SET ROLE {role}")
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        conn.execute("SELECT * FROM lgec_trash")
                    conn.execute(*save)
            finally:
                backend.sql(f"DROP OWNED BY {role}")
                backend.sql(f"DROP ROLE {role}")
            assert sweeper.trash() == []
            assert set(before["checkpoints"]) < set(backend.rows()["checkpoints"])

    def test_a_role_that_saves_cannot_smuggle_code_into_the_rights_of_the_owner(self, backend):
        role = f"thief_{time.time_ns()}"
        with backend.open() as saver:
            sweeper = sweeper_of(saver)
            sweeper.setup()
            plain_graph(saver).invoke({"turns": []}, config("t"))
            save, params = _child_of(saver, "t")
            sweeper.sweep()
            backend.sql(f"CREATE ROLE {role}")
            backend.sql(f"CREATE SCHEMA evil AUTHORIZATION {role}")
            try:
                backend.sql(f"GRANT SELECT, INSERT, UPDATE ON checkpoints TO {role}")
                with backend.connect() as conn:
                    conn.execute(f"SET ROLE {role}")
                    conn.execute("CREATE TABLE evil.seen (who text)")
                    conn.execute(
                        "CREATE FUNCTION evil.eq(text, text) RETURNS boolean LANGUAGE plpgsql AS "
                        "$$ BEGIN INSERT INTO evil.seen VALUES (current_user); "
                        "RETURN $1 OPERATOR(pg_catalog.=) $2; END $$"
                    )
                    for operator in ("=", "<>"):
                        conn.execute(
                            f"CREATE OPERATOR evil.{operator} "
                            "(LEFTARG = text, RIGHTARG = text, FUNCTION = evil.eq)"
                        )
                    conn.execute("SET search_path = evil, pg_catalog")
                    conn.execute(
                        save.replace("INTO checkpoints", "INTO public.checkpoints"), params
                    )
                assert backend.sql("SELECT who FROM evil.seen") == []
                assert sweeper.trash() == []
            finally:
                backend.sql("DROP SCHEMA evil CASCADE")
                backend.sql(f"DROP OWNED BY {role}")
                backend.sql(f"DROP ROLE {role}")

    def test_the_savers_tables_can_be_dropped_with_the_trash_beside_them(self, backend):
        backend.sql("CREATE SCHEMA doomed")
        dsn = psycopg.conninfo.make_conninfo(backend.where, options="-csearch_path=doomed")
        try:
            with PostgresSaver.from_conn_string(dsn) as saver:
                saver.setup()
                sweeper_of(saver).setup()
                for table in backend.tables:
                    saver.conn.execute(f"DROP TABLE {table}")
        finally:
            backend.sql("DROP SCHEMA doomed CASCADE")

    def test_schemas_have_a_trash_each_whatever_the_search_path(self, backend):
        schemas = ("one", 'T"wo', "5%s %(off)s")
        dsns = {}
        for schema in schemas:
            quoted = '"' + schema.replace('"', '""') + '"'
            with backend.connect() as conn:
                conn.execute(f"CREATE SCHEMA {quoted}")
            path = quoted.replace(" ", "\\ ")
            dsns[schema] = psycopg.conninfo.make_conninfo(
                backend.where, options=f"-csearch_path={path}"
            )
        try:
            for dsn in dsns.values():
                with PostgresSaver.from_conn_string(dsn) as saver:
                    saver.setup()
                    sweeper_of(saver).setup()
                    plain_graph(saver).invoke({"turns": []}, config("t"))
            for schema, dsn in dsns.items():
                with PostgresSaver.from_conn_string(dsn) as saver:
                    save, params = _child_of(saver, "t")
                    sweeper = sweeper_of(saver)
                    assert sweeper.sweep().deleted_thread_ids == ["t"]
                    quoted = '"' + schema.replace('"', '""').replace("%", "%%") + '"'
                    save = save.replace("INTO checkpoints", f"INTO {quoted}.checkpoints")
                    backend.sql(save, *params)  # a session with another search path
                    assert sweeper.trash() == []
                    restored = f"SELECT count(*) > 1 FROM {quoted}.checkpoints"
                    assert backend.sql(restored) == [(True,)]
        finally:
            for schema in schemas:
                quoted = '"' + schema.replace('"', '""').replace("%", "%%") + '"'
                backend.sql(f"DROP SCHEMA {quoted} CASCADE")

    def test_six_sessions_may_set_up_at_once(self, backend):
        errors = []

        def setup():
            try:
                with backend.open() as saver:
                    sweeper_of(saver).setup()
            except Exception as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=setup) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []

    def test_without_the_savers_tables_set_up_says_whose_setup_is_missing(self, backend):
        backend.sql("CREATE SCHEMA empty")
        try:
            dsn = psycopg.conninfo.make_conninfo(backend.where, options="-csearch_path=empty")
            with (
                PostgresSaver.from_conn_string(dsn) as saver,
                pytest.raises(StorageUnusableError, match=r"setup\(\) of the saver"),
            ):
                sweeper_of(saver).setup()
        finally:
            backend.sql("DROP SCHEMA empty")

    def test_a_batch_takes_no_more_locks_than_a_server_has_room_for(self, backend):
        with backend.open() as saver:
            sweeper = sweeper_of(saver, batch_size=100_000)
            sweeper.setup()
            backend.sql(
                "INSERT INTO checkpoints (thread_id, checkpoint_id, checkpoint) "
                "SELECT 't' || n, '1f000000-0000-6000-8000-000000000000', '{}' "
                "FROM generate_series(1, 1200) AS n"
            )
            held = []
            sweeper_of(saver)  # the trigger is there, the batches are counted below
            strategy = sweeper.strategy
            original = strategy.discard_threads
            strategy.discard_threads = lambda ids, *rest: (
                held.append(len(ids)) or original(ids, *rest)
            )
            assert len(sweeper.sweep().deleted_thread_ids) == 1200
            assert max(held) == 500


class _paused_move:  # noqa: N801 - used as a context manager
    """Hold every transaction that puts something on the list of the trash, then or at its end."""

    KEY = 424242

    def __init__(self, backend, moment="DEFERRED"):
        self._backend, self._moment = backend, moment
        self._gate = psycopg.connect(backend.where, autocommit=True)

    def __enter__(self):
        self._gate.execute(f"SELECT pg_advisory_lock({self.KEY})")
        self._backend.sql(
            "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN PERFORM set_config('lock_timeout', '20s', true), "
            f"pg_advisory_xact_lock({self.KEY}); RETURN NULL; END $$"
        )
        self._backend.sql(
            "CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON lgec_trash "
            f"DEFERRABLE INITIALLY {self._moment} FOR EACH ROW EXECUTE FUNCTION hold()"
        )
        return self

    def wait_until_there(self):
        _wait_for_lock(self._backend, f"AND objid = {self.KEY}")

    def go_on(self):
        self._gate.execute(f"SELECT pg_advisory_unlock({self.KEY})")

    def __exit__(self, *_):
        self._gate.close()
        self._backend.sql("DROP TRIGGER hold ON lgec_trash")
        self._backend.sql("DROP FUNCTION hold()")


def _wait_for_lock(backend, which=f"AND objid <> {_paused_move.KEY}"):
    until = time.monotonic() + 20
    waiting = f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted {which}"
    while not backend.sql(waiting):
        assert time.monotonic() < until
        time.sleep(0.005)


def _checkpoint():
    from langgraph.checkpoint.base import empty_checkpoint

    return empty_checkpoint()


def _child_of(saver, thread_id):
    """The insert of a checkpoint that a run which has loaded the thread's head would make."""
    head = saver.get_tuple(config(thread_id))
    parent = head.config["configurable"]["checkpoint_id"]
    child = _checkpoint()["id"]
    statement = (
        "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, "
        "checkpoint, metadata) VALUES (%s, '', %s, %s, '{}', '{\"parents\": {}}')"
    )
    return statement, (thread_id, child, parent)
