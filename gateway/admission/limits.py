"""
The arithmetic of limits: who fits, who waits for how long, and what the response headers say. Pure.

Rates follow the generic cell rate algorithm in its "continuous-state leaky bucket" form (ITU-T I.371, annex A; the same
decisions as the form with a theoretical arrival time). A *level* rises by what is used and drains at the limit's rate;
what fits below the limit is admitted, so a full minute's worth may come as one burst. Levels are kept in units of
1/60,000,000 request or token: one microsecond drains exactly *limit* units, so nothing is ever rounded. `scope.lua` and
`admit.lua` do the same sums in Redis, in doubles, which are exact for limits up to 150 million per minute.

Knows no clock, no Redis and no HTTP.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.errors import ConcurrencyReached, RateLimited
from gateway.vocabulary import Limits, LimitStatus

UNITS = 60_000_000  #: of one request or token; also the microseconds of a minute
MICROSECONDS = 1_000_000
UNKNOWN_END_SECONDS = 1.0  #: told to those who wait for running requests, whose end nobody knows


@dataclass(frozen=True, slots=True)
class Scope:
    """The limits of a key or of a tenant, and how far they are used at one moment."""

    name: str  #: "key" or "tenant"
    limits: Limits
    requests_level: int  #: units, see above
    tokens_level: int  #: units; tokens of requests that have ended
    held_tokens: int  #: tokens kept aside for running requests, beside the level
    running: int  #: requests with a hold


def drained(level: int, limit: int, elapsed_microseconds: int) -> int:
    """Return what is left of *level* after a while; a clock that steps back drains nothing."""
    return max(0, level - limit * max(0, elapsed_microseconds))


def admits(scope: Scope, tokens: int) -> bool:
    """Tell whether one more request that holds *tokens* keeps every limit of *scope*."""
    limits = scope.limits
    return (
        _excess(limits.requests_per_minute, scope.requests_level, 1) <= 0
        and _excess(limits.tokens_per_minute, scope.tokens_level, scope.held_tokens + tokens) <= 0
        and (limits.concurrency is None or scope.running < limits.concurrency)
    )


def refusal(scopes: Sequence[Scope], tokens: int) -> RateLimited | ConcurrencyReached | None:
    """
    Return why a request that holds *tokens* may not pass, or `None` if it may.

    If several limits refuse it, the one that takes longest is named, so that the promised time is true for all of them.
    """
    status = limit_status(scopes)
    rates = [
        error
        for scope in scopes
        for error in (_requests_refusal(scope, status), _tokens_refusal(scope, tokens, status))
        if error is not None
    ]
    if rates:
        return max(rates, key=_patience)
    for scope in scopes:
        limit = scope.limits.concurrency
        if limit is not None and scope.running >= limit:
            return ConcurrencyReached(
                f"Limit reached for this {scope.name} on concurrent requests: Limit {limit}, Running {scope.running}. "
                "Please try again when one of them has ended.",
                retry_after_seconds=UNKNOWN_END_SECONDS,
                status=status,
            )
    return None


def limit_status(scopes: Sequence[Scope]) -> LimitStatus:
    """
    Return what the headers report: of the scopes the one with least left, for requests and for tokens separately.

    `remaining_tokens` is what a next request could really get: tokens held for running requests are not in it. The
    reset time takes them as used.
    """
    requests = _tightest([(s.limits.requests_per_minute, s.requests_level) for s in scopes])
    tokens = _tightest([(s.limits.tokens_per_minute, s.tokens_level + s.held_tokens * UNITS) for s in scopes])
    return LimitStatus(*requests, *tokens)


def format_duration(seconds: float) -> str:
    """Write a duration as OpenAI's headers do: "12ms", "4.122s", "6m0s". Rounded up, so that nobody comes too early."""
    milliseconds = math.ceil(round(seconds * 1000, 6))  # the inner round: 0.012 * 1000 must not become 13
    if milliseconds <= 0:
        return "0s"
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, milliseconds = divmod(milliseconds, 60_000)
    text = f"{milliseconds // 1000}.{milliseconds % 1000:03}".rstrip("0").rstrip(".") + "s"
    if minutes:
        hours, minutes = divmod(minutes, 60)
        text = f"{minutes}m{text}"
        return f"{hours}h{text}" if hours else text
    return text


