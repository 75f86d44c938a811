"""A save that takes the place of its parent leaves what the general way leaves, or nothing."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from langgraph_ephemeral_checkpointer.errors import StorageError, ThreadDeletedError
from langgraph_ephemeral_checkpointer.tenancy import TenantPostgresSaver
from langgraph_ephemeral_checkpointer.tenancy import statements as sql
from tests.support.relay import Calls, Relay, relay
from tests.support.tenant_graphs import META, at, checkpoint, config, plain_graph, put

NOW = 1_710_000_000.0
COUNTERS = "counters_since_delta_snapshot"


def _count_replacing(saver: Any) -> list[int]:
    """Counts the saves that go by the short statement: tried, and stored by it."""
    counts = [0, 0]
    perform = saver._perform
    short = saver.names.render(sql.SAVE_AND_REPLACE)

    def counted(step: Any) -> Any:
        answer = perform(step)
        if isinstance(step, list) and any(one.sql == short for one in step):
            counts[0] += 1
            counts[1] += answer[-1]
        return answer

    saver._perform = counted
    return counts


def _never_replacing(saver: Any) -> None:
    memory = saver._saving._memory
    learn = memory.learn_plain
    memory.learn_plain = lambda thread, alone: learn(thread, alone=False)


def _rows(superuser: Any, schema: str, table: str) -> list[Any]:
    query = "SELECT to_jsonb(t) FROM {}.{} t ORDER BY to_jsonb(t)::text"
    return [
        superuser.execute(query.format(schema, name)).fetchall()
        for name in (table, f"{table}_blobs", f"{table}_writes")
    ]


def _blob(version: str) -> list[str]:
    return [f"value of {version}"]


class Twins:
    """The same random calls to two sets of tables: one set is saved to the general way alone."""

    def __init__(self, make: Callable[..., Any], seed: int) -> None:
        self.random = random.Random(seed)
        keeps = [1, 1, (1, 3, None)[seed % 3]]
        self.hands = [[make("quick", keep), make("slow", keep)] for keep in keeps]
        for _, slow in self.hands:
            _never_replacing(slow)
        self.counts = [_count_replacing(quick) for quick, _ in self.hands]
        self.slow_counts = [_count_replacing(slow) for _, slow in self.hands]
        self.odd = (0.0, 0.05, 0.2)[seed // 3 % 3]
        self.clock = 0
        self.last: dict[int, Any] = {}
        self.known: dict[str, dict[str, str]] = {}
        self.log: list[Any] = []

    def both(self, hand: int, call: Callable[[Any], Any]) -> Any:
        outcomes = []
        for saver in self.hands[hand]:
            try:
                outcomes.append(call(saver))
            except ThreadDeletedError:
                outcomes.append(ThreadDeletedError)
        assert outcomes[0] == outcomes[1], self.log
        return outcomes[0]

    def oddly(self) -> bool:
        return self.random.random() < self.odd

    def step(self) -> None:
        acts = (self.save, self.write, self.delete, self.prune, self.purge)
        self.random.choices(acts, (20, 6, self.odd, self.odd, self.odd))[0]()

    def save(self) -> None:
        pick = self.random
        hand = pick.randrange(3) if self.oddly() else 0
        parent = self.last.get(hand)
        if self.oddly():
            parent = pick.choice([None, *self.last.values(), checkpoint(pick.randint(1, 60))["id"]])
        n = self.clock = self.clock + 1
        if self.oddly():
            n = pick.randint(max(1, n - 3), n)
        before = self.known.get(parent or "", {})
        names = pick.sample("abcdef", pick.randint(0, 4))
        versions = {name: v for name, v in before.items() if pick.random() < 0.7}
        changed = {name: f"{n:032}.{pick.random()}" for name in names}
        changed |= {name: v for name, v in versions.items() if self.oddly()}
        versions |= changed
        values = {name: _blob(version) for name, version in versions.items()}
        if self.oddly() and values:  # has a version, and no value any more
            del values[pick.choice([*values])]
        if self.oddly():  # has a value, and no version
            values["loose"] = ["loose"]
        meta: Any = {**META, "step": n, "run_id": f"run {pick.randint(1, 3)}"}
        ns = ""
        if pick.random() < self.odd / 10:
            ns = pick.choice(["sub", "call:1"])
            meta["parents"] = {"": parent or ""}
        if pick.random() < self.odd / 10:
            meta[COUNTERS] = {"a": [1, 1]}
        made = checkpoint(n, values, versions=versions)
        self.log.append((hand, ns, n, parent, versions, changed, [*values]))
        stored = self.both(hand, lambda one: one.put(at("t", ns, parent), made, meta, changed))
        if not ns and stored is not ThreadDeletedError:
            self.last[hand] = made["id"]
            self.known[made["id"]] = {name: v for name, v in versions.items() if name in values}

    def write(self) -> None:
        ids = [*self.last.values(), checkpoint(self.clock + 1)["id"], checkpoint(self.clock)["id"]]
        place = at("t", "", self.random.choice(ids))
        task = f"task {self.random.random()}"
        self.log.append(("write", place))
        self.both(1, lambda one: one.put_writes(place, [("a", task), ("__error__", task)], task))

    def delete(self) -> None:
        hand = self.random.randrange(3)
        self.log.append(("delete", hand))
        self.both(hand, lambda one: one.delete_thread("t"))

    def prune(self) -> None:
        self.log.append("prune")
        self.both(2, lambda one: one.prune(["t"]))

    def purge(self) -> None:
        self.log.append("purge")
        self.both(2, lambda one: one.purge_messages(timedelta(1)).purged_thread_ids)


@pytest.fixture
def twins(make_saver: Any) -> Iterator[Callable[[int], Twins]]:
    with ExitStack() as stack:

        def make(table: str, keep: int | None) -> Any:
            made = make_saver(table=table, keep_checkpoints=keep, clock=lambda: NOW)
            return stack.enter_context(made)

        yield lambda seed: Twins(make, seed)


@pytest.mark.parametrize("seed", range(9))
def test_every_column_is_as_the_general_way_leaves_it(
    twins: Any, superuser: Any, schema: str, seed: int
) -> None:
    """After every step of random histories of three savers, some of them tame, some odd."""
    pair = twins(seed)
    for _ in range(60):
        pair.step()
        assert _rows(superuser, schema, "quick") == _rows(superuser, schema, "slow"), pair.log
    assert sum(count for _, count in pair.slow_counts) == 0
    assert sum(stored for _, stored in pair.counts) >= {0.0: 25, 0.05: 10}.get(pair.odd, 0)


@pytest.fixture
def two(make_saver: Any) -> Iterator[tuple[Any, Any, Any, list[int]]]:
    """A saver that will take 2 for the one checkpoint of the thread, another, and its place."""
    with make_saver(keep_checkpoints=1, clock=lambda: NOW) as saver, make_saver() as other:
        first = put(saver, "t", 1, {"a": "1", "b": 1})
        made = checkpoint(2, {"a": "1", "b": 2})
        made["channel_versions"]["a"] = checkpoint(1)["channel_versions"]["log"]
        second = saver.put(first, made, META, {"b": made["channel_versions"]["b"]})
        counts = _count_replacing(saver)
        yield saver, other, second, counts


def _third(saver: Any, place: Any, *, n: int = 3) -> Any:
    """Save another checkpoint that relies on the value of ``a``."""
    made = checkpoint(n, {"a": "1", "b": n})
    made["channel_versions"]["a"] = checkpoint(1)["channel_versions"]["log"]
    return saver.put(place, made, META, {"b": made["channel_versions"]["b"]})


def _values(saver: Any, ns: str = "") -> dict[str, Any]:
    found = saver.list(at("t", ns))
    return {one.checkpoint["id"]: one.checkpoint["channel_values"] for one in found}


def _id(n: int) -> str:
    return str(checkpoint(n)["id"])


THIRD = {_id(3): {"a": "1", "b": 3}}


def test_it_takes_the_place_of_its_parent(two: Any) -> None:
    saver, other, place, counts = two
    _third(saver, place)
    assert counts == [1, 1]
    assert _values(other) == THIRD


def test_it_does_not_where_another_checkpoint_was_saved(two: Any) -> None:
    saver, other, place, counts = two
    put(other, "t", 5, {"a": 5}, config=place)
    _third(saver, place, n=7)
    assert counts == [1, 0]
    assert _values(other) == {_id(7): {"a": "1", "b": 7}}


def test_it_does_not_where_a_subgraph_has_been(two: Any) -> None:
    saver, other, place, counts = two
    put(other, "t", 2, config=at("t", "sub"))
    _third(saver, place)
    assert counts == [1, 0]
    assert _values(other) == THIRD | {}
    assert _values(other, "sub").keys() == {_id(2)}


def test_it_does_not_where_the_parent_is_one_of_delta_channels_by_now(two: Any) -> None:
    saver, other, place, counts = two
    made = checkpoint(2, {"a": "1", "b": 2})
    made["channel_versions"]["a"] = checkpoint(1)["channel_versions"]["log"]
    other.put(at("t"), made, {**META, COUNTERS: {"b": [1, 1]}}, made["channel_versions"])
    _third(saver, place)
    assert counts == [1, 0]
    assert _values(other).keys() == {_id(3)}


def test_a_thread_whose_channel_becomes_one_of_delta_keeps_what_that_is_rebuilt_from(
    two: Any,
) -> None:
    saver, other, place, counts = two
    made = checkpoint(3, {"a": "1"}, versions={"a": f"{1:032}.1", "b": f"{3:032}.3"})
    counted = {**META, COUNTERS: {"b": [1, 1]}}
    saver.put(place, made, counted, {"b": made["channel_versions"]["b"]})
    assert counts == [0, 0]
    history = other.get_delta_channel_history(config=at("t"), channels=["b"])
    assert history["b"]["seed"] == 2


@pytest.mark.parametrize("left", ["nothing", "another version", "no value"])
def test_it_does_not_where_a_value_is_gone_that_it_relies_on(two: Any, left: str) -> None:
    """The thread was deleted, and the parent saved again without it: it is stored whole."""
    saver, other, place, counts = two
    other.delete_thread("t")
    if left != "nothing":
        made = checkpoint(2, {"a": "other", "b": 2})
        if left == "no value":
            del made["channel_values"]["a"]
            made["channel_versions"]["a"] = checkpoint(1)["channel_versions"]["log"]
        other.put(at("t"), made, META, made["channel_versions"])
    _third(saver, place)
    assert counts == [1, 0]
    assert _values(other) == THIRD


def test_it_does_not_where_it_is_older_than_its_parent(two: Any) -> None:
    saver, other, place, counts = two
    _third(saver, place, n=1)
    assert counts == [1, 0]
    assert _values(other).keys() == {_id(2)}


def test_what_is_not_named_goes_and_what_comes_early_stays(
    two: Any, superuser: Any, schema: str
) -> None:
    """Late writes of what went long ago, and values that nothing names, as in the general way."""
    saver, other, place, _ = two
    for n in (1, 2, 3):
        other.put_writes(at("t", id_=_id(n)), [("a", n)], "task")
    superuser.execute(
        f"INSERT INTO {schema}.agent_threads_blobs SELECT tenant, thread_id, checkpoint_ns, "
        f"channel, 'nobody', type, blob FROM {schema}.agent_threads_blobs LIMIT 1"
    )
    _third(saver, place)
    assert _values(other) == THIRD
    (found,) = superuser.execute(f"SELECT array_agg(version) FROM {schema}.agent_threads_blobs")
    assert {*found[0]} == {f"{1:032}.1", f"{3:032}.3"}
    writes = superuser.execute(f"SELECT checkpoint_id FROM {schema}.agent_threads_writes")
    assert writes.fetchall() == [(_id(3),)]


def test_what_a_transaction_took_back_is_no_parent(two: Any) -> None:
    saver, other, place, counts = two
    with saver.conn.transaction(force_rollback=True):
        third = _third(saver, place)
    put(saver, "t", 4, {"a": 4}, config=third)
    assert counts == [0, 0]
    assert _values(other) == {_id(4): {"a": 4}}
    with saver.conn.transaction():
        fifth = put(saver, "t", 5, {"a": 5}, config=at("t", id_=_id(4)))
        with suppress(ZeroDivisionError), saver.conn.transaction():
            put(saver, "t", 6, {"a": 6}, config=fifth)
            raise ZeroDivisionError
    put(saver, "t", 7, {"a": 7}, config=fifth)
    assert _values(other) == {_id(7): {"a": 7}}


def test_a_trigger_sees_an_insert(two: Any, superuser: Any, schema: str) -> None:
    """What others hang on the tables works as in the general way; so do columns of theirs."""
    saver, _, place, counts = two
    table = f"{schema}.agent_threads"
    superuser.execute(
        f"ALTER TABLE {table} ADD COLUMN number bigint GENERATED ALWAYS AS IDENTITY;"
        f"CREATE TABLE {schema}.log (what text);"
        f"GRANT ALL ON {schema}.log TO PUBLIC;"
        f"CREATE FUNCTION {schema}.note() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN INSERT INTO {schema}.log VALUES (TG_OP); RETURN NULL; END $$;"
        f"CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {table} "
        f"FOR EACH ROW EXECUTE FUNCTION {schema}.note()"
    )
    _third(saver, place)
    assert counts == [1, 1]
    assert superuser.execute(f"SELECT number FROM {table}").fetchall() == [(2,)]
    logged = superuser.execute(f"SELECT what FROM {schema}.log ORDER BY what").fetchall()
    assert logged == [("DELETE",), ("INSERT",)]


class Pickles:
    """A serializer that takes any text."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return "pickle", pickle.dumps(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return pickle.loads(data[1])


