"""
Many small writes, few commits: gather what arrives while a statement runs, send it as the next one.

No timer: an idle ledger writes at once, a busy one in ever larger batches, and no request waits for a window to close.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """
    Gathers items and writes them in batches of at most *largest*, at most *at_once* statements at a time.

    *write* returns one result per item, in order; if it raises, every item of that batch raises the same error.
    """

    def __init__(
        self, write: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]], *, largest: int = 64, at_once: int = 2
    ) -> None:
        self._write = write
        self._largest = largest
        self._free = at_once
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._scheduled = False
        self._writes: set[asyncio.Task[None]] = set()

    async def submit(self, item: Item) -> Result:
        """Return the result of writing *item*. If the caller is cancelled, the item is written all the same."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._schedule()
        return await future

    def _schedule(self) -> None:
        if self._free and self._waiting and not self._scheduled:
            self._scheduled = True
            # Not at once: whatever else becomes ready in this turn of the loop shares the statement.
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._scheduled = False
        while self._free and self._waiting:
            batch, self._waiting = self._waiting[: self._largest], self._waiting[self._largest :]
            self._free -= 1
            task = asyncio.ensure_future(self._run(batch))
            self._writes.add(task)
            task.add_done_callback(self._writes.discard)

    async def _run(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._write([item for item, _ in batch])
        except BaseException as error:  # noqa: BLE001 - handed to every waiter, who decides
            for _, future in batch:
                if not future.done():
                    future.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
                    future.exception()  # a waiter that has been cancelled never asks: no warning about it
        else:
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)
        finally:
            self._free += 1
            self._schedule()
