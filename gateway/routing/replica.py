"""
A replica as this process sees it: what its worker declared, how healthy it is, and how much it has to do.

The queue is estimated as the last scrape of vLLM's own counters plus what we have sent since, minus what has ended
since, and never below what we have running there: between two scrapes (2 s) a burst would otherwise all go to one
replica.
"""

import time
from dataclasses import dataclass, field

from gateway.routing.health import Health
from gateway.vocabulary import ProbeReport, Replica, ReplicaState

QUEUE_FACTOR = 2  #: a replica is full when it has this many times its slots, running and waiting


@dataclass(slots=True, eq=False)
class TrackedReplica:
    """One replica in this process's directory."""

    replica: Replica
    health: Health
    running_here: int = 0
    kv_cache_usage: float = 0.0  #: 0–1, at the last scrape
    _scraped: int = 0
    _balance: int = field(default=0)  #: begun minus ended, by us, since the last scrape

    @property
    def state(self) -> ReplicaState:
        """Return the state that counts here. Only `READY` receives traffic."""
        declared = self.replica.state
        if declared is not ReplicaState.READY or self.health.is_up:
            return declared
        return ReplicaState.EJECTED if self.health.was_up else ReplicaState.WARMING

    @property
    def reason(self) -> str | None:
        """Return why it gets no traffic, in words for an admin."""
        if self.replica.state is not ReplicaState.READY:
            return self.replica.detail or self.replica.state.value
        return self.health.reason

    @property
    def queue_length(self) -> int:
        """Return the requests running and waiting there, as well as we know."""
        return max(self.running_here, self._scraped + self._balance)

    @property
    def is_full(self) -> bool:
        """Tell whether another request would only wait."""
        return self.queue_length >= self.replica.slots * QUEUE_FACTOR

    def observe(self, report: ProbeReport) -> None:
        """Take in one probe."""
        self.health.observe(report, time.monotonic())
        if report.load is not None:
            self._scraped = report.load.running + report.load.waiting
            self._balance = 0
            self.kv_cache_usage = report.load.kv_cache_usage

    def begin(self) -> None:
        """Count one request as sent."""
        self.running_here += 1
        self._balance += 1

    def end(self) -> None:
        """Count one request as ended."""
        self.running_here -= 1
        self._balance -= 1

    def progressed(self) -> None:
        """Note that tokens arrive."""
        self.health.progressed(time.monotonic())

    def succeeded(self) -> None:
        """Note that it answered a request."""
        self.health.call_succeeded()

    def failed(self) -> None:
        """Note that it failed a request, through no fault of the client."""
        self.health.call_failed(time.monotonic())
