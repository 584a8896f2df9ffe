"""
Hold, settle and release limits in Redis.

A request is admitted in every scope (its key, its tenant) or in none, by one script that runs alone in Redis: limits do
not race, however many gateway processes share them. What it may use at most is *held* until it has ended and is then
settled to what it really used. A hold carries a lease, which its process renews; the holds of a dead process end by
themselves.

Knows limits and counts; knows nothing of replicas, prices or budgets. Redis may forget everything: what was used this
minute is then forgiven, and running requests are held again by their next renewal. Redis down or slow:
`StoreUnavailable`, nothing is served unmetered.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.admission.limits import Scope, limit_status, refusal
from gateway.admission.scripts import UNAVAILABLE, Script, ScriptRunner
from gateway.errors import InvalidSettings, StoreUnavailable
from gateway.vocabulary import Limits, LimitStatus, Principal, RequestId

LEASE_SECONDS: Final = 15.0  #: renew every 3 s: four renewals may fail before a running request is forgotten


@dataclass(frozen=True, slots=True)
class Hold:
    """What is kept aside for one running request. Whoever has it must settle or release it."""

    request_id: RequestId
    principal: Principal
    tokens: int


class Holds(Protocol):
    """Where limits are kept."""

    async def admit(self, request_id: RequestId, principal: Principal, tokens: int) -> tuple[Hold, LimitStatus]:
        """
        Take one request, one running request and *tokens* from every limit of *principal*, or nothing at all.

        Cancelled, it takes nothing, or gives back what it took.

        Raises:
            RateLimited: too many requests or tokens this minute.
            ConcurrencyReached: too many requests run.
            StoreUnavailable: the limits cannot be checked.
        """

    async def settle(self, hold: Hold, used_tokens: int) -> None:
        """
        Give *hold* back and charge *used_tokens*. Repeated, or for a hold that has ended, it has no effect.

        Raises:
            StoreUnavailable: the hold ends with its lease.
        """

    async def release(self, hold: Hold) -> None:
        """Give *hold* back: nothing was used. The request itself stays counted. Raises as `settle` does."""

    async def renew(self, holds: Sequence[Hold]) -> None:
        """Keep *holds* for another `LEASE_SECONDS`. Raises as `settle` does."""


class RedisHolds:
    """
    `Holds` in Redis (or Valkey), shared by every gateway process.

    One round trip per call, shared with whatever else is called in the same turn of the event loop.
    """

    def __init__(self, redis: Redis, timeout_seconds: float) -> None:
        self._scripts = ScriptRunner(redis, timeout_seconds)
        self._running_here: set[RequestId] = set()

    async def admit(self, request_id: RequestId, principal: Principal, tokens: int) -> tuple[Hold, LimitStatus]:
        """See `Holds.admit`."""
        hold = Hold(request_id, principal, tokens)

        async def take_back() -> None:
            await self.release(hold)

        admitted, *numbers = await self._scripts.run(
            _ADMIT,
            _keys(principal),
            (_member(hold), tokens, _LEASE_MS, *_limits(principal)),
            undo=take_back,
        )
        scopes = (
            Scope("key", principal.key_limits, *numbers[:4]),
            Scope("tenant", principal.tenant_limits, *numbers[4:]),
        )
        if not admitted:
            # The second only where doubles are not exact, above 150 million per minute, and then by a hair.
            raise refusal(scopes, tokens) or StoreUnavailable(UNAVAILABLE)
        self._running_here.add(request_id)
        return hold, limit_status(scopes)

    async def settle(self, hold: Hold, used_tokens: int) -> None:
        """See `Holds.settle`."""
        self._running_here.discard(hold.request_id)
        await self._scripts.run(
            _SETTLE,
            _keys(hold.principal),
            (_member(hold), used_tokens, _LEASE_MS, *_limits(hold.principal)),
        )

    async def release(self, hold: Hold) -> None:
        """See `Holds.release`."""
        await self.settle(hold, 0)

    async def renew(self, holds: Sequence[Hold]) -> None:
        """See `Holds.renew`."""
        running = [hold for hold in holds if hold.request_id in self._running_here]
        by_key: dict[Principal, list[str]] = defaultdict(list)
        for hold in running:
            by_key[hold.principal].append(_member(hold))
        await asyncio.gather(
            *(
                self._scripts.run(_RENEW, _keys(principal), (_LEASE_MS, *_limits(principal), *members))
                for principal, members in by_key.items()
            )
        )
        # The renewal holds again what Redis has lost, so also what was settled a moment before the renewal came.
        await asyncio.gather(*(self.release(hold) for hold in running if hold.request_id not in self._running_here))


async def check(redis: Redis) -> None:
    """
    Make sure that Redis keeps what it is told.

    Raises:
        InvalidSettings: it may evict limits when its memory is full.
        StoreUnavailable: it does not answer.
    """
    try:
        memory = await redis.info("memory")
    except (RedisError, OSError) as error:
        raise StoreUnavailable("Redis does not answer at REDIS_URL.") from error
    if memory["maxmemory"] and memory["maxmemory_policy"] != "noeviction":
        raise InvalidSettings(
            [
                f"REDIS_URL: this Redis evicts keys when its memory is full (maxmemory-policy "
                f"{memory['maxmemory_policy']}), and so would forget limits; set maxmemory-policy to noeviction"
            ]
        )


_ADMIT: Final = Script("scope.lua", "admit.lua")
_SETTLE: Final = Script("scope.lua", "settle.lua")
_RENEW: Final = Script("scope.lua", "renew.lua")
_LEASE_MS: Final = int(LEASE_SECONDS * 1000)


def _keys(principal: Principal) -> tuple[str, str, str, str]:
    """Return state and open holds of the key and of the tenant: one hash tag, so one slot of a cluster."""
    tenant = f"wb:{{{principal.tenant_id}}}"
    key = f"{tenant}:key:{principal.key_id}"
    return key, f"{key}:open", f"{tenant}:tenant", f"{tenant}:tenant:open"


def _member(hold: Hold) -> str:
    return f"{hold.request_id.hex}:{hold.tokens}"


def _limits(principal: Principal) -> tuple[int, ...]:
    return (*_numbers(principal.key_limits), *_numbers(principal.tenant_limits))


def _numbers(limits: Limits) -> tuple[int, int, int]:
    """Return the limits as the scripts take them: -1 stands for none."""
    limit_values = (limits.requests_per_minute, limits.tokens_per_minute, limits.concurrency)
    requests, tokens, concurrency = (-1 if value is None else value for value in limit_values)
    return requests, tokens, concurrency
