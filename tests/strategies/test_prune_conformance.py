"""Upstream's own conformance cases for prune, with the newest checkpoint kept."""

from __future__ import annotations

import pytest
from langgraph.checkpoint.conformance.spec import test_prune as upstream
from langgraph.checkpoint.conformance.test_utils import (
    generate_checkpoint,
    generate_config,
    generate_metadata,
)

from tests.support.backends import PRUNED_KINDS, open_place, prune

# Ours keeps every row of a subgraph call whose root is not stored, upstream the newest one.
OTHERWISE = {"test_prune_keep_latest_across_namespaces"}
CASES = [case for case in upstream.ALL_PRUNE_TESTS if case.__name__ not in OTHERWISE]


class Saver:
    """The async face that the cases use, on every saver."""

    def __init__(self, place):
        self.place, self.saver = place, place.saver

    async def _call(self, name, *args):
        if self.place.is_async:
            return await getattr(self.saver, f"a{name}")(*args)
        return getattr(self.saver, name)(*args)

    async def aput(self, *args):
        return await self._call("put", *args)

    async def aput_writes(self, *args):
        return await self._call("put_writes", *args)

    async def aget_tuple(self, *args):
        return await self._call("get_tuple", *args)

    async def alist(self, config):
        if self.place.is_async:
            async for found in self.saver.alist(config):
                yield found
        else:
            for found in self.saver.list(config):
                yield found

    async def aprune(self, thread_ids, *, strategy):
        if strategy == "delete":
            for thread_id in thread_ids:
                await self._call("delete_thread", thread_id)
        else:
            await prune(self.saver, thread_ids, 1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("kind", PRUNED_KINDS)
async def test_upstream_case(kind, case, locate):
    async with open_place(kind, locate(kind)[0]) as place:
        await case(Saver(place))


@pytest.mark.parametrize("kind", PRUNED_KINDS)
async def test_a_call_of_an_unknown_root_stays_beside_the_newest_root(kind, locate):
    async with open_place(kind, locate(kind)[0]) as place:
        saver = Saver(place)
        config = generate_config()
        thread_id = config["configurable"]["thread_id"]
        newest = {}
        for namespace in ("", "child:1", "child"):
            parent = None
            for step in range(3):
                config = generate_config(thread_id, checkpoint_ns=namespace)
                if parent:
                    config["configurable"]["checkpoint_id"] = parent
                stored = await saver.aput(
                    config, generate_checkpoint(), generate_metadata(step), {}
                )
                parent = stored["configurable"]["checkpoint_id"]
            newest[namespace] = parent
        await prune(place.saver, [thread_id], 1)
        left = [row async for row in saver.alist({"configurable": {"thread_id": thread_id}})]
        count = dict.fromkeys(newest, 0)
        for row in left:
            count[row.config["configurable"]["checkpoint_ns"]] += 1
        assert count["child:1"] == 3
        assert count[""] == 1
        for namespace, id_ in newest.items():
            found = await saver.aget_tuple(generate_config(thread_id, checkpoint_ns=namespace))
            assert found.config["configurable"]["checkpoint_id"] == id_
