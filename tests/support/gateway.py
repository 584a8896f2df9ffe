"""
A whole gateway in the test's own loop: real sockets, real Postgres, real Redis.

`RunningGateway` has one tenant, one person, one key and one admin credential from the start; more are a call away. Rows of
the ledger are read with plain SQL, so that a fault of the product's own reading cannot hide one of its writing.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import httpx
import uvicorn
from litestar import Litestar
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from uuid_utils.compat import uuid7

from gateway.app import Gateway, open_gateway
from gateway.auth.keys import KeyKind, issue
from gateway.settings import Health, Secrets, Settings, Timeouts
from gateway.vocabulary import Limits

#: probes are quick so that tests are; every other default is the product's
QUICK_HEALTH = Health(probe_interval_seconds=0.25, probe_timeout_seconds=2.0)


@dataclass(slots=True)
class Key:
    """An issued inference key and whom it belongs to."""

    text: str
    id: str
    tenant_id: UUID
    person_id: UUID


@dataclass(slots=True)
class RunningGateway:
    """One gateway process, as its clients see it."""

    gateway: Gateway
    settings: Settings
    engine: AsyncEngine
    url: str
    admin_url: str
    internal_url: str
    admin_key: str
    default_key: Key
    client: httpx.AsyncClient = field(repr=False)

    @property
    def key(self) -> str:
        """Return the text of the default key."""
        return self.default_key.text

    async def post(self, path: str, body: Any, *, key: str | None = None, **options: Any) -> httpx.Response:
        """POST JSON to the public listener."""
        headers = {"authorization": f"Bearer {key or self.key}"}
        return await self.client.post(self.url + path, json=body, headers=headers, **options)

    async def chat(self, *, key: str | None = None, **fields: Any) -> httpx.Response:
        """Ask for a chat completion."""
        return await self.post("/v1/chat/completions", chat_body(**fields), key=key)

    @asynccontextmanager
    async def stream(self, *, key: str | None = None, **fields: Any) -> AsyncIterator[httpx.Response]:
        """Ask for a streamed chat completion; leaving the block early is a client that leaves."""
        headers = {"authorization": f"Bearer {key or self.key}"}
        body = chat_body(stream=True, **fields)
        # A client of its own, so that leaving really closes the connection.
        async with httpx.AsyncClient(timeout=30) as client:
            async with client.stream("POST", self.url + "/v1/chat/completions", json=body, headers=headers) as response:
                yield response

    async def admin(self, method: str, path: str, body: Any = None, *, key: str | None = None) -> httpx.Response:
        """Call the admin listener."""
        headers = {"authorization": f"Bearer {key or self.admin_key}"}
        return await self.client.request(method, self.admin_url + path, json=body, headers=headers)

    async def readyz(self) -> httpx.Response:
        """Ask whether it is ready."""
        return await self.client.get(self.internal_url + "/readyz")

    async def register(self, base_url: str, *, model: str = "m", **fields: Any) -> str:
        """Register a replica and wait until it is ready here; return its id."""
        body = {"name": f"replica-{base_url[-5:]}", "base_url": base_url, "model": model, "max_model_len": 2048}
        answer = await self.admin("POST", "/admin/v1/replicas", body | {"slots": 64} | fields)
        assert answer.status_code == 201, answer.text
        await self.until_ready(base_url)
        return str(answer.json()["id"])

    async def until_ready(self, base_url: str) -> None:
        """Wait until this process sends traffic to the replica."""
        async with asyncio.timeout(15):
            while not any(
                item.replica.address.base_url == base_url and item.state == "ready"
                for item in self.gateway.pipeline.directory.all()
            ):
                await asyncio.sleep(0.02)

    async def ledger(self) -> list[dict[str, Any]]:
        """Return every ledger row, the oldest first."""
        return await rows(self.engine, "SELECT * FROM usage_ledger ORDER BY settled_at")

    async def settled(self, count: int = 1) -> list[dict[str, Any]]:
        """Wait until there are *count* ledger rows and nothing is open; return the rows."""
        async with asyncio.timeout(20):
            while len(found := await self.ledger()) < count or await rows(self.engine, "SELECT 1 AS x FROM inflight"):
                await asyncio.sleep(0.02)
        assert len(found) == count, found
        return found


def chat_body(**fields: Any) -> dict[str, Any]:
    """Return the body of a small chat request."""
    return {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 100} | fields


async def rows(engine: AsyncEngine, statement: str) -> list[dict[str, Any]]:
    """Return the rows of *statement* as dicts."""
    async with engine.begin() as connection:
        return [dict(row) for row in (await connection.execute(text(statement))).mappings()]


async def issue_key(engine: AsyncEngine, secrets: Secrets, *, limits: Limits | None = None, tenant: str = "t") -> Key:
    """Put a key, with its person and tenant, into the database; unlimited unless *limits* says otherwise."""
    new = issue(KeyKind.INFERENCE, secrets.derive("key-pepper"))
    limits = limits or Limits()
    async with engine.begin() as connection:
        await connection.execute(
            text("INSERT INTO tenant (id, name) VALUES (:id, :name) ON CONFLICT (name) DO NOTHING"),
            {"id": uuid7(), "name": tenant},
        )
        tenant_id = (
            await connection.execute(text("SELECT id FROM tenant WHERE name = :n"), {"n": tenant})
        ).scalar_one()
        person_id = uuid7()
        await connection.execute(
            text("INSERT INTO person (id, tenant_id, name) VALUES (:id, :tenant, :name)"),
            {"id": person_id, "tenant": tenant_id, "name": f"person {new.id}"},
        )
        await connection.execute(
            text(
                "INSERT INTO api_key (id, tenant_id, person_id, name, secret_hash, last4, expires_at,"
                " requests_per_minute, tokens_per_minute, concurrency)"
                " VALUES (:id, :tenant, :person, 'test', :hash, :last4, now() + interval '1 day', :rpm, :tpm, :conc)"
            ),
            {
                "id": new.id,
                "tenant": tenant_id,
                "person": person_id,
                "hash": new.secret_hash,
                "last4": new.last4,
                "rpm": limits.requests_per_minute,
                "tpm": limits.tokens_per_minute,
                "conc": limits.concurrency,
            },
        )
    return Key(new.text, new.id, tenant_id, person_id)


async def issue_credential(engine: AsyncEngine, secrets: Secrets, role: str = "platform_admin") -> str:
    """Put an admin credential into the database; return its text."""
    new = issue(KeyKind.ADMIN, secrets.derive("key-pepper"))
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO admin_credential (id, name, role, secret_hash, last4)"
                " VALUES (:id, 'test', :role, :hash, :last4)"
            ),
            {"id": new.id, "role": role, "hash": new.secret_hash, "last4": new.last4},
        )
    return new.text


def settings_for(database_url: str, redis_url: str, secrets: Secrets, **changes: Any) -> Settings:
    """Return settings for a test."""
    return replace(
        Settings(
            database_url=database_url,
            redis_url=redis_url,
            secrets=secrets,
            health=QUICK_HEALTH,
            timeouts=Timeouts(drain=5.0),
            database_pool=4,
        ),
        **changes,
    )


@asynccontextmanager
async def running_gateway(settings: Settings, engine: AsyncEngine) -> AsyncIterator[RunningGateway]:
    """Yield a gateway that listens on free ports and holds its lease."""
    key = await issue_key(engine, settings.secrets)
    admin_key = await issue_credential(engine, settings.secrets)
    async with open_gateway(settings) as gateway, httpx.AsyncClient(timeout=30) as client:
        servers, urls = [], []
        for app in (gateway.public, gateway.admin, gateway.internal):
            server, url, task = await _listen(app)
            servers.append((server, task))
            urls.append(url)
        running = RunningGateway(gateway, settings, engine, *urls, admin_key, key, client)
        async with asyncio.timeout(15):
            while "usage store" in (await running.readyz()).text:
                await asyncio.sleep(0.02)
        try:
            yield running
        finally:
            await client.aclose()
            for server, _ in servers:
                server.should_exit = True
            await asyncio.gather(*(task for _, task in servers))


async def _listen(app: Litestar) -> tuple[uvicorn.Server, str, "asyncio.Task[None]"]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, timeout_graceful_shutdown=10)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve([listener]))
    while not server.started:
        await asyncio.sleep(0.005)
    return server, f"http://127.0.0.1:{listener.getsockname()[1]}", task
