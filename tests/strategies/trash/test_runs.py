"""A run that was under way when its thread was deleted brings it back whole."""

from __future__ import annotations

import time

import pytest
from langgraph.types import Command

from langgraph_ephemeral_checkpointer import KeepReason, TTLPolicy, TTLSweeper
from tests.support.trash_graphs import asking_graph, config, is_whole, nested_graph, plain_graph

POLICY = TTLPolicy(idle_ttl_seconds=60)
DURABILITIES = ["sync", "async", "exit"]


def sweeper_of(saver, policy=POLICY, **options):
    """A sweeper whose clock is an hour ahead: what is saved now is idle for long."""
    options = {"grace_seconds": 600, "clock": lambda: time.time() + 3600, **options}
    return TTLSweeper(saver, policy, **options)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_run_whose_thread_is_deleted_under_it_brings_it_back(backend, durability):
    with backend.open() as saver:
        sweeper = sweeper_of(saver)
        sweeper.setup()
        plain_graph(saver).invoke({"turns": []}, config("t"))
        before = backend.rows("t")
        seen = []

        def sweep(_state):
            if not seen:
                seen.append(sweeper.sweep().deleted_thread_ids)

        graph = plain_graph(saver, sweep)
        answer = graph.invoke({"turns": []}, config("t"), durability=durability)
        assert seen == [["t"]]
        assert is_whole(answer)
        assert answer["count"] == 2
        assert graph.get_state(config("t")).values == answer
        after = backend.rows("t")
        for table, rows in before.items():
            assert set(rows) <= set(after[table])
        assert sweeper.trash() == []
        assert graph.invoke({"turns": []}, config("t"))["count"] == 3


@pytest.mark.parametrize("durability", DURABILITIES)
def test_without_the_triggers_the_same_run_leaves_half_a_thread(backend, durability):
    with backend.open() as saver:
        sweeper = sweeper_of(saver)
        sweeper.setup()
        plain_graph(saver).invoke({"turns": []}, config("t"))
        swept = []

        head = saver.get_tuple(config("t")).metadata["step"]

        def sweep(_state):
            if not swept:
                if durability == "async":  # else a late save comes back while the triggers are on
                    _wait_for_step(saver, head + 2)
                swept.append(sweeper.sweep())
                backend.unhook()

        graph = plain_graph(saver, sweep)
        graph.invoke({"turns": []}, config("t"), durability=durability)
        assert swept[0].deleted_thread_ids == ["t"]
        left = [found.parent_config for found in saver.list(config("t"))][-1]
        assert left is not None  # a parent that is not there
        if backend.name == "postgres":
            assert not is_whole(graph.get_state(config("t")).values)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("persistent", [False, True])
def test_a_run_inside_a_subgraph_brings_back_all_namespaces(backend, durability, persistent):
    with backend.open() as saver:
        sweeper = sweeper_of(saver)
        sweeper.setup()
        nested_graph(saver, persistent=persistent).invoke({"turns": []}, config("t"))
        before = backend.rows("t")
        swept = []

        def sweep(_state):
            if not swept:
                swept.append(sweeper.sweep().deleted_thread_ids)

        graph = nested_graph(saver, sweep, persistent=persistent)
        answer = graph.invoke({"turns": []}, config("t"), durability=durability)
        assert swept == [["t"]]
        assert answer["count"] == 2
        assert is_whole(graph.get_state(config("t")).values)
        for table, rows in before.items():
            assert set(rows) <= set(backend.rows("t")[table])
        if persistent:
            memory = backend.sql("SELECT count(*) FROM checkpoints WHERE checkpoint_ns = 'inner'")[
                0
            ][0]
            assert memory > 0
            seen = []
            again = nested_graph(saver, seen.append, persistent=True)
            again.invoke({"turns": []}, config("t"))
            assert seen[0]["memory"] == [0, 1]


def test_the_beginning_of_a_run_that_saves_its_root_at_its_end_is_kept(backend):
    with backend.open() as saver:
        sweeper = sweeper_of(saver)
        sweeper.setup()
        swept = []
        graph = nested_graph(saver, persistent=True)
        inner_done = graph.nodes["work"].bound.func

        def sweep_then(state):
            swept.append(sweeper.sweep())
            return inner_done(state)

        graph.nodes["work"].bound.func = sweep_then
        graph.invoke({"turns": []}, config("t"), durability="exit")
        assert swept[0].kept == {"t": KeepReason.UNFINISHED}
        assert sweeper.trash() == []
        later = sweeper_of(saver, clock=lambda: time.time() + 2 * 86_400)
        assert later.sweep().deleted_thread_ids == ["t"]


