"""Moving in from LangGraph's own Postgres saver."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ormsgpack
import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import ERROR
from langgraph.types import Command, Send

from langgraph_ephemeral_checkpointer.errors import StorageUnusableError, TenantRequiredError
from langgraph_ephemeral_checkpointer.strategies.tenant.migrate import migrate_from_postgres
from tests.support.program import command, environment, run
from tests.support.tenant_graphs import (
    HAS_DELTA,
    checkpoint,
    config,
    delta_graph,
    everything_graph,
    say,
)

TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")


@pytest.fixture
def source(pg_dsn: str) -> Iterator[PostgresSaver]:
    with PostgresSaver.from_conn_string(pg_dsn) as saver:
        yield saver


def _graph(saver: Any) -> Any:
    return everything_graph(saver, note="upstream cannot store a NUL")


def _rows(superuser: Any) -> list[Any]:
    queries = [f"SELECT t::text FROM {name} t ORDER BY 1" for name in TABLES]
    return [superuser.execute(query).fetchall() for query in queries]


def _all(saver: Any) -> list[Any]:
    def plain(one: Any) -> Any:
        values = {
            name: [m.content for m in value] if name == "messages" else value
            for name, value in one.checkpoint["channel_values"].items()
        }
        rest = {k: v for k, v in one.checkpoint.items() if k not in {"channel_values"}}
        # Sorted: older upstream savers give the writes of a step in another order.
        writes = sorted(one.pending_writes, key=repr)
        return one.config, rest, values, one.metadata, one.parent_config, writes

    found = [plain(one) for one in saver.list(None)]
    return sorted(found, key=lambda one: [*map(str, one[0]["configurable"].values())])


def _fill(source: PostgresSaver) -> None:
    graph = _graph(source)
    for thread in ("a", "b"):
        graph.invoke(say("hello"), config(thread))
        graph.invoke(Command(resume="yes"), config(thread))
    graph.invoke(say("waits"), config("c"))
    if HAS_DELTA:
        for n in range(5):
            delta_graph(source, every=3).invoke({"log": [str(n)]}, config("d"))


def test_everything_is_copied_and_the_source_is_untouched(
    source: PostgresSaver, make_saver: Any, superuser: Any
) -> None:
    _fill(source)
    before = _rows(superuser)
    with make_saver(tenant=None) as target:
        result = migrate_from_postgres(source, target, tenant="acme")
        assert result.errors == {}
        assert result.copied == ["a", "b", "c"] + (["d"] if HAS_DELTA else [])
        assert _rows(superuser) == before
        with target.tenant_scope("acme"):
            assert _all(target) == _all(source)
            graph = _graph(target)
            values = graph.invoke(Command(resume="at last"), config("c"))
            assert values["log"][-1] == "answer:at last"
            if HAS_DELTA:
                graph = delta_graph(target, every=3)
                log = graph.invoke({"log": ["more"]}, config("d"))["log"]
                assert [item for item in log if item not in "ab"] == [*"01234", "more"]
                target.prune(["d"])
                assert graph.get_state(config("d")).values["log"] == log


def test_tables_that_the_javascript_saver_made_are_copied(
    source: PostgresSaver, make_saver: Any
) -> None:
    """They have no column for the path of a task, so the writes of a step come in another order."""
    _fill(source)
    before = _all(source)
    source.conn.execute("ALTER TABLE checkpoint_writes DROP COLUMN task_path")
    try:
        with make_saver(tenant="acme") as target:
            result = migrate_from_postgres(source, target, tenant="acme")
            assert result.errors == {}
            assert _all(target) == before
    finally:  # other tests use these tables
        source.conn.execute("ALTER TABLE checkpoint_writes ADD task_path TEXT NOT NULL DEFAULT ''")


def test_savers_that_cannot_move_are_named(source: PostgresSaver, make_saver: Any) -> None:
    with make_saver() as target:
        with pytest.raises(TypeError, match="to a TenantPostgresSaver, not TenantPostgres"):
            migrate_from_postgres(target, source)
        with pytest.raises(TypeError, match="synchronous one, not InMemorySaver and Tenant"):
            migrate_from_postgres(InMemorySaver(), target, tenant="acme")  # type: ignore[arg-type]


def test_it_goes_on_where_it_was_stopped(source: PostgresSaver, make_saver: Any) -> None:
    _fill(source)

    class StoppedError(Exception):
        pass

    def stop(thread: str) -> None:
        if thread == "b":
            raise StoppedError

    with make_saver() as target:
        with pytest.raises(StoppedError):
            migrate_from_postgres(source, target, on_thread=stop)
        result = migrate_from_postgres(source, target)
        assert result.skipped == ["a"]
        assert "b" in result.copied
        assert migrate_from_postgres(source, target).copied == []
        _graph(source).invoke(say("again"), config("a"))
        assert migrate_from_postgres(source, target).copied == ["a"]
        assert _all(target) == _all(source)


def test_what_a_step_writes_after_its_checkpoint_was_copied_comes_with_the_next_run(
    source: PostgresSaver, make_saver: Any, superuser: Any
) -> None:
    """The first run saw the checkpoint before the question was asked, then before the second."""
    graph = _graph(source)
    graph.invoke(say("hello"), config("t"))
    rows = superuser.execute("SELECT * FROM checkpoint_writes").fetchall()
    asked = "DELETE FROM checkpoint_writes WHERE channel = '__interrupt__' RETURNING *"
    removed = superuser.execute(asked).fetchall()
    assert removed
    marks = ", ".join(["%s"] * len(rows[0]))
    with make_saver() as target:
        assert migrate_from_postgres(source, target).copied == ["t"]
        assert not _graph(target).get_state(config("t")).interrupts
        for row in removed:
            superuser.execute(f"INSERT INTO checkpoint_writes VALUES ({marks})", row)
        assert migrate_from_postgres(source, target).copied == ["t"]
        assert _all(target) == _all(source)
        assert len(_graph(target).get_state(config("t")).interrupts) == 1
        assert migrate_from_postgres(source, target).skipped == ["t"]
        # The question is asked again, in the same place.
        superuser.execute(
            "UPDATE checkpoint_writes SET type = 'null', blob = '' WHERE channel = '__interrupt__'"
        )
        assert migrate_from_postgres(source, target).copied == ["t"]
        assert _all(target) == _all(source)
        # What the target pruned does not come back.
        target.prune(["t"])
        kept = _all(target)
        assert migrate_from_postgres(source, target).copied == []
        assert _all(target) == kept


def test_a_process_that_is_killed_leaves_whole_threads_and_the_next_goes_on(
    source: PostgresSaver, make_saver: Any, app_dsn: str, pg_dsn: str, schema: str, tmp_path: Any
) -> None:
    """It is killed while it waits for the lock of the third thread; the source goes on."""
    _fill(source)
    words = ["migrate-from-postgres", "--tenant", "acme", "--schema", schema, "--json"]
    environ = {"LGEC_DSN": pg_dsn}
    with make_saver(tenant="acme") as target, psycopg.connect(app_dsn) as rival:
        target.setup()
        for statement in target.names.lock("acme", "c"):
            rival.execute(statement.sql, statement.params)
        process = subprocess.Popen(
            command(*words, "--target-dsn", app_dsn), env=environment(**environ)
        )
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        deadline = time.monotonic() + 30
        with psycopg.connect(app_dsn, autocommit=True) as watch:
            while watch.execute(waiting).fetchone() == (0,):
                assert time.monotonic() < deadline
        process.kill()
        process.wait()
        rival.rollback()
        expected = [one for one in _all(source) if one[0]["configurable"]["thread_id"] in "ab"]
        assert _all(target) == expected
        _graph(source).invoke(Command(resume="meanwhile"), config("c"))
        _graph(source).invoke(say("meanwhile"), config("new"))
        done = run(*words, "--target-dsn", app_dsn, cwd=tmp_path, **environ)
        told = json.loads(done.stdout)
        assert (told["skipped"], told["errors"]) == (["a", "b"], {})
        assert {"c", "new"} <= {*told["copied"]}
        assert _all(target) == _all(source)


def test_threads_of_every_name_move_or_are_reported(
    source: PostgresSaver, make_saver: Any, monkeypatch: Any
) -> None:
    """In pages; a name that no thread here can have is said, and so is one without a tenant."""
    monkeypatch.setattr("langgraph_ephemeral_checkpointer.strategies.tenant.migrate._PAGE", 2)
    names = ["A", "a", "a ", "a'b", "a%b", "\u00fc", "u\u0308", "1", "z" * 500, " ", "no tenant"]
    for name in ["", *names]:
        place = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
        made = checkpoint(1)
        source.put(place, made, {}, made["channel_versions"])

    def owner(thread: str) -> str:
        return "" if thread == "no tenant" else "acme"

    with make_saver(tenant=None, tenant_of=owner) as target:
        result = migrate_from_postgres(source, target)
        assert sorted(result.copied) == sorted(names[:-1])
        assert {*result.errors} == {"", "no tenant"}
        for name in names[:-1]:
            assert target.get_tuple(config(name)).checkpoint["channel_values"] == {"log": [1]}


def test_a_thread_that_went_on_at_the_target_is_left_alone(
    source: PostgresSaver, make_saver: Any
) -> None:
    _fill(source)
    with make_saver(keep_checkpoints=1) as target:
        migrate_from_postgres(source, target)
        _graph(target).invoke(say("here now"), config("a"))
        before = _all(target)
        assert migrate_from_postgres(source, target).copied == []
        assert _all(target) == before


def test_each_thread_goes_to_its_own_tenant(source: PostgresSaver, make_saver: Any) -> None:
    _fill(source)
    with make_saver(tenant_of=lambda thread: f"tenant {thread}", tenant=None) as target:
        migrate_from_postgres(source, target)
        for thread in "abc":
            with target.tenant_scope(f"tenant {thread}"):
                ids = {one.config["configurable"]["thread_id"] for one in target.list(None)}
                assert ids == {thread}
    with make_saver(tenant=None) as target, pytest.raises(TenantRequiredError):
        migrate_from_postgres(source, target)


def test_state_is_encrypted_on_the_way_where_the_target_encrypts(
    source: PostgresSaver, make_saver: Any, superuser: Any, schema: str
) -> None:
    _fill(source)
    with make_saver(serde=EncryptedSerializer(_Flip())) as target:
        assert migrate_from_postgres(source, target).errors == {}
        assert _all(target) == _all(source)
    for suffix in ("", "_blobs", "_writes"):
        kinds = superuser.execute(f"SELECT DISTINCT type FROM {schema}.agent_threads{suffix}")
        assert {kind.endswith("+flip") for (kind,) in kinds} == {True}


def _old_format(source: PostgresSaver, sends: list[Any], thread: str = "t") -> None:
    first = {"v": 3, "id": "1ef00000-0000-6000-8000-000000000001", "ts": "2024-01-01T00:00:00"}
    values = {"channel_values": {"a": ["a"]}, "channel_versions": {"a": "1.0"}}
    rest: Any = {**values, "versions_seen": {}}
    place = source.put(
        {"configurable": {"thread_id": thread, "checkpoint_ns": ""}},
        {**first, **rest},
        {},
        {"a": "1.0"},
    )
    writes = [("__pregel_tasks", one) for one in sends]
    source.put_writes(place, [*writes, (ERROR, "e")], "task")
    second = {**first, **rest, "id": "1ef00000-0000-6000-8000-000000000002"}
    source.put(place, second, {}, {})


def test_old_formats_keep_their_pending_sends(source: PostgresSaver, make_saver: Any) -> None:
    """They are written with the parent; upstream reads them there."""
    _old_format(source, [Send("node", {"x": 1})])
    with make_saver() as target:
        migrate_from_postgres(source, target)
        theirs = source.get_tuple(config("t")).checkpoint
        ours = target.get_tuple(config("t")).checkpoint
        assert theirs["channel_values"]["__pregel_tasks"] == [Send("node", {"x": 1})]
        assert ours == theirs


class _Flip:
    """A cipher that shows whether it was used."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "flip", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "flip"
        return ciphertext[::-1]


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("where", ["writes", "blobs"])
def test_no_object_is_made_of_what_is_moved(
    source: PostgresSaver,
    make_saver: Any,
    superuser: Any,
    schema: str,
    tmp_path: Path,
    encrypted: bool,
    where: str,
) -> None:
    """A stored value can name any function to be called, and is not to be believed."""
    canary = tmp_path / "called"
    call = ormsgpack.Ext(0, ormsgpack.packb(("os", "mkdir", str(canary))))
    _old_format(source, ["not an order"])
    column = {"writes": "channel = '__pregel_tasks'", "blobs": "channel = 'a'"}[where]
    superuser.execute(
        f"UPDATE checkpoint_{where} SET type = 'msgpack', blob = %s WHERE {column}",
        [ormsgpack.packb(call)],
    )
    serde = EncryptedSerializer(_Flip()) if encrypted else None
    with make_saver(serde=serde) as target:
        assert migrate_from_postgres(source, target).copied == ["t"]
        assert not canary.exists()
        kinds = superuser.execute(f"SELECT type FROM {schema}.agent_threads_blobs").fetchall()
        assert {*kinds} == {("msgpack+flip" if encrypted else "msgpack",)}
        target.get_tuple(config("t"))
        assert canary.exists()  # the call is where it was: a graph would have run it, too


