"""The statements that decide what is billed, against a real Postgres."""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from uuid_utils.compat import uuid7

from gateway.store import instances, ledger
from gateway.vocabulary import (
    Checkpoint,
    Ending,
    Endpoint,
    KeyId,
    OpenRow,
    OwnerId,
    PersonId,
    RequestId,
    Settlement,
    TenantId,
    Usage,
    UsageSource,
)

OWNER = OwnerId(UUID(int=1))
TENANT = TenantId(UUID(int=2))
PERSON = PersonId(UUID(int=3))
KEY = KeyId("abcdefghijkl")


@pytest.fixture
async def key(engine: AsyncEngine) -> Callable[[str], Awaitable[None]]:
    """Put one tenant, person and key there, and a living owner; return a way to change them."""

    async def execute(statement: str) -> None:
        async with engine.begin() as connection:
            await connection.execute(text(statement))

    await execute(f"INSERT INTO tenant (id, name) VALUES ('{TENANT}', 't')")
    await execute(f"INSERT INTO person (id, tenant_id, name) VALUES ('{PERSON}', '{TENANT}', 'p')")
    await execute(
        "INSERT INTO api_key (id, tenant_id, person_id, name, secret_hash, last4, expires_at) "
        f"VALUES ('{KEY}', '{TENANT}', '{PERSON}', 'k', 'x', 'last', now() + interval '1 day')"
    )
    await instances.renew(engine, OWNER, lease_seconds=60, host="h", version="v")
    return execute


def row() -> OpenRow:
    """Return an open row for a new request."""
    return OpenRow(RequestId(uuid7()), TENANT, PERSON, KEY, "m", Endpoint.CHAT_COMPLETIONS, 100)


def settlement(request_id: RequestId, ending: Ending = Ending.OK) -> Settlement:
    """Return the settlement of a request that used 10 + 5 tokens."""
    return Settlement(request_id, ending, Usage(10, 5, 3), UsageSource.FINAL, 1, "r1", 0.25)


async def ledger_rows(engine: AsyncEngine) -> list[tuple[object, ...]]:
    """Return what was billed."""
    async with engine.begin() as connection:
        result = await connection.execute(
            text("SELECT request_id, prompt_tokens, completion_tokens, ending, usage_source FROM usage_ledger")
        )
        return [tuple(item) for item in result]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE api_key SET revoked_at = now()",
        "UPDATE api_key SET expires_at = now()",
        "UPDATE person SET disabled_at = now()",
        "UPDATE tenant SET disabled_at = now()",
        "UPDATE gateway_instance SET lease_until = now()",
        "DELETE FROM gateway_instance",
        f"UPDATE api_key SET tenant_id = '{TENANT}' WHERE false",
    ],
)
async def test_open_asks_postgres_whether_the_key_is_valid(
    engine: AsyncEngine, key: Callable[[str], Awaitable[None]], change: str
) -> None:
    """Whatever a cache believes: an invalid key, a disabled tenant or a lapsed lease opens nothing."""
    await key(change)
    opened = row()

    granted = await ledger.open_rows(engine, OWNER, [opened])

    assert granted == (set() if "WHERE false" not in change else {opened.request_id})


async def test_open_does_not_lend_a_key_to_another_tenant(
    engine: AsyncEngine, key: Callable[[str], Awaitable[None]]
) -> None:
    """The row's tenant is the key's tenant, or there is no row."""
    foreign = OpenRow(RequestId(uuid7()), TenantId(UUID(int=99)), PERSON, KEY, "m", Endpoint.COMPLETIONS, 1)

    assert await ledger.open_rows(engine, OWNER, [foreign]) == set()


async def test_settling_again_bills_nothing(engine: AsyncEngine, key: Callable[[str], Awaitable[None]]) -> None:
    """A lost acknowledgement is repeated, by one process or by two at once: one row."""
    opened = row()
    await ledger.open_rows(engine, OWNER, [opened])

    moved = await asyncio.gather(*(ledger.settle_rows(engine, [settlement(opened.request_id)]) for _ in range(5)))

    assert sum(len(ids) for ids in moved) == 1
    assert await ledger_rows(engine) == [(opened.request_id, 10, 5, "ok", "final")]


async def test_what_was_never_opened_cannot_be_billed(
    engine: AsyncEngine, key: Callable[[str], Awaitable[None]]
) -> None:
    """The open row is the one right to bill."""
    assert await ledger.settle_rows(engine, [settlement(RequestId(uuid7()))]) == set()
    assert await ledger_rows(engine) == []


async def test_orphans_are_billed_from_their_checkpoint(
    engine: AsyncEngine, key: Callable[[str], Awaitable[None]]
) -> None:
    """A killed process's streams cost what its last checkpoint said; what it never dispatched costs nothing."""
    dispatched, undispatched = row(), row()
    await ledger.open_rows(engine, OWNER, [dispatched, undispatched])
    await ledger.checkpoint_rows(engine, OWNER, [Checkpoint(dispatched.request_id, Usage(10, 4))])
    await ledger.checkpoint_rows(engine, OWNER, [Checkpoint(dispatched.request_id, Usage(10, 2))])
    assert await ledger.settle_orphans(engine, 5.0) == 0

    await key("UPDATE gateway_instance SET lease_until = now() - interval '6 seconds'")

    assert await ledger.settle_orphans(engine, 5.0) == 2
    assert await ledger.settle_orphans(engine, 5.0) == 0
    assert set(await ledger_rows(engine)) == {
        (dispatched.request_id, 10, 4, "gateway_lost", "checkpoint"),
        (undispatched.request_id, 0, 0, "not_dispatched", "none"),
    }
    assert await ledger.settle_rows(engine, [settlement(dispatched.request_id)]) == set()


async def test_a_row_finds_its_month(engine: AsyncEngine, key: Callable[[str], Awaitable[None]]) -> None:
    """Rows of this month are in this month's partition, not in the default one."""
    opened = row()
    await ledger.ensure_partitions(engine)
    await ledger.open_rows(engine, OWNER, [opened])
    await ledger.settle_rows(engine, [settlement(opened.request_id)])

    async with engine.begin() as connection:
        partition = (await connection.execute(text("SELECT tableoid::regclass::text FROM usage_ledger"))).scalar_one()
        expected = (
            await connection.execute(text("SELECT 'usage_ledger_p' || to_char(now() AT TIME ZONE 'UTC', 'YYYY_MM')"))
        ).scalar_one()
    assert partition == expected