def test_what_cannot_be_sent_stores_nothing_and_keeps_no_lock(make_saver: Any) -> None:
    """The lock has been sent by then; the connection is as it was, and the thread is free."""
    with (
        make_saver(keep_checkpoints=1, serde=Pickles()) as saver,
        make_saver(serde=Pickles()) as other,
    ):
        place = put(saver, "t", 2, config=put(saver, "t", 1))
        other.conn.execute("SET lock_timeout = '5s'")
        counts = _count_replacing(saver)
        made = checkpoint(3, id="\ud800")
        for parent in (place, at("t")):
            with pytest.raises(StorageError, match="surrogates"):
                saver.put(parent, made, META, made["channel_versions"])
            assert saver.conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            assert saver.conn.info.pipeline_status == psycopg.pq.PipelineStatus.OFF
            assert _values(other) == {_id(2): {"log": [2]}}
            other.prune(["t"])
        put(saver, "t", 4, config=place)
        assert counts == [1, 1]
        assert _values(other) == {_id(4): {"log": [4]}}


def test_nothing_of_a_batch_is_done_where_the_last_of_it_cannot_be_sent(two: Any) -> None:
    saver, other, place, _ = two
    going = {"tenant": "default", "thread_id": "t", "ns": "", "id": _id(2)}
    delete = "DELETE FROM {checkpoints} WHERE thread_id = %(thread_id)s::text"
    batch = [
        *saver.names.lock("default", "t"),
        saver.names.hot(delete, going, fetch=False),
        saver.names.hot(sql.LOAD_ONE, {**going, "id": object()}),
    ]
    with pytest.raises(TypeError, match="no statement takes a object"):
        saver.run_plan(batch)
    assert _values(other).keys() == {_id(2)}
    _third(saver, place)
    assert _values(other) == THIRD


