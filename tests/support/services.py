"""
One Postgres and one Valkey for a whole test run, and private ones for tests that stop them.

The run's own process starts them (under xdist its controller) and hands their addresses to the workers in the
environment. The tables are migrated once into a template database; each test gets a clone of its own.
"""

import asyncio
import atexit
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import psutil
import redis

from gateway.embedded import Postgres, Valkey
from gateway.store.migrate import upgrade

POSTGRES_VARIABLE = "WEIGHBRIDGE_TEST_POSTGRES"
REDIS_VARIABLE = "WEIGHBRIDGE_TEST_REDIS"
TEMPLATE = "weighbridge_template"
REDIS_DATABASES = 64


def driver_url(url: str) -> str:
    """Return *url* as SQLAlchemy wants it."""
    return "postgresql+asyncpg://" + url.partition("://")[2]


def database_of(server_url: str, database: str) -> str:
    """Return the address of *database* on the server that *server_url* points into."""
    return server_url.rpartition("/")[0] + "/" + database


async def execute(server_url: str, statement: str) -> None:
    """Run one statement outside a transaction."""
    connection = await asyncpg.connect(server_url, timeout=30)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@dataclass
class RunServices:
    """The services of this test run, as its own process holds them."""

    home: Path
    postgres: Postgres
    valkey: Valkey

    def stop(self) -> None:
        """Stop both and remove what they wrote."""
        self.valkey.child.kill()
        self.postgres.child.kill()
        shutil.rmtree(self.home, ignore_errors=True)


def start_for_run() -> RunServices:
    """Start both services, migrate the template and put the addresses into the environment."""
    home = _new_home()
    postgres = Postgres(home, durable=False)
    valkey = Valkey(home, durable=False, databases=REDIS_DATABASES)
    services = RunServices(home, postgres, valkey)
    atexit.register(services.stop)  # when pytest itself fails before it could stop them
    valkey.start()
    postgres.start()
    asyncio.run(execute(postgres.url(), f"CREATE DATABASE {TEMPLATE}"))
    upgrade(driver_url(postgres.url(TEMPLATE)))
    os.environ[POSTGRES_VARIABLE] = postgres.url()
    os.environ[REDIS_VARIABLE] = valkey.url()
    return services


@asynccontextmanager
async def cloned_database(server_url: str, name: str) -> AsyncIterator[str]:
    """Yield the address (postgresql+asyncpg://…) of a migrated, empty database; drop it afterwards."""
    await execute(server_url, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    try:
        yield driver_url(database_of(server_url, name))
    finally:
        await execute(server_url, f"DROP DATABASE {name} WITH (FORCE)")


def emptied_redis(server_url: str, number: int) -> str:
    """Return the address of database *number*, emptied."""
    url = database_of(server_url, str(number))
    with redis.Redis.from_url(url, protocol=2) as client:
        client.flushdb()
    return url


class PrivateService:
    """A service of one test, which may stop it, let it hang and start it again at the same address."""

    def __init__(self, server: Postgres | Valkey, url: Callable[[], str]) -> None:
        self._server = server
        self._url = url

    @property
    def url(self) -> str:
        """Return the address, the same across restarts."""
        return self._url()

    async def start(self) -> None:
        """Start the server and return once it answers; the event loop runs on meanwhile."""
        await asyncio.to_thread(self._server.prepare)
        self._server.spawn()
        await asyncio.to_thread(self._server.wait_ready)

    async def stop(self) -> None:
        """Stop the server in good order and return once it is gone."""
        await asyncio.to_thread(self._server.child.stop)

    async def kill(self) -> None:
        """Stop the server as a power cut would."""
        await asyncio.to_thread(self._server.child.kill)

    def hang(self) -> None:
        """Let the server keep its connections and answer nothing. `stop` and `kill` end it all the same."""
        self._signal(signal.SIGSTOP)

    def unhang(self) -> None:
        """Let the server go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._server.child.pid is not None:
            server = psutil.Process(self._server.child.pid)
            for process in (server, *server.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)


@asynccontextmanager
async def private_redis() -> AsyncIterator[PrivateService]:
    """Yield a running Valkey of this test's own. It persists nothing: after a restart it is empty."""
    home = _new_home()
    server = Valkey(home, durable=False)
    service = PrivateService(server, server.url)
    try:
        await service.start()
        yield service
    finally:
        server.child.kill()
        shutil.rmtree(home, ignore_errors=True)


@asynccontextmanager
async def private_postgres() -> AsyncIterator[PrivateService]:
    """Yield a running, migrated Postgres of this test's own (postgresql+asyncpg://…); data survives restarts."""
    home = _new_home()
    server = Postgres(home, durable=False)
    service = PrivateService(server, lambda: driver_url(server.url()))
    try:
        await service.start()
        await asyncio.to_thread(upgrade, service.url)
        yield service
    finally:
        await asyncio.to_thread(server.child.kill)
        shutil.rmtree(home, ignore_errors=True)


def _new_home() -> Path:
    home = Path(tempfile.mkdtemp(prefix="weighbridge-tests-"))
    home.chmod(0o711)  # Postgres runs as another user where this process is root
    return home