def test_a_second_question_in_a_thread_that_was_deleted_meanwhile_replaces_the_first(backend):
    with backend.open() as saver:
        sweeper = sweeper_of(saver, TTLPolicy(hard_age_ttl_seconds=60))
        sweeper.setup()
        graph = asking_graph(saver)
        graph.invoke({}, config("t"))
        swept = []

        def sweep():
            if not swept:
                swept.append(sweeper.sweep().deleted_thread_ids)

        second = asking_graph(saver, sweep).invoke(Command(resume="one"), config("t"))
        assert swept == [["t"]]
        assert second["__interrupt__"][0].value == "second?"
        done = graph.invoke(Command(resume="two"), config("t"))
        assert done["turns"] == ["one", "two"]
        assert sweeper.trash() == []


def test_a_new_conversation_on_an_expired_thread_starts_fresh(backend):
    with backend.open() as saver:
        sweeper = sweeper_of(saver)
        sweeper.setup()
        graph = plain_graph(saver)
        graph.invoke({"turns": []}, config("t"))
        assert sweeper.sweep().deleted_thread_ids == ["t"]
        for durability in DURABILITIES:
            answer = graph.invoke({"turns": []}, config("t"), durability=durability)
        assert answer["turns"] == [0, 1, 2]
        assert [entry.thread_id for entry in sweeper.trash()] == ["t"]


@pytest.mark.parametrize("step", ["update", "copy of the first"])
def test_an_update_or_a_copy_brings_the_thread_back(backend, step):
    with backend.open() as saver:
        sweeper = sweeper_of(saver)
        sweeper.setup()
        graph = plain_graph(saver)
        graph.invoke({"turns": []}, config("t"))
        before = backend.rows("t")
        loaded = list(saver.list(config("t")))
        assert sweeper.sweep().deleted_thread_ids == ["t"]
        if step == "update":
            head = loaded[0]
            child = head.checkpoint | {"id": _next_id(head.checkpoint["id"])}
            saver.put(head.config, child, {"source": "update", "step": 9, "parents": {}}, {})
        elif backend.name == "sqlite":
            return  # such a copy has no parent, and on SQLite it holds all its values itself
        else:
            some = next(
                found for found in loaded if found.checkpoint["channel_values"].get("first")
            )
            copy = some.checkpoint | {"id": _next_id(loaded[0].checkpoint["id"])}
            saver.put(config("t", checkpoint_ns=""), copy, {"source": "fork", "step": 0}, {})
        after = backend.rows("t")
        for table, rows in before.items():
            assert set(rows) <= set(after[table])
        assert sweeper.trash() == []


def test_the_writes_of_a_run_bring_the_thread_back_and_a_stranger_s_do_not(backend):
    with backend.open() as saver:
        sweeper = sweeper_of(saver)
        sweeper.setup()
        plain_graph(saver).invoke({"turns": []}, config("t"))
        before = backend.rows("t")
        head = saver.get_tuple(config("t"))
        sweeper.sweep()
        stranger = config(
            "t", checkpoint_ns="", checkpoint_id="1f000000-0000-6000-8000-000000000000"
        )
        saver.put_writes(stranger, [("turns", [9])], "task")
        assert len(sweeper.trash()) == 1
        saver.put_writes(head.config, [("turns", [9])], "task")
        assert sweeper.trash() == []
        after = backend.rows("t")
        assert after["checkpoints"] == before["checkpoints"]
        assert len(after[backend.tables[-1]]) == len(before[backend.tables[-1]]) + 2


def test_of_a_write_saved_twice_the_first_stays_and_a_special_one_is_replaced(backend):
    with backend.open() as saver:
        sweeper = sweeper_of(saver)
        sweeper.setup()
        plain_graph(saver).invoke({"turns": []}, config("t"))
        head = saver.get_tuple(config("t"))
        saver.put_writes(head.config, [("turns", ["old"])], "task")
        saver.put_writes(head.config, [("__error__", "old")], "task")
        for channel, kept in (("turns", ["old"]), ("__error__", "new")):
            assert sweeper.sweep(no_trash=False).deleted_thread_ids == ["t"]
            value = ["new"] if channel == "turns" else "new"
            saver.put_writes(head.config, [(channel, value)], "task")
            assert sweeper.trash() == []
            found = {c: v for _, c, v in saver.get_tuple(config("t")).pending_writes}
            assert found[channel] == kept
            _forget_restored(backend)