def test_nor_where_it_goes_by_cursors(two: Any) -> None:
    saver, other, place, _ = two
    going = {"tenant": "default", "thread_id": "t", "ns": "", "id": _id(2)}
    delete = "DELETE FROM {checkpoints} WHERE thread_id = %(thread_id)s::text"
    batch = [
        *saver.names.lock("default", "t"),
        saver.names.statement(delete, going, fetch=False),
        saver.names.statement(sql.LOAD_ONE, {**going, "id": object()}),
    ]
    with pytest.raises(StorageError, match="cannot adapt type"):
        saver.run_plan(batch)
    assert not saver.conn.closed
    assert _values(other).keys() == {_id(2)}
    _third(saver, place)
    assert _values(other) == THIRD


async def test_what_cannot_be_sent_asynchronously_stores_nothing_either(
    make_async_saver: Any, make_saver: Any
) -> None:
    async with make_async_saver(keep_checkpoints=1, serde=Pickles()) as saver:
        made = checkpoint(1)
        place = await saver.aput(at("t"), made, META, made["channel_versions"])
        made = checkpoint(2, id="\ud800")
        with pytest.raises(StorageError, match="surrogates"):
            await saver.aput(place, made, META, made["channel_versions"])
        made = checkpoint(3)
        await saver.aput(place, made, META, made["channel_versions"])
        with make_saver(serde=Pickles()) as other:
            assert _values(other) == {_id(3): {"log": [3]}}


