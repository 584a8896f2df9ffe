"""The services that the tests and `weighbridge up` start for themselves."""

import asyncpg
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisGone
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.store.migrate import current_revision, newest_revision
from tests.support.services import private_postgres, private_redis


async def test_each_test_has_a_migrated_database(engine: AsyncEngine) -> None:
    """A test starts with this release's tables, all empty."""
    async with engine.connect() as connection:
        tenants = await connection.scalar(text("SELECT count(*) FROM tenant"))

    assert await current_revision(engine) == newest_revision()
    assert tenants == 0


async def test_redis_keeps_every_limit(redis_url: str) -> None:
    """Valkey never evicts: a limit that was evicted is a limit that was never there."""
    async with Redis.from_url(redis_url, protocol=3, decode_responses=True) as client:
        policy = await client.config_get("maxmemory-policy")

        assert await client.dbsize() == 0
        assert policy == {"maxmemory-policy": "noeviction"}


async def test_a_private_postgres_keeps_its_data_and_address_across_a_restart() -> None:
    """What was committed before a stop is there after the start, at the same address."""
    async with private_postgres() as service:
        url = service.url.replace("+asyncpg", "")
        connection = await asyncpg.connect(url)
        await connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
        await connection.close()

        await service.stop()
        with pytest.raises(OSError, match="Connect"):
            await asyncpg.connect(url)
        await service.start()

        connection = await asyncpg.connect(url)
        assert await connection.fetchval("SELECT one FROM kept") == 1
        await connection.close()


async def test_a_private_redis_that_stopped_refuses_and_one_that_hangs_says_nothing() -> None:
    """Tests can have both ways of failing, and recover from both."""
    async with private_redis() as service, Redis.from_url(service.url, protocol=3, socket_timeout=0.2) as client:
        assert await client.ping()

        service.hang()
        with pytest.raises(Exception, match=r"[Tt]imeout"):
            await client.ping()
        service.unhang()
        assert await client.ping()

        await service.stop()
        with pytest.raises(RedisGone):
            await client.ping()
        await service.start()
        assert await client.ping()


async def test_a_private_postgres_that_hangs_keeps_its_connections_and_says_nothing() -> None:
    """A hung Postgres is not a stopped one: whoever is connected waits, and gets its answer when it goes on."""
    async with private_postgres() as service:
        connection = await asyncpg.connect(service.url.replace("+asyncpg", ""))

        service.hang()
        with pytest.raises(TimeoutError):
            await connection.fetchval("SELECT 1", timeout=0.3)
        service.unhang()

        assert await connection.fetchval("SELECT 1", timeout=30) == 1
        await connection.close()
