"""
Choose among candidates: filter, score, pick. Plain functions; the directory conducts them.

Power of two choices: of two candidates taken at random the less loaded one wins. Always taking the least loaded of all
would send a burst of many gateway processes, which all read the same scrape, to the same replica.
"""

import random
from collections.abc import Callable, Collection, Sequence

from gateway.routing.replica import TrackedReplica
from gateway.vocabulary import ReplicaId, ReplicaState

Filter = Callable[[TrackedReplica], bool]


def is_ready(candidate: TrackedReplica) -> bool:
    """Tell whether it is declared ready and found healthy."""
    return candidate.state is ReplicaState.READY


def has_room(candidate: TrackedReplica) -> bool:
    """Tell whether it is not full."""
    return not candidate.is_full


def fits(tokens: int) -> Filter:
    """Return a filter for replicas whose context window holds *tokens*."""
    return lambda candidate: candidate.replica.max_model_len >= tokens


def not_among(tried: Collection[ReplicaId]) -> Filter:
    """Return a filter that leaves out what has been tried."""
    return lambda candidate: candidate.replica.address.id not in tried


def without_failing(candidates: Sequence[TrackedReplica], now: float) -> list[TrackedReplica]:
    """
    Leave out passively ejected replicas, unless they are more than half of the pool.

    When most of a pool fails requests, the requests are more likely at fault than the replicas, and what is left could
    not carry the load anyway.
    """
    failing = sum(candidate.health.is_passively_ejected(now) for candidate in candidates)
    if failing * 2 > len(candidates):
        return list(candidates)
    return [candidate for candidate in candidates if not candidate.health.is_passively_ejected(now)]


def load_score(candidate: TrackedReplica) -> tuple[float, float]:
    """Return how loaded it is, lower is better: share of its slots in use, then of its KV cache."""
    return candidate.queue_length / candidate.replica.slots, candidate.kv_cache_usage


def pick(candidates: Sequence[TrackedReplica]) -> TrackedReplica:
    """Return the less loaded of two random *candidates*, of which there must be one at least."""
    if len(candidates) <= 2:
        pair = list(candidates)
        random.shuffle(pair)  # equals must share the work, also when there are only two
    else:
        pair = random.sample(candidates, 2)
    return min(pair, key=load_score)