@pytest.fixture
def wire(app_dsn: str) -> Iterator[Relay]:
    with relay(app_dsn) as made:
        yield made


def test_the_saves_of_a_graph_take_the_place_of_their_parents(wire: Relay, schema: str) -> None:
    """One round trip each, also of a thread that another process went on with meanwhile."""
    with (
        TenantPostgresSaver.from_conn_string(wire.dsn, schema=schema, keep_checkpoints=1) as one,
        TenantPostgresSaver.from_conn_string(wire.dsn, schema=schema, keep_checkpoints=1) as two,
    ):
        graphs = [plain_graph(one), plain_graph(two)]
        graphs[0].invoke({"kept": "k", "log": ["0"]}, config("t"), durability="sync")
        counts = _count_replacing(one)
        calls = Calls(one, wire)
        for turn in range(4):
            graphs[0].invoke({"log": [str(turn)]}, config("t"), durability="sync")
        assert calls.trips_of_puts == calls.puts == counts[0] == counts[1] > 8
        for turn in range(4):
            before = wire.trips
            graphs[1].invoke({"log": [str(turn)]}, config("t"), durability="sync")
            calls.others += wire.trips - before
            graphs[0].invoke({"log": [str(turn)]}, config("t"), durability="sync")
        assert calls.trips_of_puts == calls.puts
        assert counts[0] == counts[1] > 16
        assert graphs[0].get_state(config("t")).values["kept"] == "k"


