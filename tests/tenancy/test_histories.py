"""Saves of every kind, in any order and from several hands, against a model of what stays."""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import psycopg
import pytest

from langgraph_ephemeral_checkpointer.decisions.survivors import LeaveWholeError
from langgraph_ephemeral_checkpointer.errors import ThreadDeletedError
from langgraph_ephemeral_checkpointer.tenancy.rows import prepare_save, thread_target
from langgraph_ephemeral_checkpointer.tenancy.survival import Stored, latest_of_each, newest_roots
from tests.support.tenant_graphs import META, at, checkpoint

NAMESPACES = ("", "", "", "", "", "sub", "call:1", "call:2")


class Model:
    """What a thread has, said the plain way: rows, blobs and writes."""

    def __init__(self, keep: int | None) -> None:
        self.keep = keep
        self.rows: dict[tuple[str, str], tuple[Stored, dict[str, Any]]] = {}
        self.blobs: set[tuple[str, str, str]] = set()
        self.writes: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)

    def save(self, new: Stored, values: dict[str, Any], *, rebuilt: bool) -> None:
        ns, id_ = new.key
        if rebuilt and new.row.parent and (ns, new.row.parent) not in self.rows:
            raise ThreadDeletedError
        special = bool(new.contents.delta) or any(
            row.row.namespace or row.contents.delta for row, _ in self.rows.values()
        )
        trims = self.keep is not None and not ns
        edge = None
        if trims and not special:
            roots = sorted((i for _, i in self.rows if i != id_), reverse=True)
            edge = roots[self.keep - 1] if len(roots) >= self.keep else None
            if edge is not None and edge > id_:
                return
        self.rows[new.key] = (new, values)
        self.blobs |= {(ns, *pair) for pair in new.versions.items() if pair[0] in values}
        if edge is not None:
            self.rows = {key: row for key, row in self.rows.items() if key[1] > edge}
            for key in [key for key in self.writes if not key[0] and key[1] <= edge]:
                del self.writes[key]
            named = self._named(self.rows)
            self.blobs = {blob for blob in self.blobs if blob[0] or blob in named}
        elif trims and special:
            self.prune(lambda thread: newest_roots(thread, self.keep))

    def prune(self, rule: Any) -> None:
        try:
            kept = rule([row for row, _ in self.rows.values()])
        except LeaveWholeError:
            return
        doomed = self.rows.keys() - kept
        self.blobs -= self._named(doomed) - self._named(kept)
        for key in doomed:
            del self.rows[key]
            self.writes.pop(key, None)

    def _named(self, keys: Any) -> set[tuple[str, str, str]]:
        return {(key[0], *pair) for key in keys for pair in self.rows[key][0].versions.items()}