@pytest.mark.parametrize("encrypted", [False, True])
def test_pending_sends_move_in_the_form_in_which_they_were_stored(
    source: PostgresSaver, make_saver: Any, superuser: Any, encrypted: bool
) -> None:
    """As msgpack, and as the JSON of older savers."""
    sends = [Send("node", {"x": n}) for n in range(3)]
    serde = EncryptedSerializer(_Flip()) if encrypted else None
    for thread in ("msgpack", "json", "both"):
        _old_format(source, sends, thread=thread)
    told = '{"lc": 2, "type": "constructor", "id": ["langgraph", "types", "Send"], "args": %s}'
    for n in range(3):
        superuser.execute(
            "UPDATE checkpoint_writes SET type = 'json', blob = %s WHERE channel = %s "
            "AND idx = %s AND (thread_id = 'json' OR thread_id = 'both' AND idx = 1)",
            [told.replace("%s", f'["node", {{"x": {n}}}]').encode(), "__pregel_tasks", n],
        )
    with make_saver(serde=serde) as target:
        result = migrate_from_postgres(source, target)
        assert sorted(result.copied) == ["json", "msgpack"]
        assert "two forms" in result.errors["both"]
        for thread in result.copied:
            theirs = source.get_tuple(config(thread)).checkpoint
            ours = target.get_tuple(config(thread)).checkpoint
            assert len(ours["channel_values"]["__pregel_tasks"]) == 3
            assert ours == theirs


