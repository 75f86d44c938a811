"""What the callbacks are told, when, and what their answers and failures do."""

from __future__ import annotations

import functools

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_ephemeral_checkpointer import (
    AsyncRequiredError,
    KeepReason,
    PolicyOverride,
    TTLPolicy,
    TTLSweeper,
)
from langgraph_ephemeral_checkpointer.testing import save_thread
from tests.support import backends

DAY = 86400.0
NOW = 1_750_000_000.0
OLD, YOUNG = NOW - 10 * DAY, NOW - 60
POLICY = TTLPolicy(idle_ttl_seconds=DAY)
EXEMPT, DEFAULT = PolicyOverride.EXEMPT, PolicyOverride.USE_DEFAULT
FALSY = [None, 0, "", [], True, "no", 1]

one_each = pytest.mark.parametrize("backend", backends.ONE_EACH, ids="-".join, indirect=True)
both_colours = pytest.mark.parametrize(
    "backend", [("memory", "sweep"), ("memory", "asweep")], ids="-".join, indirect=True
)


async def sweep(backend, policy=POLICY, **options):
    return await backend.sweep(policy, clock=lambda: NOW, **options)


class TestResolver:
    async def test_it_is_called_once_a_thread_and_its_answer_is_followed(self, backend):
        policies = {
            "strict": TTLPolicy(idle_ttl_seconds=30),
            "long": TTLPolicy(idle_ttl_seconds=100 * DAY),
            "exempt": EXEMPT,
            "default": DEFAULT,
        }
        asked = []

        async def resolver(thread_id):
            asked.append(thread_id)
            return policies[thread_id]

        for thread_id in policies:
            await backend.plant(thread_id, YOUNG if thread_id == "strict" else OLD)
        result = await sweep(
            backend, policy_resolver=backend.callback(resolver), max_deletes_per_sweep=5
        )
        assert sorted(result.deleted_thread_ids) == ["default", "strict"]
        assert sorted(asked) == sorted(policies)
        assert result.active_thread_count == 2

    @both_colours
    async def test_it_is_called_once_a_thread_also_when_the_oldest_cannot_be_deleted(self, backend):
        asked = []

        async def resolver(thread_id):
            asked.append(thread_id)
            return DEFAULT

        for n in range(20):
            await backend.plant(f"t{n:02}", OLD + n)
        result = await sweep(
            backend,
            policy_resolver=backend.callback(resolver),
            on_before_delete=lambda thread_id, *_: thread_id >= "t12",
            max_deletes_per_sweep=2,
            batch_size=1,
        )
        assert result.deleted_thread_ids == ["t12", "t13"]
        assert sorted(asked) == [f"t{n:02}" for n in range(20)]

    @both_colours
    async def test_if_it_raises_that_is_logged_and_the_global_policy_is_used(self, backend, caplog):
        async def resolver(thread_id):
            raise LookupError(thread_id)

        await backend.plant("old", OLD)
        await backend.plant("young", YOUNG)
        result = await sweep(backend, policy_resolver=backend.callback(resolver))
        assert result.deleted_thread_ids == ["old"]
        assert "policy_resolver failed for 'old'" in caplog.text

    @both_colours
    @pytest.mark.parametrize("answer", [None, False, 5, "exempt", TTLPolicy, ["x"]], ids=str)
    async def test_any_other_answer_keeps_the_thread_and_reports_it(self, backend, answer):
        async def resolver(_thread_id):
            return answer

        await backend.plant("old", OLD)
        result = await sweep(backend, policy_resolver=backend.callback(resolver))
        assert result.deleted_thread_ids == []
        assert result.kept == {"old": KeepReason.INVALID_POLICY}
        assert "policy_resolver must return" in result.errors["old"]


