"""What one save stores, what it prunes, and what it does when its thread is gone."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command
from psycopg_pool import ConnectionPool

from langgraph_ephemeral_checkpointer.engine.plan import drive
from langgraph_ephemeral_checkpointer.errors import StorageError, ThreadDeletedError
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver
from langgraph_ephemeral_checkpointer.tenancy.survival import Stored, newest_roots
from tests.support.tenant_graphs import (
    HAS_DELTA,
    META,
    at,
    checkpoint,
    config,
    delta_graph,
    everything_graph,
    plain_graph,
    put,
    say,
)


def counts(superuser: Any, schema: str, *, thread: str = "t") -> tuple[int, int, int]:
    """Rows of a thread: checkpoints, blobs, writes."""
    return tuple(
        superuser.execute(
            f"SELECT count(*) FROM {schema}.agent_threads{suffix} WHERE thread_id = %s", [thread]
        ).fetchone()[0]
        for suffix in ("", "_blobs", "_writes")
    )


@pytest.mark.parametrize(
    "value",
    [
        "nul \0 inside",
        {"nul\0key": ["\0"]},
        b"\0\xff",
        None,
        True,
        1.5,
        [],
        "",
        {"nested": [{"a": (1, "b")}]},
        2**62,
    ],
)
def test_values_come_back_as_they_were(saver: Any, value: Any) -> None:
    put(saver, "t", 1, {"value": value})
    found = saver.get_tuple(at("t")).checkpoint["channel_values"]["value"]
    expected = saver.serde.loads_typed(saver.serde.dumps_typed(value))
    assert (found, type(found)) == (expected, type(expected))


def _dumps_surrogates() -> bool:
    try:
        JsonPlusSerializer().dumps_typed("\ud800")
    except (TypeError, UnicodeEncodeError):
        return False
    return True


if _dumps_surrogates():

    def test_a_lone_surrogate_does_not_fail_a_save(saver: Any) -> None:
        """It comes back as the serializer gives it; upstream's JSONB refuses such a row."""
        place = put(saver, "t", 1, {"value": "bad \ud800 text"})
        saver.put_writes(place, [("value", "also \udfff")], "task")
        found = saver.get_tuple(at("t"))
        assert found.checkpoint["channel_values"]["value"].startswith("bad ")
        assert found.pending_writes[0][2].startswith("also ")


def test_metadata_with_anything_in_it_comes_back(saver: Any) -> None:
    metadata = {"source": "loop", "step": 1, "parents": {}, "who": {"a": ["\0", b"\xff"]}}
    made = checkpoint(1)
    saver.put(at("t"), made, metadata, made["channel_versions"])
    assert saver.get_tuple(at("t")).metadata["who"] == {"a": ["\0", b"\xff"]}


def test_a_value_without_a_version_is_not_lost(saver: Any) -> None:
    made = checkpoint(1, {"named": 1, "loose": "2"})
    del made["channel_versions"]["loose"]
    saver.put(at("t"), made, META, made["channel_versions"])
    assert saver.get_tuple(at("t")).checkpoint["channel_values"] == {"named": 1, "loose": "2"}


def test_the_callers_objects_are_not_changed(saver: Any) -> None:
    made = checkpoint(1, {"a": 1, "b": [2]})
    before = {**made, "channel_values": dict(made["channel_values"])}
    metadata = dict(META)
    saver.put(at("t"), made, metadata, made["channel_versions"])
    assert made == before
    assert metadata == META


def test_only_changed_channels_are_written(saver: Any, superuser: Any, schema: str) -> None:
    place = put(saver, "t", 1, {"big": "x" * 1000, "n": 1})
    for n in (2, 3):
        values = {"big": "x" * 1000, "n": n}
        versions = {"big": f"{1:032}.1", "n": f"{n:032}.{n}"}
        made = checkpoint(n, values, versions=versions)
        place = saver.put(place, made, META, {"n": versions["n"]})
    assert counts(superuser, schema) == (3, 4, 0)
    found = [one.checkpoint["channel_values"] for one in saver.list(at("t"))]
    assert [(one["n"], len(one["big"])) for one in found] == [(3, 1000), (2, 1000), (1, 1000)]