def test_the_birth_of_a_pruned_thread_moves_along(
    source: PostgresSaver, make_saver: Any, superuser: Any, schema: str
) -> None:
    _graph(source).invoke(say("hello"), config("t"))
    superuser.execute(
        "UPDATE checkpoints SET type = 'born:2020-01-01T00:00:00+00:00' WHERE checkpoint_ns = ''"
    )
    with make_saver() as target:
        migrate_from_postgres(source, target)
    born = superuser.execute(f"SELECT DISTINCT born_at::date::text FROM {schema}.agent_threads")
    assert born.fetchall() == [("2020-01-01",)]


def test_a_thread_that_cannot_be_copied_is_reported_and_the_others_are(
    source: PostgresSaver, make_saver: Any, superuser: Any
) -> None:
    _fill(source)
    superuser.execute(
        "UPDATE checkpoints SET checkpoint = checkpoint - 'channel_versions' WHERE thread_id = 'b'"
    )
    with make_saver() as target:
        result = migrate_from_postgres(source, target)
        assert list(result.errors) == ["b"]
        assert target.get_tuple(config("b")) is None
        assert {"a", "c"} <= set(result.copied)


def test_the_source_is_read_in_a_transaction_that_cannot_write(pg_dsn: str) -> None:
    from langgraph_ephemeral_checkpointer.errors import StorageError
    from langgraph_ephemeral_checkpointer.strategies.tenant.migrate import _reading

    with PostgresSaver.from_conn_string(pg_dsn) as source:
        with pytest.raises(StorageError) as caught, _reading(source) as read:
            read("DELETE FROM checkpoints", ())
        assert isinstance(caught.value.__cause__, psycopg.errors.ReadOnlySqlTransaction)


def test_a_source_whose_text_is_read_as_bytes_is_refused(
    source: PostgresSaver, make_saver: Any
) -> None:
    _old_format(source, [])
    source.conn.execute("SET client_encoding TO SQL_ASCII")
    with (
        make_saver(tenant=None) as target,
        pytest.raises(StorageUnusableError, match="client_encoding=UTF8"),
    ):
        migrate_from_postgres(source, target, tenant="acme")
