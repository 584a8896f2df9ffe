"""
One pool of Postgres connections per process, and what each connection promises.

Every statement is bounded by the server (`statement_timeout`) and every wait for a connection by the pool, so that a
hung Postgres costs a caller seconds and never the event loop. Drivers' errors are translated at this border: the rest of the
code sees `StoreUnavailable`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from gateway.errors import StoreUnavailable

STATEMENT_TIMEOUT_MS = 2_000
REPORT_TIMEOUT_MS = 30_000


def create_engine(
    database_url: str, *, pool: int = 10, statement_timeout_ms: int = STATEMENT_TIMEOUT_MS
) -> AsyncEngine:
    """Return an engine for *database_url* (postgresql+asyncpg://…); nothing connects before its first use."""
    return create_async_engine(
        database_url,
        pool_size=pool,
        max_overflow=0,
        pool_timeout=2.0,
        pool_recycle=1800,
        pool_pre_ping=False,  # costs a round trip per use; a dead connection shows as StoreUnavailable once
        hide_parameters=True,
        connect_args={
            "timeout": 3.0,
            "command_timeout": statement_timeout_ms / 1000 + 1,
            "server_settings": {
                "application_name": "weighbridge",
                "statement_timeout": str(statement_timeout_ms),
                "lock_timeout": "1000",
                "idle_in_transaction_session_timeout": "5000",
                "timezone": "UTC",
                # A gateway's few statements are planned once; generated plans for arrays differ little by value.
                "jit": "off",
            },
        },
    )


@asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """
    Yield a connection inside one transaction, committed at the end.

    Raises:
        StoreUnavailable: Postgres cannot be reached, did not answer in time, or went away.
    """
    try:
        async with engine.begin() as connection:
            yield connection
    except SQLAlchemyError as error:
        if is_unavailable(error):
            raise StoreUnavailable("The usage store does not answer. Please try again.") from error
        raise
    except (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.PostgresConnectionError) as error:
        raise StoreUnavailable("The usage store does not answer. Please try again.") from error


def is_unavailable(error: SQLAlchemyError) -> bool:
    """Tell whether *error* means that Postgres could not do the work, rather than that the work was wrong."""
    if isinstance(error, OperationalError | InterfaceError | PoolTimeout):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    sqlstate = getattr(error.orig, "sqlstate", None) or ""
    # 08 connection, 53 resources, 57 operator intervention (timeout, shutdown), 55P03 lock not available
    return sqlstate[:2] in {"08", "53", "57"} or sqlstate in {"55P03", "40001", "40P01"}