class TestOnBeforeDelete:
    async def test_it_is_told_thread_policy_and_reason(self, backend):
        policy = TTLPolicy(idle_ttl_seconds=DAY, hard_age_ttl_seconds=20 * DAY)
        told = []

        async def veto(*args):
            told.append(args)

        await backend.plant("idle", OLD)
        await backend.put("aged", NOW - 21 * DAY)
        await backend.put("aged", YOUNG)
        await backend.plant("young", YOUNG)
        await sweep(backend, policy, on_before_delete=backend.callback(veto))
        assert sorted(told) == [("aged", policy, "hard_age_ttl"), ("idle", policy, "idle_ttl")]

    @one_each
    async def test_only_false_vetoes_and_what_is_vetoed_is_kept_and_listed_so(self, backend):
        answers = {f"t{n}": answer for n, answer in enumerate([*FALSY, False])}

        async def veto(thread_id, _policy, _reason):
            return answers[thread_id]

        for thread_id in answers:
            await backend.plant(thread_id, OLD)
        last = f"t{len(FALSY)}"
        kept = backend.dump(last)
        result = await sweep(backend, on_before_delete=backend.callback(veto))
        assert sorted(result.deleted_thread_ids) == sorted(set(answers) - {last})
        assert result.kept == {last: KeepReason.VETOED}
        assert result.active_thread_count == 1
        assert backend.dump(last) == kept

    @one_each
    async def test_if_it_raises_that_is_logged_and_the_thread_is_kept(self, backend, caplog):
        async def veto(thread_id, _policy, _reason):
            if thread_id != "fine":
                raise {"stop": StopIteration, "io": OSError}[thread_id]("the archive is full")

        for thread_id in ("stop", "io", "fine"):
            await backend.plant(thread_id, OLD)
        result = await sweep(backend, on_before_delete=backend.callback(veto))
        assert result.deleted_thread_ids == ["fine"]
        assert result.kept == dict.fromkeys(("stop", "io"), KeepReason.CALLBACK_FAILED)
        assert "the archive is full" in result.errors["io"]
        assert backend.has("io")
        assert "on_before_delete failed for 'io'" in caplog.text

    async def test_a_dry_run_does_not_call_it(self, backend):
        await backend.plant("old", OLD)
        result = await sweep(
            backend, dry_run=True, on_before_delete=lambda *_: pytest.fail("called")
        )
        assert result.deleted_thread_ids == ["old"]

    async def test_it_may_use_the_saver(self, backend):
        """Also the only connection there is: no lock and no transaction is held meanwhile."""
        archived = {}

        async def archive(thread_id, _policy, _reason):
            where = {"configurable": {"thread_id": thread_id}}
            if backend.is_async:
                found = [one async for one in backend.saver.alist(where)]
                await backend.put("archive", NOW, text=thread_id)
            else:
                found = list(backend.saver.list(where))
                await backend.put("archive", NOW, text=thread_id)
            archived[thread_id] = len(found)

        for n in range(3):
            await backend.plant(f"t{n}", OLD)
        after = []

        async def on_after_delete(thread_id, reason):
            assert not backend.has(thread_id)
            await backend.put("journal", NOW, text=thread_id)
            after.append((thread_id, reason))

        result = await sweep(
            backend,
            on_before_delete=backend.callback(archive),
            on_after_delete=backend.callback(on_after_delete),
        )
        assert archived == {"t0": 2, "t1": 2, "t2": 2}
        assert sorted(result.deleted_thread_ids) == ["t0", "t1", "t2"]
        assert after == [(thread_id, "idle_ttl") for thread_id in result.deleted_thread_ids]
        assert backend.has("archive")
        assert backend.has("journal")


class TestOnAfterDelete:
    @one_each
    async def test_it_is_called_once_for_each_thread_really_deleted(self, backend, caplog):
        told = []

        async def on_after_delete(*args):
            told.append(args)
            raise OSError("no matter")

        for thread_id in ("a", "b", "vetoed"):
            await backend.plant(thread_id, OLD)
        await backend.plant("young", YOUNG)
        result = await sweep(
            backend,
            on_before_delete=lambda thread_id, *_: thread_id != "vetoed",
            on_after_delete=backend.callback(on_after_delete),
        )
        assert sorted(told) == [("a", "idle_ttl"), ("b", "idle_ttl")]
        assert sorted(result.deleted_thread_ids) == ["a", "b"]
        assert "on_after_delete failed" in caplog.text

    @one_each
    async def test_a_dry_run_does_not_call_it(self, backend):
        await backend.plant("old", OLD)
        await sweep(backend, dry_run=True, on_after_delete=lambda *_: pytest.fail("called"))
        assert backend.has("old")


class TestOnSweepComplete:
    @one_each
    @pytest.mark.parametrize("dry_run", [True, False])
    async def test_it_fires_once_with_the_result(self, backend, dry_run):
        results = []

        async def complete(result):
            results.append(result)

        await backend.plant("old", OLD)
        result = await sweep(backend, dry_run=dry_run, on_sweep_complete=backend.callback(complete))
        assert len(results) == 1
        assert results[0] is result
        assert (result.dry_run, result.deleted_thread_ids) == (dry_run, ["old"])
        assert result.sweep_duration_seconds > 0

    @both_colours
    async def test_its_exceptions_are_logged_and_swallowed(self, backend, caplog):
        await backend.plant("old", OLD)
        result = await sweep(backend, on_sweep_complete=lambda _: 1 / 0)
        assert result.deleted_thread_ids == ["old"]
        assert "on_sweep_complete failed" in caplog.text

    async def test_it_fires_also_after_a_sweep_that_failed(self, tmp_path):
        async with backends.open_backend("sqlite", "sweep", tmp_path, None) as backend:
            results = []
            sweeper = backend.sweeper(on_sweep_complete=results.append)
        with pytest.raises(Exception, match="closed"):
            sweeper.sweep()
        assert len(results) == 1
        assert "closed" in results[0].errors[""]


async def _async_callback(*_args):
    pytest.fail("called")


class _AsyncCallable:
    async def __call__(self, *_args):
        pytest.fail("called")


