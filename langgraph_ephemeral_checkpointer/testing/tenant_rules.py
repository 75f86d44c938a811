"""What a strategy that has tenants promises of them."""

from __future__ import annotations

from functools import partial

from langgraph_ephemeral_checkpointer.engine.steps import Work
from langgraph_ephemeral_checkpointer.errors import TenantRequiredError
from langgraph_ephemeral_checkpointer.strategies.capabilities import HasTenants
from langgraph_ephemeral_checkpointer.testing.bench import NOW, Bench, expect
from langgraph_ephemeral_checkpointer.testing.hands import Steps
from langgraph_ephemeral_checkpointer.testing.rule import DAY, of, rule_of

_TENANTS = ("tenant-one", "tenant-two")


def tenants_are_kept_apart(bench: Bench) -> Steps[None]:
    """Within the scope of a tenant only its own threads are seen, and deleted."""
    strategy = of(bench, HasTenants)
    for tenant in _TENANTS:
        with strategy.tenant_scope(tenant):
            expect(
                strategy.tenant == tenant and not strategy.spans_tenants,
                f"in the scope of {tenant!r} the tenant is {strategy.tenant!r}",
            )
            yield from bench.save("shared-id", NOW - DAY)
            yield from bench.save(f"of {tenant}", NOW - DAY)
    for tenant, other in (_TENANTS, _TENANTS[::-1]):
        with strategy.tenant_scope(tenant):
            page = yield Work(partial(bench.strategy.scan, None, None, 100))
            seen = sorted(facts.thread_id for facts in page.threads)
            expected = sorted(["shared-id", f"of {tenant}"])
            expect(seen == expected, f"{tenant!r} must see {expected}, sees {seen}")
            yield Work(partial(bench.strategy.delete_threads, [f"of {other}"], None))
    try:
        everyone = yield Work(strategy.tenants)
    except TenantRequiredError as error:
        bench.notes.append(f"the list of tenants was not tried: {error}")
    else:
        expect(set(_TENANTS) <= set(everyone), f"tenants() left some out: {everyone}")
    with strategy.tenant_scope(_TENANTS[0]):
        yield Work(partial(bench.strategy.delete_threads, ["shared-id", "of tenant-one"], None))
        page = yield Work(partial(bench.strategy.scan, None, None, 100))
        expect(not page.threads, f"a tenant whose threads were deleted still sees {page.threads}")
    with strategy.tenant_scope(_TENANTS[1]):
        page = yield Work(partial(bench.strategy.scan, None, None, 100))
        left = sorted(facts.thread_id for facts in page.threads)
        expect(
            left == ["of tenant-two", "shared-id"],
            f"deleting threads of one tenant left another with {left}",
        )


TENANT_RULES = (rule_of(tenants_are_kept_apart, HasTenants),)
