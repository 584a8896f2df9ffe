"""
Which gateway processes live. A lease on Postgres's clock is the proof; whose lease ended has lost its open rows.
"""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.store.engine import transaction
from gateway.vocabulary import OwnerId

_RENEW = text(
    """
    INSERT INTO gateway_instance (owner, lease_until, host, version)
    VALUES (:owner, now() + make_interval(secs => :lease_seconds), :host, :version)
    ON CONFLICT (owner) DO UPDATE SET lease_until = excluded.lease_until
    """
)

# An instance that still has open rows must stay known until they are settled.
_FORGET = text(
    """
    DELETE FROM gateway_instance g
    WHERE (g.owner = :owner OR g.lease_until < now() - interval '1 hour')
      AND NOT EXISTS (SELECT FROM inflight i WHERE i.owner = g.owner)
    """
)

_COUNT = text("SELECT count(*) FROM gateway_instance WHERE lease_until > now()")


async def renew(engine: AsyncEngine, owner: OwnerId, *, lease_seconds: float, host: str, version: str) -> None:
    """Say that *owner* lives for another *lease_seconds*; the first call registers it."""
    async with transaction(engine) as connection:
        await connection.execute(
            _RENEW, {"owner": owner, "lease_seconds": lease_seconds, "host": host, "version": version}
        )


async def forget(engine: AsyncEngine, owner: OwnerId) -> None:
    """Remove *owner*, and instances dead for an hour, unless they have open rows."""
    async with transaction(engine) as connection:
        await connection.execute(_FORGET, {"owner": owner})


async def count_alive(engine: AsyncEngine) -> int:
    """Return how many gateway processes hold a lease."""
    async with transaction(engine) as connection:
        return int((await connection.execute(_COUNT)).scalar_one())
