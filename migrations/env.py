"""
Run migrations under an advisory lock, with bounded waits.

The lock makes two gateways that start at once migrate once. `lock_timeout` makes a migration give up rather than queue
behind a long query and block everybody who queues behind *it*.
"""

import asyncio

from alembic import context
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine

from gateway.store.tables import metadata

ADVISORY_LOCK = 0x57656967_68  # "Weigh"


def migrate(connection: Connection) -> None:
    """Bring *connection*'s database to the newest revision."""
    # A session lock on this connection, released with the connection, whatever happens. Waiting for it is not bounded:
    # whoever holds it is migrating.
    connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": ADVISORY_LOCK})
    connection.execute(text("SET lock_timeout = '5s'"))
    connection.execute(text("SET statement_timeout = '15min'"))
    connection.commit()
    context.configure(
        connection=connection,
        target_metadata=metadata,
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.run_migrations()


async def run() -> None:
    """Connect and migrate."""
    engine = create_async_engine(context.config.get_main_option("sqlalchemy.url") or "", hide_parameters=True)
    async with engine.connect() as connection:
        await connection.run_sync(migrate)
    await engine.dispose()


connection = context.config.attributes.get("connection")
if connection is not None:
    migrate(connection)
else:
    asyncio.run(run())
