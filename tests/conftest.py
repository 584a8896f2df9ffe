"""Fixtures of every test: a database, a Redis and secrets of its own, on real servers that the run starts itself."""

import itertools
import os
from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.settings import Secrets
from gateway.store.engine import create_engine
from tests.support import services

_database_numbers = itertools.count()
_running: list[services.RunServices] = []


def pytest_configure(config: pytest.Config) -> None:
    """Start the services before xdist starts its workers, which find the addresses in their environment."""
    is_controller = not hasattr(config, "workerinput") and bool(config.getoption("tx", default=None))
    if is_controller and not config.getoption("collectonly"):
        _running.append(services.start_for_run())


def pytest_unconfigure() -> None:
    """Stop what this process started, also after Ctrl-C."""
    while _running:
        _running.pop().stop()
        for variable in (services.POSTGRES_VARIABLE, services.REDIS_VARIABLE):
            os.environ.pop(variable, None)


@pytest.fixture(scope="session")
def _services() -> None:
    """Make sure that the services run: without xdist they start with the first test that needs them."""
    if services.POSTGRES_VARIABLE not in os.environ:
        _running.append(services.start_for_run())


@pytest.fixture
async def database_url(_services: None) -> AsyncIterator[str]:
    """Yield the address (postgresql+asyncpg://…) of a migrated database that this test alone uses."""
    name = f"test_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}_{os.getpid()}_{next(_database_numbers)}"
    async with services.cloned_database(os.environ[services.POSTGRES_VARIABLE], name) as url:
        yield url


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """Yield an engine on this test's database."""
    engine = create_engine(database_url)
    yield engine
    await engine.dispose()


@pytest.fixture
def redis_url(_services: None) -> str:
    """Return the address of an empty Redis database that no other running test uses."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return services.emptied_redis(os.environ[services.REDIS_VARIABLE], int(worker) % services.REDIS_DATABASES)


@pytest.fixture
def secrets() -> Secrets:
    """Return a root secret of this test's own."""
    return Secrets(os.urandom(32))
