"""
What a living process does each second: renew its lease, write checkpoints, keep its holds.

In one loop on purpose: a process too busy to checkpoint must also stop claiming to be alive. Postgres down: the lease runs
out, new requests are refused, running streams go on and are settled when it is back.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import structlog

from gateway.errors import StoreUnavailable
from gateway.ledger.open_settle import Ledger
from gateway.pipeline import Pipeline
from gateway.settings import Lease
from gateway.telemetry import metrics
from gateway.vocabulary import RequestId

log = structlog.get_logger(__name__)

HOLDS_EVERY = 3  #: beats between two renewals of the holds in Redis, whose lease is five times that
SWEEP_EVERY = 10  #: beats between two looks for open rows of ours that nobody knows
STRAY_AFTER_SECONDS = 30.0


class Heartbeat:
    """The beat of one process. *renew_lease* and *own_rows* are the store's, bound to this process's owner id."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        ledger: Ledger,
        lease: Lease,
        renew_lease: Callable[[], Awaitable[None]],
        renew_holds: Callable[[Sequence[object]], Awaitable[None]],
        own_rows: Callable[[float], Awaitable[set[RequestId]]],
    ) -> None:
        self._pipeline = pipeline
        self._ledger = ledger
        self._lease = lease
        self._renew_lease = renew_lease
        self._renew_holds = renew_holds
        self._own_rows = own_rows

    async def run(self) -> None:
        """Beat until cancelled."""
        beat = 0
        while True:
            began = time.monotonic()
            try:
                await self._renew_lease()
                # Counted from before the statement was sent: Postgres's own count can only end later.
                self._ledger.lease_until = began + self._lease.seconds
                await self._ledger.checkpoint(self._pipeline.running.checkpoints())
                if beat % SWEEP_EVERY == 0:
                    await self._ledger.settle_strays(await self._own_rows(STRAY_AFTER_SECONDS))
            except StoreUnavailable:
                metrics.STORE_UNAVAILABLE.labels("postgres").inc()
                log.warning("lease_not_renewed", running=len(self._pipeline.running))
            try:
                if beat % HOLDS_EVERY == 0:
                    await self._renew_holds(self._pipeline.running.holds())
            except StoreUnavailable:
                metrics.STORE_UNAVAILABLE.labels("redis").inc()
            beat += 1
            await asyncio.sleep(max(0.05, self._lease.renew_seconds - (time.monotonic() - began)))