def test_two_runs_at_once_do_not_go_on_guessing(make_saver: Any) -> None:
    """Each goes on from its own checkpoint, which the other's save has just pushed out."""
    with make_saver(keep_checkpoints=1) as one, make_saver(keep_checkpoints=1) as other:
        counts = [_count_replacing(one), _count_replacing(other)]
        places = [put(one, "t", 1)] * 2
        for n in range(2, 40):
            saver = (one, other)[n % 2]
            places[n % 2] = put(saver, "t", n, config=places[n % 2])
        tried = sum(count for count, _ in counts)
        assert tried <= 3
        place = places[39 % 2]
        for n in range(40, 44):
            place = put(other, "t", n, config=place)
        assert counts[1][1] >= 2


@pytest.mark.parametrize("keeps", [(1, 1), (1, 3)])
def test_nothing_is_ever_torn_between_runs_at_once(
    make_saver: Any, superuser: Any, schema: str, keeps: tuple[int, int]
) -> None:
    """Runs, writes, deletes and purges of four savers on two threads: what is named is there."""
    errors: list[BaseException] = []
    stop = threading.Event()
    numbers = iter(range(1, 100_000))
    taking = threading.Lock()

    def number() -> int:
        with taking:
            return next(numbers)

    def run(saver: Any, pick: random.Random) -> None:
        thread = pick.choice("xy")
        found = saver.get_tuple(at(thread))
        place = found.config if found else at(thread)
        versions = dict(found.checkpoint["channel_versions"]) if found else {}
        if not versions:
            versions = {name: f"{number()}.{pick.random()}" for name in "abc"}
            changed = dict(versions)
        for _ in range(pick.randint(1, 5)):
            n = number()
            if found:
                changed = {name: f"{n}.{pick.random()}" for name in pick.sample("abc", 1)}
                versions |= changed
            values = {name: _blob(version) for name, version in versions.items()}
            made = checkpoint(n, values, versions=dict(versions))
            found = place = saver.put(place, made, META, changed)
            saver.put_writes(place, [("a", n)], f"task {n}")

    def work(saver: Any, seed: int) -> None:
        pick = random.Random(seed)
        try:
            for _ in range(60):
                if stop.is_set():
                    return
                act = pick.random()
                if act < 0.05:
                    saver.delete_thread(pick.choice("xy"))
                elif act < 0.1:
                    saver.purge_messages(timedelta(1))
                else:
                    run(saver, pick)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test shows it
            errors.append(error)
            stop.set()

    with ExitStack() as stack:
        savers = [stack.enter_context(make_saver(keep_checkpoints=keeps[n % 2])) for n in range(4)]
        savers[0].setup()
        watcher = stack.enter_context(make_saver())
        counts = [_count_replacing(saver) for saver in savers]
        hands = [threading.Thread(target=work, args=(s, n)) for n, s in enumerate(savers)]
        for hand in hands:
            hand.start()
        while any(hand.is_alive() for hand in hands):
            for one in watcher.list(None):
                named = one.checkpoint["channel_versions"]
                expected = {name: _blob(version) for name, version in named.items()}
                if one.checkpoint["channel_values"] != expected:
                    errors.append(AssertionError(one))
                    stop.set()
        for hand in hands:
            hand.join()
        assert errors == []
        assert sum(stored for _, stored in counts) > 20
        # A last save by each thread's newest leaves what it names, and nothing else.
        for thread in "xy":
            put(savers[0], thread, number(), {"a": 1})
    left = superuser.execute(
        f"SELECT (SELECT count(*) FROM {schema}.agent_threads), "
        f"(SELECT count(*) FROM {schema}.agent_threads_blobs)"
    ).fetchone()
    assert left == (2, 2)
