"""
Which models there are and which replica answers next.

A snapshot of Postgres's replica table, refreshed when it changes, beside this process's own judgement of each replica.
Knows no people, limits or prices. Postgres down: the last snapshot stays in force, so running pools keep serving.
"""

import time
from collections.abc import Collection, Sequence

from gateway.errors import ModelNotFound, NoReplica, PoolSaturated
from gateway.routing.health import Health
from gateway.routing.picker import fits, has_room, is_ready, not_among, pick, without_failing
from gateway.routing.replica import TrackedReplica
from gateway.settings import Health as HealthSettings
from gateway.vocabulary import ModelInfo, Replica, ReplicaId, ReplicaState


class ReplicaDirectory:
    """All replicas known to this process."""

    def __init__(self, settings: HealthSettings) -> None:
        self._settings = settings
        self._tracked: dict[ReplicaId, TrackedReplica] = {}
        self._by_model: dict[str, list[TrackedReplica]] = {}
        self.has_snapshot = False

    def refresh(self, replicas: Sequence[Replica]) -> list[Replica]:
        """Take over a new snapshot; return the replicas that are in it no more, or have gone."""
        present = {replica.address.id: replica for replica in replicas}
        left = [
            tracked.replica
            for replica_id, tracked in self._tracked.items()
            if replica_id not in present or present[replica_id].state is ReplicaState.GONE
        ]
        tracked_now: dict[ReplicaId, TrackedReplica] = {}
        for replica_id, replica in present.items():
            known = self._tracked.get(replica_id)
            if known is None or known.replica.address != replica.address or _came_back(known.replica, replica):
                # A new address, or a worker that started again, is a new engine: what we knew of the old one is void.
                known = TrackedReplica(
                    replica, Health(self._settings.failures_to_eject, self._settings.successes_to_return)
                )
            known.replica = replica
            tracked_now[replica_id] = known
        self._tracked = tracked_now
        self._by_model = {}
        for tracked in tracked_now.values():
            self._by_model.setdefault(tracked.replica.model, []).append(tracked)
        self.has_snapshot = True
        return left

    def all(self) -> list[TrackedReplica]:
        """Return every replica that is not gone."""
        return [tracked for tracked in self._tracked.values() if tracked.replica.state is not ReplicaState.GONE]

    def models(self) -> list[ModelInfo]:
        """Return the models that at least one replica serves or is about to, by name."""
        return sorted(
            (self.info(name) for name, pool in self._by_model.items() if any(_is_there(item) for item in pool)),
            key=lambda info: info.name,
        )

    def info(self, model: str) -> ModelInfo:
        """
        Return what is known of *model*; its context window is the largest that a replica offers.

        Raises:
            ModelNotFound: no replica ever served it.
        """
        pool = self._by_model.get(model)
        if not pool:
            raise ModelNotFound(model)
        there = [tracked for tracked in pool if _is_there(tracked)] or pool
        ready = [tracked for tracked in there if is_ready(tracked)] or there
        largest = max(ready, key=lambda tracked: tracked.replica.max_model_len).replica
        return ModelInfo(model, largest.max_model_len, largest.tokenizer_sha256)

    def choose(self, model: str, *, tokens: int, tried: Collection[ReplicaId] = ()) -> TrackedReplica:
        """
        Return the replica of *model* that takes the next request of *tokens* tokens, prompt and completion.

        Raises:
            NoReplica: none is ready, or all that are were tried.
            PoolSaturated: some are, and all of them are full.
        """
        pool = [tracked for tracked in self._by_model.get(model, []) if is_ready(tracked)]
        candidates = [
            tracked
            for tracked in without_failing(pool, time.monotonic())
            if not_among(tried)(tracked) and fits(tokens)(tracked)
        ]
        if not candidates:
            raise NoReplica(f"No replica of the model `{model}` is ready. Please try again in a few seconds.")
        free = [tracked for tracked in candidates if has_room(tracked)]
        if not free:
            raise PoolSaturated(f"All replicas of the model `{model}` are busy. Please try again in a second.")
        return pick(free)

    def why_not_ready(self) -> list[str]:
        """Return, for `/readyz`, why no model can be served; empty when at least one replica is ready."""
        tracked = self.all()
        if any(is_ready(item) for item in tracked):
            return []
        if not tracked:
            return ["no replica is registered yet: start a worker, or register a running vLLM server"]
        return [
            f"replica {item.replica.address.name}: {item.state.value}: {item.reason or 'starting'}" for item in tracked
        ]


def _is_there(tracked: TrackedReplica) -> bool:
    return tracked.replica.state is not ReplicaState.GONE


def _came_back(before: Replica, after: Replica) -> bool:
    not_serving = {ReplicaState.GONE, ReplicaState.LOADING}
    return before.state not in not_serving and after.state in not_serving