def rate_limit_headers(status: LimitStatus) -> list[tuple[bytes, bytes]]:
    """Return `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`; a limit that does not exist has no headers."""
    headers = []
    for name, limit, remaining, reset_seconds in (
        (b"requests", status.limit_requests, status.remaining_requests, status.reset_requests_seconds),
        (b"tokens", status.limit_tokens, status.remaining_tokens, status.reset_tokens_seconds),
    ):
        if limit is not None and remaining is not None:
            headers += [
                (b"x-ratelimit-limit-" + name, b"%d" % limit),
                (b"x-ratelimit-remaining-" + name, b"%d" % remaining),
                (b"x-ratelimit-reset-" + name, format_duration(reset_seconds).encode()),
            ]
    return headers


def _excess(limit: int | None, level: int, amount: int) -> int:
    """Return by how many units *amount* more would pass *limit*; 0 or less means that it fits."""
    return 0 if limit is None else level + (amount - limit) * UNITS


def _seconds_to_drain(units: int, limit: int) -> float:
    return -(-units // max(1, limit)) / MICROSECONDS  # rounded up to a microsecond


def _tightest(scopes: Sequence[tuple[int | None, int]]) -> tuple[int | None, int | None, float]:
    """Return limit, remaining and seconds until reset, of the (limit, level) with least remaining."""
    known = [
        (max(0, limit - -(-level // UNITS)), limit, _seconds_to_drain(level, limit))
        for limit, level in scopes
        if limit is not None
    ]
    if not known:
        return None, None, 0.0
    remaining, limit, reset_seconds = min(known)
    return limit, remaining, reset_seconds


def _patience(error: RateLimited) -> float:
    return math.inf if error.retry_after_seconds is None else error.retry_after_seconds


def _requests_refusal(scope: Scope, status: LimitStatus) -> RateLimited | None:
    limit = scope.limits.requests_per_minute
    excess = _excess(limit, scope.requests_level, 1)
    if limit is None or excess <= 0:
        return None
    wait_seconds = _seconds_to_drain(excess, limit) if limit else None
    again = "" if wait_seconds is None else f" Please try again in {format_duration(wait_seconds)}."
    return RateLimited(
        f"Rate limit reached for this {scope.name} on requests per min (RPM): Limit {limit}, "
        f"Used {-(-scope.requests_level // UNITS)}, Requested 1.{again}",
        kind="requests",
        retry_after_seconds=wait_seconds,
        status=status,
    )


def _tokens_refusal(scope: Scope, tokens: int, status: LimitStatus) -> RateLimited | None:
    limit = scope.limits.tokens_per_minute
    if limit is None or _excess(limit, scope.tokens_level, scope.held_tokens + tokens) <= 0:
        return None
    if tokens > limit:
        return RateLimited(
            f"Request too large for this {scope.name} on tokens per min (TPM): Limit {limit}, Requested {tokens}. "
            "This request alone asks for more than a full minute allows: reduce max_tokens, n or the prompt.",
            kind="tokens",
            retry_after_seconds=None,
            status=status,
        )
    # Running requests may end, and give back what they did not use, at any time: only the level's wait is known.
    wait_seconds = _seconds_to_drain(max(0, _excess(limit, scope.tokens_level, tokens)), limit)
    held = ""
    if scope.held_tokens:
        wait_seconds = max(wait_seconds, UNKNOWN_END_SECONDS)
        held = f", Held by running requests {scope.held_tokens}"
    return RateLimited(
        f"Rate limit reached for this {scope.name} on tokens per min (TPM): Limit {limit}, "
        f"Used {-(-scope.tokens_level // UNITS)}{held}, Requested {tokens}. "
        f"Please try again in {format_duration(wait_seconds)}.",
        kind="tokens",
        retry_after_seconds=wait_seconds,
        status=status,
    )
