"""
What changed since we last looked: two counters that triggers raise, polled by every process.

A poll of one row every half second is cheaper than any message bus and cannot lose a message.
"""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.store.engine import transaction
from gateway.vocabulary import KeyId


@dataclass(frozen=True, slots=True)
class Revisions:
    """Counters that rise with every change."""

    keys: int  #: tenants, people, keys, admin credentials
    replicas: int


_STILL_VALID = text(
    """
    SELECT k.id FROM api_key k JOIN person p ON p.id = k.person_id JOIN tenant t ON t.id = k.tenant_id
    WHERE k.id = ANY(CAST(:key_ids AS text[]))
      AND k.revoked_at IS NULL AND p.disabled_at IS NULL AND t.disabled_at IS NULL
    """
)


async def read_revisions(engine: AsyncEngine) -> Revisions:
    """Return the current counters."""
    async with transaction(engine) as connection:
        row = (await connection.execute(text("SELECT keys_rev, replicas_rev FROM control_rev"))).one()
        return Revisions(keys=row.keys_rev, replicas=row.replicas_rev)


async def revoked_among(engine: AsyncEngine, key_ids: Collection[KeyId]) -> set[KeyId]:
    """Return those of *key_ids* that were revoked, or whose person or tenant was disabled. Expiry cuts no stream."""
    async with transaction(engine) as connection:
        result = await connection.execute(_STILL_VALID, {"key_ids": list(key_ids)})
        return set(key_ids) - {KeyId(key_id) for (key_id,) in result}
