"""
Open a request before anything is sent for it; settle it exactly once, however it ends.

Knows request ids, usage and endings; knows no replica's address and no limits. Postgres down: `open` refuses, so that
nothing is served unmetered, and `settle` keeps trying until the row is written.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence

import structlog

from gateway.errors import NotAuthenticated, StoreUnavailable
from gateway.ledger.batch import Batcher
from gateway.shield import start
from gateway.telemetry import metrics
from gateway.vocabulary import Checkpoint, Ending, OpenRow, RequestId, Settlement, Usage, UsageSource

log = structlog.get_logger(__name__)

INVALID_KEY = "Incorrect API key provided. Ask an administrator of this gateway for a valid key."
RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)  #: waits between attempts to settle; the last one repeats


class Ledger:
    """
    The bill of one gateway process.

    *open_rows*, *settle_rows* and *checkpoint_rows* are the store's statements, bound to a database and to this
    process's owner id. `lease_until` (monotonic seconds) is moved by whoever renews the lease.
    """

    def __init__(
        self,
        *,
        open_rows: Callable[[Sequence[OpenRow]], Awaitable[set[RequestId]]],
        settle_rows: Callable[[Sequence[Settlement]], Awaitable[set[RequestId]]],
        checkpoint_rows: Callable[[Sequence[Checkpoint]], Awaitable[None]],
    ) -> None:
        self.lease_until = float("-inf")
        self.unsettled: set[RequestId] = set()  #: opened, or possibly opened, and not acknowledged as settled
        self._open_rows = open_rows
        self._settle_rows = settle_rows
        self._checkpoint_rows = checkpoint_rows
        self._opens: Batcher[OpenRow, bool] = Batcher(self._write_opens)
        self._settlements: Batcher[Settlement, bool] = Batcher(self._write_settlements)

    @property
    def has_lease(self) -> bool:
        """Tell whether this process may open requests, as far as it knows itself; Postgres has the last word."""
        return time.monotonic() < self.lease_until

    async def open(self, row: OpenRow) -> None:
        """
        Write the open row of one request, durably.

        Cancelled or failed half-way, the row may exist all the same; then it is settled as not dispatched.

        Raises:
            NotAuthenticated: the key, its person or its tenant is not valid any more.
            StoreUnavailable: Postgres did not confirm, or this process's lease has run out.
        """
        if not self.has_lease:
            raise StoreUnavailable("The usage store does not answer. Please try again.")
        self.unsettled.add(row.request_id)
        try:
            granted = await self._opens.submit(row)
        except BaseException:
            start(self.settle(not_dispatched(row.request_id)))
            raise
        if granted:
            return
        self.unsettled.discard(row.request_id)
        if not self.has_lease:
            raise StoreUnavailable("The usage store does not answer. Please try again.")
        raise NotAuthenticated(INVALID_KEY)

    async def settle(self, settlement: Settlement) -> None:
        """
        Turn the open row into the ledger row; return when Postgres has confirmed it.

        Repeats until it is confirmed: the statement is idempotent, so a lost acknowledgement bills nothing twice. Call
        it through `shield.finish`, since the caller may be leaving.
        """
        for attempt in range(1_000_000):
            try:
                moved = await self._settlements.submit(settlement)
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
                continue
            if not moved and not attempt and settlement.ending is not Ending.NOT_DISPATCHED:
                # Stopped past our lease, the reconciler was first: it billed what the last checkpoint said.
                log.warning("settled_too_late", request_id=str(settlement.request_id))
            self.unsettled.discard(settlement.request_id)
            return

    async def settle_strays(self, own_rows: Collection[RequestId]) -> None:
        """
        Settle those of our old open rows that no request of ours is about.

        They come from an `open` whose acknowledgement was lost and which Postgres executed after our settlement of it.
        """
        for request_id in set(own_rows) - self.unsettled:
            await self.settle(not_dispatched(request_id))

    async def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Note how far the running requests are."""
        if checkpoints:
            await self._checkpoint_rows(checkpoints)

    async def _write_opens(self, rows: Sequence[OpenRow]) -> Sequence[bool]:
        with metrics.ledger_batch("open"):
            granted = await self._open_rows(rows)
        return [row.request_id in granted for row in rows]

    async def _write_settlements(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        with metrics.ledger_batch("settle"):
            moved = await self._settle_rows(settlements)
        return [settlement.request_id in moved for settlement in settlements]


def not_dispatched(request_id: RequestId) -> Settlement:
    """Return the settlement of a request that no replica ever saw."""
    return Settlement(request_id, Ending.NOT_DISPATCHED, Usage(), UsageSource.NONE, attempts=0)