class TestColours:
    @pytest.mark.parametrize(
        "name", ["policy_resolver", "on_before_delete", "on_sweep_complete", "on_after_delete"]
    )
    @pytest.mark.parametrize(
        "callback",
        [_async_callback, functools.partial(_async_callback), _AsyncCallable()],
        ids=["function", "partial", "object"],
    )
    @pytest.mark.parametrize("backend", [("memory", "sweep")], ids="-".join, indirect=True)
    async def test_an_async_callback_under_sweep_is_a_clear_error(self, backend, name, callback):
        await backend.plant("old", OLD)
        with pytest.raises(AsyncRequiredError, match=rf"{name}.*asweep\(\)"):
            await sweep(backend, **{name: callback})
        assert backend.has("old")

    @pytest.mark.parametrize("name", ["policy_resolver", "on_before_delete"])
    @pytest.mark.parametrize("backend", [("memory", "sweep")], ids="-".join, indirect=True)
    async def test_a_hidden_coroutine_under_sweep_is_an_error_at_its_first_use(self, backend, name):
        await backend.plant("old", OLD)
        with pytest.raises(AsyncRequiredError, match="asweep"):
            await sweep(backend, **{name: lambda *args: _async_callback(*args)})
        assert backend.has("old")

    @pytest.mark.parametrize(
        "backend", [(kind, "asweep") for kind in backends.ASYNC_KINDS], ids="-".join, indirect=True
    )
    async def test_an_async_saver_under_sweep_is_an_error_at_once(self, backend):
        await backend.plant("old", OLD)
        sweeper = backend.sweeper(on_sweep_complete=lambda _: pytest.fail("called"))
        with pytest.raises(AsyncRequiredError, match=r"asweep\(\)"):
            sweeper.sweep()
        assert backend.has("old")


@both_colours
async def test_a_callback_that_sweeps_again_gets_an_error_and_no_deadlock(backend, caplog):
    sweepers = []

    async def complete(_result):
        await backend.sweep(sweepers[0])

    sweepers.append(backend.sweeper(on_sweep_complete=backend.callback(complete)))
    await backend.sweep(sweepers[0])
    assert "must not start another" in caplog.text
    await backend.sweep(sweepers[0])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"policy_resolver": "x"}, TypeError, "policy_resolver must be callable"),
        ({"on_before_delete": 5}, TypeError, "on_before_delete must be callable"),
        ({"on_sweep_complete": []}, TypeError, "on_sweep_complete must be callable"),
        ({"on_after_delete": True}, TypeError, "on_after_delete must be callable"),
        ({"clock": 5}, TypeError, "clock must be callable"),
        ({"clock": None}, TypeError, "clock must be callable"),
        ({"batch_size": 0}, ValueError, "batch_size must be >= 1"),
        ({"batch_size": True}, TypeError, "batch_size must be an int"),
        ({"max_deletes_per_sweep": -1}, ValueError, "max_deletes_per_sweep must be >= 1"),
        ({"max_deletes_per_sweep": 1.0}, TypeError, "max_deletes_per_sweep must be an int"),
        ({"safe_delete": None}, TypeError, "safe_delete must be True or False"),
        ({"enable_coordination": "no"}, TypeError, "enable_coordination must be True or False"),
        ({"strategy": "memory"}, TypeError, "strategy must be an instance of Strategy"),
    ],
)
async def test_wrong_arguments_are_refused_by_name(options, error, message):
    with pytest.raises(error, match=message):
        TTLSweeper(InMemorySaver(), POLICY, **options)


@pytest.mark.parametrize("switch", ["dry_run", "no_trash"])
@pytest.mark.parametrize("value", [None, "", 0, 1, "no"])
async def test_a_switch_of_a_sweep_that_is_neither_true_nor_false_deletes_nothing(switch, value):
    saver = InMemorySaver()
    save_thread(saver, "old", [OLD])
    sweeper = TTLSweeper(saver, POLICY)
    with pytest.raises(TypeError, match=f"{switch} must be True or False"):
        sweeper.sweep(**{switch: value})
    with pytest.raises(TypeError, match=f"{switch} must be True or False"):
        await sweeper.asweep(**{switch: value})
    assert saver.get({"configurable": {"thread_id": "old"}})


@pytest.mark.parametrize("policy", [None, 60, {"idle_ttl_seconds": 60}, TTLPolicy])
def test_a_policy_of_another_type_is_refused(policy):
    with pytest.raises(TypeError, match="policy must be a TTLPolicy"):
        TTLSweeper(InMemorySaver(), policy)


@pytest.mark.parametrize("now", [None, float("nan"), float("inf"), 10**400, "now"])
def test_a_clock_that_tells_no_time_is_an_error(now):
    with pytest.raises(ValueError, match="clock must return seconds"):
        TTLSweeper(InMemorySaver(), POLICY, clock=lambda: now).sweep()