def test_a_checkpoint_saved_again_keeps_its_parent(backend):
    with backend.open() as saver:
        sweeper = sweeper_of(saver)
        sweeper.setup()
        plain_graph(saver).invoke({"turns": []}, config("t"))
        count = backend.count("t")
        head = saver.get_tuple(config("t"))
        sweeper.sweep()
        saver.put(head.parent_config, head.checkpoint, {**head.metadata, "again": True}, {})
        assert backend.count("t") == count
        again = saver.get_tuple(config("t"))
        assert again.metadata["again"] is True
        assert again.parent_config == head.parent_config
        assert again.checkpoint == head.checkpoint


def test_each_time_a_thread_is_deleted_makes_its_own_entry_and_its_runs_find_theirs(backend):
    with backend.open() as saver:
        sweeper = sweeper_of(saver)
        sweeper.setup()
        graph = plain_graph(saver)
        heads, rows = [], []
        for turns in (1, 2):
            for _ in range(turns):
                graph.invoke({"turns": []}, config("t"))
            heads.append(saver.get_tuple(config("t")))
            rows.append(backend.rows("t"))
            assert sweeper.sweep().deleted_thread_ids == ["t"]
        first, second = sweeper.trash()
        assert (first.thread_id, second.thread_id) == ("t", "t")
        assert first.generation < second.generation
        assert second.rows == sum(map(len, rows[1].values()))
        saver.put_writes(heads[0].config, [("turns", [9])], "task")
        assert sweeper.trash() == [second]
        assert backend.rows("t")["checkpoints"] == rows[0]["checkpoints"]
        # A run of the other one comes as well: then both are there, each whole.
        saver.put_writes(heads[1].config, [("turns", [9])], "task")
        assert sweeper.trash() == []
        both = sorted(rows[0]["checkpoints"] + rows[1]["checkpoints"])
        assert backend.rows("t")["checkpoints"] == both


def test_a_thread_that_came_back_is_left_alone_for_one_grace_period(backend):
    now = [time.time() + 3600]
    with backend.open() as saver:
        sweeper = sweeper_of(saver, TTLPolicy(hard_age_ttl_seconds=60), clock=lambda: now[0])
        sweeper.setup()
        plain_graph(saver).invoke({"turns": []}, config("t"))
        head = saver.get_tuple(config("t"))
        sweeper.sweep()
        saver.put_writes(head.config, [("turns", [9])], "task")
        vetoes = []
        asked = sweeper_of(
            saver,
            TTLPolicy(hard_age_ttl_seconds=60),
            clock=lambda: now[0],
            on_before_delete=lambda *args: vetoes.append(args),
        )
        for dry_run in (True, False):
            assert asked.sweep(dry_run=dry_run).kept == {"t": KeepReason.RESTORED}
        now[0] += 599
        assert asked.sweep().kept == {"t": KeepReason.RESTORED}
        assert vetoes == []
        now[0] += 2
        assert asked.sweep().deleted_thread_ids == ["t"]


def test_late_saves_in_all_tables_keep_what_was_saved_in_between(backend):
    """A run that saves into a thread id that lives again adds the old thread to the new one."""
    with backend.open() as saver:
        sweeper = sweeper_of(saver)
        sweeper.setup()
        graph = plain_graph(saver)
        graph.invoke({"turns": []}, config("t"))
        old = backend.rows("t")
        swept = []

        def meanwhile(_state):
            if not swept:
                swept.append(sweeper.sweep().deleted_thread_ids)
                graph.invoke({"turns": []}, config("t"))  # somebody begins anew
                swept.append(backend.rows("t"))

        answer = plain_graph(saver, meanwhile).invoke({"turns": []}, config("t"), durability="sync")
        assert swept[0] == ["t"]
        assert answer["count"] == 2
        for table in backend.tables:
            assert set(old[table]) | set(swept[1][table]) <= set(backend.rows("t")[table])


def _wait_for_step(saver, step):
    """Wait until a step is saved, and the writes that led to it, which are saved beside it."""
    until = time.monotonic() + 20
    while True:
        found = saver.get_tuple(config("t"))
        if found.metadata["step"] >= step and saver.get_tuple(found.parent_config).pending_writes:
            return
        assert time.monotonic() < until
        time.sleep(0.005)


def _next_id(checkpoint_id):
    head, *rest = checkpoint_id.split("-")
    return "-".join([f"{int(head, 16) + 1:08x}", *rest])


def _forget_restored(backend):
    backend.sql("DELETE FROM lgec_restored")
