"""
Follow what admins change: keys and replicas, on every process, within a second.

Polls two counters each half second and acts when one has risen. Postgres down: nothing is known to have changed, and
`open` refuses everything meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

import structlog

from gateway.errors import StoreUnavailable
from gateway.pipeline import Pipeline
from gateway.routing.directory import ReplicaDirectory
from gateway.routing.prober import Prober
from gateway.store.control import Revisions
from gateway.vocabulary import KeyId, Replica

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.5


class Follower:
    """Keeps this process's picture of keys and replicas up to date."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        directory: ReplicaDirectory,
        prober: Prober,
        forget_keys: Callable[[], None],
        forget_replica: Callable[[str], None],
        read_revisions: Callable[[], Awaitable[Revisions]],
        revoked_among: Callable[[Collection[KeyId]], Awaitable[set[KeyId]]],
        read_replicas: Callable[[], Awaitable[Sequence[Replica]]],
    ) -> None:
        self._pipeline = pipeline
        self._directory = directory
        self._prober = prober
        self._forget_keys = forget_keys
        self._forget_replica = forget_replica
        self._read_revisions = read_revisions
        self._revoked_among = revoked_among
        self._read_replicas = read_replicas
        self._seen = Revisions(keys=-1, replicas=-1)

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self.look()
            except StoreUnavailable:
                pass  # the heartbeat reports it
            except Exception:  # one bad row must not blind the process for good
                log.exception("follow_failed")
            await asyncio.sleep(POLL_SECONDS)

    async def look(self) -> None:
        """Look once, and act on what has changed."""
        now = await self._read_revisions()
        if now.keys != self._seen.keys:
            self._forget_keys()
            if running := self._pipeline.running.key_ids():
                self._pipeline.running.cut_keys(await self._revoked_among(running))
        if now.replicas != self._seen.replicas:
            for left in self._directory.refresh(await self._read_replicas()):
                self._forget_replica(left.address.base_url)
            self._prober.follow()
        self._seen = now