class History:
    """One thread, changed at random through several savers, and its model."""

    def __init__(self, savers: list[Any], whole: Any, keep: int | None, seed: int) -> None:
        self.random = random.Random(seed)
        self.savers = savers
        self.whole = whole
        self.model = Model(keep)
        self.clock = 0
        self.log: list[Any] = []
        self.kinds = (("plain", "sub"), ("plain", "sub", "delta"), ("plain",))[seed % 3]

    def step(self) -> None:
        act = self.random.choices(
            (self.save, self.write, self.delete, self.prune), (20, 4, 0.4, 0.6)
        )[0]
        act()

    def _id(self) -> int:
        if self.clock and self.random.random() < 0.25:
            return self.random.randint(max(1, self.clock - 3), self.clock)
        self.clock += 1
        return self.clock

    def save(self) -> None:
        saver = self.random.choice(self.savers)
        ns = self.random.choice(NAMESPACES) if "sub" in self.kinds else ""
        n = self._id()
        here = [id_ for space, id_ in self.model.rows if space == ns]
        parent = None
        if here and self.random.random() < 0.85:
            parent = max(here) if self.random.random() < 0.4 else self.random.choice(here)
        elif self.random.random() < 0.5:
            parent = checkpoint(self.random.randint(1, 60))["id"]
        before = self.model.rows.get((ns, parent or ""))
        names = self.random.sample("abcde", self.random.randint(0, 5))
        versions, values, changed = {}, {}, {}
        for name in names:
            if before and name in before[1] and self.random.random() < 0.6:
                versions[name], values[name] = before[0].versions[name], before[1][name]
                if self.random.random() < 0.2:
                    changed[name] = versions[name]
            else:
                versions[name] = changed[name] = f"{n}.{self.random.random()}"
                values[name] = [name, versions[name]]
        meta: Any = {**META}
        if ns.startswith("call"):
            meta["parents"] = {"": checkpoint(self.random.randint(1, self.clock))["id"]}
        if "delta" in self.kinds and self.random.random() < 0.5:
            versions["d"] = f"{n}.{self.random.random()}"
            changed["d"] = versions["d"]
            meta["counters_since_delta_snapshot"] = {"d": [1, 1]}
            if self.random.random() < 0.3:
                values["d"] = ["d", versions["d"]]
        made = checkpoint(n, values, versions=versions)
        place = at("t", ns, parent)
        wanted = prepare_save(
            saver.serde, thread_target("default", "t", place), place, made, meta, changed
        )
        self.log.append(("save", self.savers.index(saver), ns, n, parent, versions, [*values]))
        expected: type[BaseException] | None = None
        try:
            self.model.save(Stored.of(wanted), values, rebuilt=wanted.columns["rebuilt"])
        except ThreadDeletedError:
            expected = ThreadDeletedError
        if expected:
            with pytest.raises(expected):
                saver.put(place, made, meta, changed)
        else:
            saver.put(place, made, meta, changed)

    def write(self) -> None:
        saver = self.random.choice(self.savers)
        keys = [*self.model.rows, ("", checkpoint(self.clock + 1)["id"])]
        ns, id_ = self.random.choice(keys)
        task = f"task {self.random.random()}"
        self.log.append(("write", ns, id_))
        saver.put_writes(at("t", ns, id_), [("a", task)], task)
        self.model.writes[ns, id_][task] = task

    def delete(self) -> None:
        self.log.append("delete")
        self.random.choice([*self.savers, self.whole]).delete_thread("t")
        self.model.rows.clear()
        self.model.blobs.clear()
        self.model.writes.clear()

    def prune(self) -> None:
        self.log.append("prune")
        self.random.choice([*self.savers, self.whole]).prune(["t"])
        self.model.prune(latest_of_each)

    def check(self, superuser: Any, schema: str) -> None:
        table = f"{schema}.agent_threads"
        rows = superuser.execute(f"SELECT checkpoint_ns, checkpoint_id FROM {table}").fetchall()
        assert {*rows} == self.model.rows.keys(), self.log
        blobs = superuser.execute(f"SELECT checkpoint_ns, channel, version FROM {table}_blobs")
        assert {*blobs.fetchall()} == self.model.blobs, self.log
        writes = superuser.execute(
            f"SELECT checkpoint_ns, checkpoint_id, task_id FROM {table}_writes"
        ).fetchall()
        expected = {(*key, task) for key, tasks in self.model.writes.items() for task in tasks}
        assert {*writes} == expected, self.log
        for (ns, id_), (_, values) in self.model.rows.items():
            found = self.whole.get_tuple(at("t", ns, id_))
            assert found.checkpoint["channel_values"] == values, (ns, id_, self.log)


@pytest.fixture
def open_history(make_saver: Any) -> Iterator[Callable[..., History]]:
    with ExitStack() as stack:

        def opened(seed: int, keep: int | None, hands: int) -> History:
            savers = [stack.enter_context(make_saver(keep_checkpoints=keep)) for _ in range(hands)]
            return History(savers, stack.enter_context(make_saver()), keep, seed)

        yield opened


SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("keep", [None, 1, 2, 3])
def test_what_is_stored_is_what_a_plain_model_keeps(
    open_history: Any, superuser: Any, schema: str, seed: int, keep: int | None
) -> None:
    """From one process, and from two in turn; rows, blobs and writes, after every step."""
    history = open_history(seed, keep, 1 + seed % 2)
    for _ in range(40):
        history.step()
        history.check(superuser, schema)


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_so_in_and_after_transactions_of_the_callers(
    app_dsn: str, make_saver: Any, superuser: Any, schema: str, seed: int
) -> None:
    """Nested, committed and rolled back, with two savers on the one connection."""
    keep = 1 + seed % 3
    with ExitStack() as stack:
        savers = [stack.enter_context(make_saver(keep_checkpoints=keep)) for _ in range(2)]
        savers[1].conn = savers[0].conn
        whole = stack.enter_context(make_saver())
        history = History(savers, whole, keep, seed)
        history.whole = savers[1]
        for saver in savers:
            saver.setup()
        conn: psycopg.Connection[Any] = savers[0].conn

        def block(depth: int) -> None:
            before = copy.deepcopy(history.model)
            undone = history.random.random() < 0.4
            history.log.append(("begin", depth))
            with suppress(ZeroDivisionError), conn.transaction():
                for _ in range(history.random.randint(1, 4)):
                    if depth < 2 and history.random.random() < 0.3:
                        block(depth + 1)
                    else:
                        history.step()
                if undone:
                    raise ZeroDivisionError
            history.log.append(("rolled back" if undone else "committed", depth))
            if undone:
                history.model = before

        for _ in range(15):
            if history.random.random() < 0.5:
                block(0)
            else:
                history.step()
            history.check(superuser, schema)
