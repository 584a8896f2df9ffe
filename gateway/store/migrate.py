"""Bring the database to this release's tables. Many processes may try at once: an advisory lock lets one work."""

import asyncio
from importlib.resources import files

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from gateway.store.tables import metadata


def _config(database_url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    # configparser would read a percent sign of an escaped password as interpolation
    config.set_main_option("sqlalchemy.url", database_url.replace("%", "%%"))
    return config


def upgrade(database_url: str) -> None:
    """Migrate *database_url* (postgresql+asyncpg://…) to the newest revision. Must not run inside an event loop."""
    command.upgrade(_config(database_url), "head")


def newest_revision() -> str:
    """Return the revision that this release needs."""
    head = ScriptDirectory.from_config(_config("")).get_current_head()
    if head is None:
        raise RuntimeError("no migrations are packaged")
    return head


async def current_revision(engine: AsyncEngine) -> str | None:
    """Return the database's revision, or `None` when it was never migrated."""

    def read(connection: Connection) -> str | None:
        return MigrationContext.configure(connection).get_current_revision()

    async with engine.connect() as connection:
        return await connection.run_sync(read)


def _is_compared(_object: object, name: str | None, kind: str, _reflected: bool, _compare_to: object) -> bool:
    # Partitions of the ledger come and go with the months.
    return not (kind in {"table", "index"} and name is not None and name.startswith("usage_ledger_p"))


def differences(database_url: str) -> list[object]:
    """Return what differs between a migrated database and `tables.py`; empty when they agree."""

    async def compare() -> list[object]:
        def read(connection: Connection) -> list[object]:
            options = {"include_object": _is_compared, "compare_server_default": True}
            return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))

        engine = create_async_engine(database_url)
        try:
            async with engine.connect() as connection:
                return await connection.run_sync(read)
        finally:
            await engine.dispose()

    return asyncio.run(compare())
