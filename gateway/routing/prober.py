"""
Ask every replica how it is, all the time.

One loop per replica, so that a slow one delays nobody else's probe. How a replica is asked over HTTP is the relay's
business: *probe* is handed in. It must always return a report, whatever happened.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

from gateway.routing.directory import ReplicaDirectory
from gateway.routing.replica import TrackedReplica
from gateway.vocabulary import ProbeReport, ReplicaAddress, ReplicaState

NOT_PROBED = {ReplicaState.LOADING, ReplicaState.GONE}


class Prober:
    """Keeps one probing task for each replica of *directory*."""

    def __init__(
        self,
        directory: ReplicaDirectory,
        probe: Callable[[ReplicaAddress], Awaitable[ProbeReport]],
        interval_seconds: float,
    ) -> None:
        self._directory = directory
        self._probe = probe
        self._interval_seconds = interval_seconds
        self._loops: dict[TrackedReplica, asyncio.Task[None]] = {}

    def follow(self) -> None:
        """Start probing what is new in the directory, stop probing what has left it. Call after each refresh."""
        present = set(self._directory.all())
        for tracked in present - self._loops.keys():
            self._loops[tracked] = asyncio.create_task(self._watch(tracked))
        for tracked in self._loops.keys() - present:
            self._loops.pop(tracked).cancel()

    async def stop(self) -> None:
        """Stop all probing."""
        loops = list(self._loops.values())
        self._loops.clear()
        for loop in loops:
            loop.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*loops, return_exceptions=True)

    async def _watch(self, tracked: TrackedReplica) -> None:
        while True:
            if tracked.replica.state not in NOT_PROBED:
                tracked.observe(await self._probe(tracked.replica.address))
            # Until it has been ready once, people are waiting for it.
            pause = self._interval_seconds if tracked.health.was_up else min(self._interval_seconds, 0.25)
            await asyncio.sleep(pause * random.uniform(0.9, 1.1))  # many processes must not probe in step