def test_a_save_that_relies_on_nothing_stored_is_stored_whole(saver: Any) -> None:
    """A caller may leave a channel out of new_versions that was never saved."""
    made = checkpoint(1, {"a": 1, "b": 2})
    saver.put(at("t"), made, META, {"a": made["channel_versions"]["a"]})
    assert saver.get_tuple(at("t")).checkpoint["channel_values"] == {"a": 1, "b": 2}


def test_state_is_stored_encrypted_and_loads_with_the_key(
    make_saver: Any, superuser: Any, schema: str
) -> None:
    class Xor:
        """A cipher that is enough to see whether anything slips past it."""

        def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
            return "xor", bytes(byte ^ 0x5A for byte in plaintext)

        def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
            return bytes(byte ^ 0x5A for byte in ciphertext)

    with make_saver(serde=EncryptedSerializer(Xor())) as saver:
        made = checkpoint(1, {"log": ["secret text"], "short": "secret"})
        metadata = {**META, "customer": "secret name"}
        place = saver.put(at("t"), made, metadata, made["channel_versions"])
        saver.put_writes(place, [("log", "secret write")], "task")
        found = saver.get_tuple(at("t"))
        assert found.checkpoint["channel_values"]["short"] == "secret"
        assert found.metadata["customer"] == "secret name"
        assert len([*saver.list(None, filter={"customer": "secret name"})]) == 1
    for suffix in ("", "_blobs", "_writes"):
        text = superuser.execute(f"SELECT t::text FROM {schema}.agent_threads{suffix} t").fetchall()
        assert text
        assert b"secret".hex() not in str(text)
        assert "secret" not in str(text)


def test_a_filter_on_metadata_means_what_it_says(saver: Any) -> None:
    for n, extra in enumerate(({"a": {"b": 1, "c": 2}}, {"a": {"b": 2}}, {"flag": True}, {})):
        made = checkpoint(n)
        saver.put(at("t"), made, {"source": "loop", "step": n, **extra}, made["channel_versions"])

    def steps(**wanted: Any) -> list[int]:
        return [found.metadata["step"] for found in saver.list(at("t"), filter=wanted)]

    assert steps(a={"b": 1}) == [0]
    assert steps(step=1) == [1]
    assert steps(step=True) == []
    assert steps(flag=1) == []
    assert steps(flag=True) == [2]
    assert steps(source="loop", missing=None) == []
    assert steps() == [3, 2, 1, 0]
    assert [*saver.list(at("t"), filter={"source": "loop"}, limit=2)][-1].metadata["step"] == 2


def test_a_long_listing_is_whole_and_in_order(saver: Any) -> None:
    """Several pages, ties across threads and namespaces, and deletes while it is read."""
    for n in range(45):
        for thread, ns in (("a", ""), ("b", ""), ("a", "sub")):
            made = checkpoint(n)
            saver.put(at(thread, ns), made, META, made["channel_versions"])
    found = [one.config["configurable"] for one in saver.list(None)]
    places = [(c["checkpoint_id"], c["thread_id"], c["checkpoint_ns"]) for c in found]
    assert len(places) == 135
    assert places == sorted(places, reverse=True)
    assert len([*saver.list(None, limit=100)]) == 100
    for one in saver.list(None):
        saver.delete_thread(one.config["configurable"]["thread_id"])
    assert [*saver.list(None)] == []


