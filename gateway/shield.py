"""
Work that must complete although the client, or the server, is leaving.

An `await` in a `finally` block is lost under a second cancellation, and anyio's shield does not stop that; a task of its
own does. Measured: shared experiments, Litestar 2.25 with uvicorn.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_running: set[asyncio.Task[Any]] = set()


async def finish(work: Coroutine[Any, Any, Result]) -> Result:
    """
    Run *work* to its end even if the caller is cancelled while waiting for it.

    A cancelled caller still sees its CancelledError; the work goes on and `drain` waits for it at shutdown.
    """
    return await asyncio.shield(start(work))


def start(work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
    """Start *work* as a tracked task that nobody needs to wait for."""
    task = asyncio.ensure_future(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task


async def drain(within_seconds: float) -> int:
    """Wait for all tracked work; return how many tasks were still running after *within_seconds*."""
    pending = {task for task in _running if task is not asyncio.current_task()}
    if pending:
        _, pending = await asyncio.wait(pending, timeout=within_seconds)
    return len(pending)
