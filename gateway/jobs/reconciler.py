"""
Finish what dead processes left behind: their open rows, and workers that fell silent.

Every process runs it; the statements are safe to run twice, so nobody needs to be leader for it.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from gateway.errors import StoreUnavailable
from gateway.telemetry import metrics

log = structlog.get_logger(__name__)

EVERY_SECONDS = 2.0
PARTITIONS_EVERY = 1800  #: rounds: about an hour


class Reconciler:
    """Settles orphans, expires silent workers, keeps the ledger's partitions ahead of the calendar."""

    def __init__(
        self,
        *,
        settle_orphans: Callable[[], Awaitable[int]],
        expire_silent: Callable[[], Awaitable[int]],
        ensure_partitions: Callable[[], Awaitable[None]],
    ) -> None:
        self._settle_orphans = settle_orphans
        self._expire_silent = expire_silent
        self._ensure_partitions = ensure_partitions

    async def run(self) -> None:
        """Reconcile until cancelled."""
        round_number = 0
        while True:
            try:
                settled = await self._settle_orphans()
                if settled:
                    metrics.ORPHANS_SETTLED.inc(settled)
                    log.info("orphans_settled", count=settled)
                await self._expire_silent()
                if round_number % PARTITIONS_EVERY == 0:
                    await self._ensure_partitions()
            except StoreUnavailable:
                pass  # the heartbeat reports it
            except Exception:  # a partition that cannot be made must not stop the settling
                log.exception("reconcile_failed")
            round_number += 1
            await asyncio.sleep(EVERY_SECONDS)