def test_eight_concurrent_saves_leave_one_checkpoint(
    app_dsn: str, schema: str, superuser: Any
) -> None:
    """With keep_checkpoints=1, whatever the order; the greatest id is the one that stays."""
    with ConnectionPool(app_dsn, min_size=8, max_size=8, kwargs={"autocommit": True}) as pool:
        saver = TenantPostgresSaver(pool, schema=schema, keep_checkpoints=1)
        saver.setup()
        for turn in range(12):
            barrier = threading.Barrier(8)
            errors: list[BaseException] = []

            def save(n: int, barrier: Any = barrier, errors: Any = errors) -> None:
                barrier.wait()
                try:
                    put(saver, "t", n)
                except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
                    errors.append(error)

            threads = [threading.Thread(target=save, args=(turn * 8 + n,)) for n in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert errors == []
            assert counts(superuser, schema)[:2] == (1, 1)
            assert saver.get_tuple(at("t")).checkpoint["id"] == checkpoint(turn * 8 + 7)["id"]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_keep_checkpoints_keeps_the_greatest_ids(
    make_saver: Any, superuser: Any, schema: str, keep: int
) -> None:
    """Also when an older one is saved late; blobs and writes go with what goes."""
    with make_saver(keep_checkpoints=keep) as saver:
        for n in (5, 1, 9, 3, 7):
            place = put(saver, "t", n)
            saver.put_writes(place, [("log", n)], "task")
        left = [one.checkpoint["channel_values"]["log"] for one in saver.list(at("t"))]
        assert left == [[9], [7], [5]][:keep]
        # The late ones' writes came after they had been pruned; everybody else's are gone.
        assert counts(superuser, schema)[:2] == (keep, keep)


def test_switching_keep_checkpoints_on_prunes_what_is_there(
    make_saver: Any, superuser: Any, schema: str
) -> None:
    with make_saver() as saver:
        for n in range(300):
            put(saver, "t", n)
    with make_saver(keep_checkpoints=2) as saver:
        put(saver, "t", 300)
    assert counts(superuser, schema) == (2, 2, 0)


def test_a_thread_is_as_old_as_its_first_checkpoint(
    make_saver: Any, superuser: Any, schema: str
) -> None:
    with make_saver(keep_checkpoints=1) as saver:
        for n in range(5):
            put(saver, "t", n)
        put(saver, "other", 100)
    rows = superuser.execute(
        f"SELECT thread_id, extract(epoch FROM born_at), extract(epoch FROM made_at) "
        f"FROM {schema}.agent_threads ORDER BY thread_id"
    ).fetchall()
    start = 1_704_067_200
    assert rows == [("other", start + 100, start + 100), ("t", start, start + 4)]


def test_a_first_checkpoint_that_was_saved_late_makes_a_thread_as_old(
    make_saver: Any, superuser: Any, schema: str
) -> None:
    """Each row that is saved takes over the earliest birth, whichever row it stands in."""
    born = f"SELECT extract(epoch FROM born_at) FROM {schema}.agent_threads ORDER BY checkpoint_id"
    start = 1_704_067_200
    with make_saver(keep_checkpoints=2) as saver:
        for n in (5, 1, 6, 7):
            put(saver, "t", n)
            *_, (newest,) = superuser.execute(born).fetchall()
            assert newest == start + (5 if n in (5, 1) else 1)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_thread_that_is_deleted_under_a_run_is_stored_whole(
    make_saver: Any, durability: str
) -> None:
    """The run saves only what it changed; the channel it did not change is there too."""
    with make_saver() as saver, make_saver() as other:
        plain_graph(saver).invoke({"kept": "by the input", "log": ["0"]}, config("t"))
        graph = plain_graph(saver, before_end=lambda: other.delete_thread("t"))
        graph.invoke({"log": ["1"]}, config("t"), durability=durability)
        values = graph.get_state(config("t")).values
        assert values["kept"] == "by the input"
        assert values["log"][-1] == "z"
        for one in saver.list(at("t")):
            assert one.checkpoint["channel_values"]["kept"] == "by the input"


def test_a_whole_checkpoint_is_one_more_save_not_a_torn_one(saver: Any) -> None:
    """Deleted between two saves of one run, by hand: nothing of it is ever half there."""
    place = put(saver, "t", 1, {"a": [1], "b": [1]})
    saver.delete_thread("t")
    made = checkpoint(2, {"a": [2], "b": [1]}, versions={"a": "2.2", "b": f"{1:032}.1"})
    saver.put(place, made, META, {"a": "2.2"})
    assert saver.get_tuple(at("t")).checkpoint["channel_values"] == {"a": [2], "b": [1]}


if HAS_DELTA:

    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    def test_a_delta_thread_that_is_deleted_under_a_run_raises_and_stores_nothing(
        make_saver: Any, superuser: Any, schema: str, durability: str
    ) -> None:
        with make_saver() as saver, make_saver() as other:
            delta_graph(saver, every=1000).invoke({"log": ["0"]}, config("t"))

            def erase(name: str) -> None:
                if name == "b":
                    other.delete_thread("t")

            graph = delta_graph(saver, every=1000, hook=erase)
            with pytest.raises(ThreadDeletedError, match="'t' was deleted"):
                graph.invoke({"log": ["1"]}, config("t"), durability=durability)
            assert counts(superuser, schema)[:2] == (0, 0)

    @pytest.mark.parametrize("every", [1, 2, 5, 1000])
    @pytest.mark.parametrize("keep", [None, 1, 2, 3])
    def test_a_delta_channel_is_rebuilt_whatever_is_pruned(
        make_saver: Any, every: int, keep: int | None
    ) -> None:
        with make_saver(keep_checkpoints=keep) as saver:
            graph = delta_graph(saver, every=every)
            expected: list[str] = []
            for turn in range(5):
                graph.invoke({"log": [f"in{turn}"]}, config("t"))
                expected += [f"in{turn}", "a", "b"]
                assert graph.get_state(config("t")).values["log"] == expected
            history = [*graph.get_state_history(config("t"))]
            kept = history[: keep or len(history)]
            assert all(
                one.values.get("log", []) == expected[: len(one.values.get("log", []))]
                for one in kept
            )
            if keep is None:
                assert len(history) == 20
            saver.prune(["t"])
            assert graph.get_state(config("t")).values["log"] == expected

    def test_history_is_read_page_by_page(saver: Any, monkeypatch: Any) -> None:
        from langgraph_ephemeral_checkpointer.tenancy import plans

        graph = delta_graph(saver, every=1000)
        for turn in range(4):
            graph.invoke({"log": [f"in{turn}"]}, config("t"))
        whole = saver.get_delta_channel_history(config=at("t"), channels=["log", "none"])
        base = super(TenantPostgresSaver, saver).get_delta_channel_history
        assert whole == base(config=at("t"), channels=["log", "none"])
        for size in (1, 2, 5):
            monkeypatch.setattr(plans, "_HISTORY_PAGE", size)
            assert (
                saver.get_delta_channel_history(config=at("t"), channels=["log", "none"]) == whole
            )
        assert saver.get_delta_channel_history(config=at("nobody"), channels=["log"]) == {
            "log": {"writes": []}
        }


def test_a_bare_connection_without_autocommit_commits(app_dsn: str, schema: str) -> None:
    """Saves and deletes are there for others at once."""
    with psycopg.connect(app_dsn) as conn, psycopg.connect(app_dsn, autocommit=True) as watch:
        saver = TenantPostgresSaver(conn, schema=schema, keep_checkpoints=1)
        other = TenantPostgresSaver(watch, schema=schema)
        for n in (1, 2):
            place = put(saver, "t", n)
            saver.put_writes(place, [("a", n)], "task")
        assert len([*other.list(None)]) == 1
        assert other.get_tuple(at("t")).pending_writes == [("task", "a", 2)]
        with pytest.raises(StorageError):
            saver.put(at("t", ns="\0"), checkpoint(3), META, {})
        assert conn.info.transaction_status == 0
        saver.delete_thread("t")
        assert [*other.list(None)] == []


def test_a_callers_transaction_stays_the_callers(app_dsn: str, schema: str) -> None:
    """What is done inside it is undone with it, and it is left without a tenant."""
    with psycopg.connect(app_dsn, autocommit=True) as conn:
        saver = TenantPostgresSaver(conn, schema=schema)
        put(saver, "t", 1)
        with conn.transaction(force_rollback=True):
            put(saver, "t", 2)
            saver.prune(["t"])
            assert len([*saver.list(None)]) == 1
            assert conn.execute(f"SELECT count(*) FROM {schema}.agent_threads").fetchone() == (0,)
        assert saver.get_tuple(at("t")).checkpoint["id"] == checkpoint(1)["id"]


def test_a_save_waits_for_a_delete_and_then_finds_its_thread_gone(
    app_dsn: str, schema: str, make_saver: Any
) -> None:
    with make_saver() as saver, psycopg.connect(app_dsn) as conn:
        place = put(saver, "t", 1, {"a": [1], "b": [1]})
        deleter = TenantPostgresSaver(conn, schema=schema)
        made = checkpoint(2, {"a": [2], "b": [1]}, versions={"a": "2.2", "b": f"{1:032}.1"})
        with conn.transaction():
            deleter.delete_thread("t")
            save = threading.Thread(target=saver.put, args=(place, made, META, {"a": "2.2"}))
            save.start()
            deadline = time.monotonic() + 10
            with psycopg.connect(app_dsn, autocommit=True) as watch:
                waiting = (
                    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                )
                while watch.execute(waiting).fetchone() == (0,):
                    assert time.monotonic() < deadline
            assert save.is_alive()
        save.join()
        assert saver.get_tuple(at("t")).checkpoint["channel_values"] == {"a": [2], "b": [1]}


def _more_to_prune(superuser: Any, schema: str, keep: int) -> set[Any]:
    """What the rule of pruning would take of the thread now."""
    rows = superuser.execute(
        "SELECT checkpoint_ns, checkpoint_id, parent_id, callers, source, run_id, channels, "
        f"versions, held, delta FROM {schema}.agent_threads WHERE thread_id = 't'"
    ).fetchall()
    thread = [Stored.read(row) for row in rows]
    return {one.key for one in thread} - newest_roots(thread, keep)


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_nothing_is_left_that_a_prune_would_take(
    make_saver: Any, superuser: Any, schema: str, keep: int
) -> None:
    """The save of a thread with subgraphs leaves what the rule of pruning leaves."""
    with make_saver(keep_checkpoints=keep) as saver:
        graph = everything_graph(saver)
        for turn in range(3):
            graph.invoke(say("ask"), config("t"))
            assert _more_to_prune(superuser, schema, keep) == set()
            graph.invoke(Command(resume=turn), config("t"))
            assert _more_to_prune(superuser, schema, keep) == set()
        named = superuser.execute(
            f"SELECT count(*) FROM {schema}.agent_threads_blobs b WHERE NOT EXISTS ("
            f"SELECT FROM {schema}.agent_threads c, unnest(c.channels, c.versions) u (n, v) "
            "WHERE c.checkpoint_ns = b.checkpoint_ns AND u.n = b.channel AND u.v = b.version)"
        )
        assert named.fetchone() == (0,)


if HAS_DELTA:

    @pytest.mark.parametrize("every", [1, 2, 5])
    @pytest.mark.parametrize("keep", [1, 2, 3])
    def test_nothing_is_left_of_a_delta_thread_that_a_prune_would_take(
        make_saver: Any, superuser: Any, schema: str, every: int, keep: int
    ) -> None:
        with make_saver(keep_checkpoints=keep) as saver:
            graph = delta_graph(saver, every=every)
            for turn in range(5):
                graph.invoke({"log": [str(turn)]}, config("t"))
                assert _more_to_prune(superuser, schema, keep) == set()


def test_a_prune_does_not_go_by_what_has_changed_since(make_saver: Any) -> None:
    """A fork that is saved between the reading and the deleting keeps what it needs."""
    with make_saver(keep_checkpoints=1) as saver, make_saver(keep_checkpoints=1) as other:
        with make_saver() as unpruned:
            first = put(unpruned, "t", 1, {"log": ["value"]})
            put(unpruned, "t", 1, config=at("t", "sub"))
            second = put(unpruned, "t", 2, config=first)
        made = checkpoint(3)
        _, plan = saver._save(second, made, META, made["channel_versions"])
        deleting = plan.send(saver._perform(next(plan)))

        rebuilt = checkpoint(4, {}, versions={"log": "9.9"})
        counted = {**META, "counters_since_delta_snapshot": {"log": [1, 1]}}
        other.put(first, rebuilt, counted, {"log": "9.9"})

        drive(_after(deleting, plan), saver._perform)
        history = saver.get_delta_channel_history(config=at("t"), channels=["log"])
        assert history["log"]["seed"] == ["value"]


def _after(step: Any, plan: Any) -> Any:
    """The rest of a plan that stands at ``step``."""
    answer = yield step
    while True:
        try:
            step = plan.send(answer)
        except StopIteration:
            return
        answer = yield step
