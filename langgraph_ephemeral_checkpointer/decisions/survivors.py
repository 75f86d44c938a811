"""What must survive when a thread is trimmed to its newest checkpoints.

The rule is written once, as a generator that knows nothing of any storage: it is given
where each checkpoint of one thread stands (:class:`Row`), asks for what is inside the
few checkpoints where that matters (:class:`Need`, answered with :class:`Contents`), and
returns what survives. So a backend reads no more than it must, and many threads can be
asked in one statement. :func:`survivors_of` runs it where the data is at hand.

Four things survive: the newest N of the root namespace; for each of them the row that
a replay would load in every persistent subgraph; the ancestors a ``DeltaChannel`` of any
of those is rebuilt from; and every subgraph call that belongs to a checkpoint that stays.
Each is a function of its own here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from langgraph_ephemeral_checkpointer.langgraph_names import (
    CALL_MARK,
    ONE_STEP_CHANNELS,
    ONE_STEP_PREFIXES,
    ROOT,
)

Key: TypeAlias = tuple[str, str]
"""A checkpoint within its thread: (namespace, id)."""


class Row(NamedTuple):
    """Where one checkpoint stands in its thread; nothing of its state.

    Attributes:
        namespace: The ``checkpoint_ns``.
        id: The ``checkpoint_id``.
        parent: The ``parent_checkpoint_id``.
        source: ``metadata["source"]``.
        callers: ``metadata["parents"]``: the checkpoints, by namespace, whose steps made
            the subgraph call this row belongs to. The root's own is under ``""``.
    """

    namespace: str
    id: str
    parent: str | None = None
    source: str | None = None
    callers: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Contents:
    """What is inside one checkpoint, as far as the rule needs it.

    Attributes:
        parent: The ``parent_checkpoint_id``.
        stored: Channels whose value is stored at this checkpoint.
        unstored: Channels that have a version here but no stored value.
        delta: Channels this checkpoint shows to be delta channels: it counts their
            updates, or holds a snapshot of them.
        all_delta: The thread is marked as using delta channels without naming them.
        sends_parent: The parent, where the saver reads this checkpoint's pending sends
            from the parent's writes (formats before 4 on Postgres).
    """

    parent: str | None = None
    stored: frozenset[str] = frozenset()
    unstored: frozenset[str] = frozenset()
    delta: frozenset[str] = frozenset()
    all_delta: bool = False
    sends_parent: str | None = None


@dataclass(frozen=True, slots=True)
class Need:
    """A request for contents: of single checkpoints, or of every one in some namespaces."""

    keys: frozenset[Key] = frozenset()
    namespaces: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Survivors:
    """What stays. A checkpoint that is in neither of the two goes.

    Attributes:
        kept: The ids that stay, by namespace; an empty set means the namespace goes.
        whole: Namespaces of which everything stays, also rows that were never listed.
    """

    kept: Mapping[str, frozenset[str]]
    whole: frozenset[str]


class LeaveWholeError(Exception):
    """It cannot be established what of this thread must survive, so all of it has to."""


Survival: TypeAlias = Generator[Need, Mapping[Key, Contents] | None, Survivors | None]


def survival(rows: Iterable[Row], keep: int) -> Survival:
    """Decide what survives a trim of one thread to its newest root checkpoints.

    Args:
        rows: Every checkpoint of the thread. Where it has no namespace but the root's,
            the newest ``keep + 1`` are enough.
        keep: How many of the newest root checkpoints to keep, at least 1.

    Yields:
        What has to be known of some checkpoints' contents. The answer may be None where no
        ancestor is needed for any of them, whatever is inside: where :func:`may_be_rebuilt`
        would deny it for each, and none has a ``sends_parent``.

    Returns:
        What survives, or None where nothing is to be trimmed.

    Raises:
        LeaveWholeError: If it cannot be established what must survive.
    """
    spaces: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        spaces[row.namespace].append(row)
    roots = sorted(spaces.pop(ROOT, ()), key=lambda row: row.id)
    if len(roots) <= keep:
        return None
    newest = newest_roots(roots, keep)
    kept = {ROOT: {row.id for row in newest}}
    bounds = replay_bounds(newest) if spaces else set()
    for namespace, members in spaces.items():
        if not is_call(namespace):
            kept[namespace] = replay_rows([row.id for row in members], bounds)

    wanted = frozenset((space, id_) for space, ids in kept.items() for id_ in ids)
    answer = yield Need(keys=wanted)
    if answer is not None:
        known = dict(answer)
        _require(wanted, known)
        suspects = frozenset(space for space, id_ in wanted if may_be_rebuilt(known[space, id_]))
        if suspects:
            known.update((yield Need(namespaces=suspects)) or {})
            _require(wanted, known)
            inside: dict[str, dict[str, Contents]] = defaultdict(dict)
            for (space, id_), contents in known.items():
                inside[space][id_] = contents
            for space in suspects:
                kept[space] |= delta_ancestors(kept[space], inside[space])
        for space, ids in kept.items():
            ids |= pending_sends_parents(known[space, id_] for id_ in set(ids))

    root_ids = {row.id for row in roots}
    whole: set[str] = set()
    for namespace, members in spaces.items():
        if is_call(namespace):
            if call_stays(members, root_ids, kept):
                whole.add(namespace)
            else:
                kept[namespace] = set()
    return Survivors({space: frozenset(ids) for space, ids in kept.items()}, frozenset(whole))


def survivors_of(
    rows: Iterable[Row], read: Callable[[Need], Mapping[Key, Contents]], keep: int
) -> Survivors | None:
    """Run :func:`survival` where ``read`` can answer at once; arguments and errors as there."""
    plan = survival(rows, keep)
    try:
        need = next(plan)
        while True:
            need = plan.send(read(need))
    except StopIteration as end:
        found: Survivors | None = end.value
        return found


def is_call(namespace: str) -> bool:
    """Whether a namespace holds one call of a subgraph, and no state that outlives it.

    LangGraph puts the task's id behind a ``:``. A subgraph compiled with
    ``checkpointer=True`` is stored under its bare name instead, call after call.
    """
    return CALL_MARK in namespace


def newest_roots(roots: Sequence[Row], keep: int) -> Sequence[Row]:
    """Return the newest root checkpoints: those with the greatest ids, given in that order."""
    return roots[-keep:]


def replay_bounds(newest: Iterable[Row]) -> set[str]:
    """Return the ids below which a replay of these checkpoints looks in every subgraph.

    It is the checkpoint's own id, or its parent's if it was made by ``update_state`` (also
    as a copy), because it is younger than what its parent's step left in the subgraphs.
    The parent need not be stored any more; both are kept, whichever a LangGraph uses.
    """
    bounds: set[str] = set()
    for row in newest:
        bounds.add(row.id)
        if row.source in ("update", "fork") and row.parent:
            bounds.add(row.parent)
    return bounds


def replay_rows(ids: Iterable[str], bounds: Iterable[str]) -> set[str]:
    """Return the rows of a persistent subgraph that stay.

    They are the newest, which the next run loads, and the newest below each bound, which a
    replay does. Keeping the newest alone lets replays run on a state from their future.
    """
    ordered = sorted(ids)
    found = {ordered[-1]} if ordered else set()
    for bound in bounds:
        if at := bisect_left(ordered, bound):
            found.add(ordered[at - 1])
    return found


def call_stays(
    rows: Iterable[Row], roots: AbstractSet[str], kept: Mapping[str, AbstractSet[str]]
) -> bool:
    """Whether the rows of one subgraph call stay.

    A call goes with the root checkpoint whose step made it. It stays when that one is
    not stored (runs save in the background, so a call can be there first; with durability
    ``exit`` it may never be) and when no row names one.

    A call made from inside a persistent subgraph also stays with the row that made it:
    when the root moves on by ``update_state`` while the call waits for an answer, the
    resumed subgraph goes on in the same call although that still names the old root.

    Args:
        rows: The rows of the call's namespace.
        roots: The ids of all root checkpoints, before the trim.
        kept: What stays of the root and of the persistent namespaces.
    """
    callers: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for namespace, caller in row.callers.items():
            callers[namespace].add(caller)
    named = callers.get(ROOT, set())
    if not named or not named <= roots:
        return True
    return any(not ids.isdisjoint(kept.get(space, ())) for space, ids in callers.items())


def delta_ancestors(ids: Iterable[str], namespace: Mapping[str, Contents]) -> set[str]:
    """Return the ancestors that delta channels of some checkpoints are rebuilt from.

    A delta channel is stored at few checkpoints. Elsewhere it is rebuilt from the nearest
    ancestor that holds a value and from the writes on the way down, that ancestor's
    included. Which channels are delta channels is taken from all checkpoints of the
    namespace: after a field changed its kind, the kept ones alone do not tell.

    Args:
        ids: The checkpoints that have to load.
        namespace: The contents of every checkpoint of the namespace, by id.

    Raises:
        LeaveWholeError: If an ancestor is missing before a stored value, or the beginning of the
            channel, is found.
    """
    channels = frozenset().union(*(contents.delta for contents in namespace.values()))
    everything = any(contents.all_delta for contents in namespace.values())
    found: set[str] = set()
    for id_ in ids:
        start = namespace[id_]
        missing = {
            channel
            for channel in start.unstored
            if channel in channels or (everything and not _lives_one_step(channel))
        }
        seen = {id_}
        at, parent = start, start.parent
        while missing and parent is not None and parent not in seen:
            if parent not in namespace:
                # A trim in the middle of the thread's first run takes what came before the
                # channel's first write: below a checkpoint that does not name the channel
                # nothing was written to it.
                missing &= at.stored | at.unstored
                if not missing:
                    break
                raise LeaveWholeError(
                    f"the delta channels {sorted(missing)} of checkpoint {id_} are rebuilt from "
                    f"checkpoint {parent}, which is not stored"
                )
            seen.add(parent)
            at = namespace[parent]
            missing -= at.stored
            parent = at.parent
        found |= seen
    return found


def pending_sends_parents(contents: Iterable[Contents]) -> set[str]:
    """Return the parents whose pending sends are read with these checkpoints (old formats)."""
    return {inside.sends_parent for inside in contents if inside.sends_parent is not None}


def freed_versions(
    gone: Iterable[tuple[str, Any]], kept: Iterable[tuple[str, Any]]
) -> set[tuple[str, Any]]:
    """Return the (channel, version) pairs that only checkpoints that went did name.

    A version that no checkpoint names is not among them: a run may be about to save one
    that does.
    """
    return set(gone) - set(kept)


def may_be_rebuilt(contents: Contents) -> bool:
    """Whether some channel here may be a delta channel that ancestors hold the value of."""
    return any(
        channel in contents.delta or not _lives_one_step(channel) for channel in contents.unstored
    )


def _lives_one_step(channel: str) -> bool:
    # Nearly every checkpoint lists some of these without a value: no reason to read on.
    return channel in ONE_STEP_CHANNELS or channel.startswith(ONE_STEP_PREFIXES)


def _require(keys: Iterable[Key], known: Mapping[Key, Contents]) -> None:
    for namespace, id_ in keys:
        if (namespace, id_) not in known:
            raise LeaveWholeError(
                f"checkpoint {id_} of namespace {namespace!r} went away while it was being read"
            )
