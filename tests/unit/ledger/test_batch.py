"""Many small writes become few statements, and nobody gets another's result."""

import asyncio
from collections.abc import Sequence

import pytest

from gateway.ledger.batch import Batcher


async def test_what_arrives_while_a_statement_runs_shares_the_next() -> None:
    """An idle batcher writes at once, a busy one in larger batches; no timer."""
    sizes: list[int] = []
    gate = asyncio.Event()

    async def write(items: Sequence[int]) -> Sequence[int]:
        sizes.append(len(items))
        if len(sizes) == 1:
            await gate.wait()
        return [item * 10 for item in items]

    batcher: Batcher[int, int] = Batcher(write, largest=64, at_once=1)
    first = asyncio.ensure_future(batcher.submit(0))
    await asyncio.sleep(0.01)
    others = [asyncio.ensure_future(batcher.submit(number)) for number in range(1, 31)]
    await asyncio.sleep(0.01)
    gate.set()

    assert await asyncio.gather(first, *others) == [number * 10 for number in range(31)]
    assert sizes == [1, 30]


async def test_a_failed_statement_fails_its_own_batch_only() -> None:
    """The error reaches everybody who was in that statement, and the batcher goes on."""
    fail = [True]

    async def write(items: Sequence[int]) -> Sequence[int]:
        if fail.pop() if fail else False:
            raise OSError("gone")
        return items

    batcher: Batcher[int, int] = Batcher(write)
    results = await asyncio.gather(batcher.submit(1), batcher.submit(2), return_exceptions=True)

    assert all(isinstance(result, OSError) for result in results)
    assert await batcher.submit(3) == 3


async def test_an_item_is_written_although_its_caller_was_cancelled() -> None:
    """A settlement whose request has been cancelled must reach the ledger all the same."""
    written: list[int] = []

    async def write(items: Sequence[int]) -> Sequence[int]:
        await asyncio.sleep(0.01)
        written.extend(items)
        return items

    batcher: Batcher[int, int] = Batcher(write)
    caller = asyncio.ensure_future(batcher.submit(7))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await batcher.submit(8)

    assert written == [7, 8]
