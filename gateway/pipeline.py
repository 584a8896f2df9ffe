"""
The story of one request: count → admit → open → route → relay → settle.

    count     how many tokens may this use?                nothing taken yet; 400 and 404 end here
    admit     may this caller use them now?                Redis: a hold; 429 ends here
    open      the right to bill it                         Postgres: an open row, durable; 401 and 503 end here
    route     which replica?                               429 pool_saturated and 503 no_replica end here
    relay     carry the answer as it is produced           another replica only while nothing has reached the client
    settle    what did it cost?                            Postgres: open row → ledger row; then Redis: hold → used

Whatever is taken is given back on every way out: what was admitted is settled or released, what was opened is settled,
also when the caller is cancelled because its client has left (`shield.finish`). The last event of a stream, and the body
of a JSON answer, wait for the settlement (at most `SETTLE_PATIENCE_SECONDS`): whoever has seen the end of an answer finds
its row in the ledger and its slot free again.
"""

import asyncio
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from gateway.admission.estimate import PromptCount, bounded_max_tokens, tokens_to_hold
from gateway.admission.hold import Hold, Holds
from gateway.errors import (
    KeyRevoked,
    ModelNotFound,
    NoReplica,
    PoolSaturated,
    ReplicaLost,
    ShuttingDown,
    StoreUnavailable,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamTimeout,
    WeighbridgeError,
)
from gateway.ledger.open_settle import Ledger
from gateway.relay.assemble import Assembler, Incomplete
from gateway.relay.client import Client
from gateway.relay.headers import to_replica
from gateway.relay.stream import Generation, begin, fetch
from gateway.relay.usage_tap import UsageTap
from gateway.routing.directory import ReplicaDirectory
from gateway.routing.replica import TrackedReplica
from gateway.settings import Settings
from gateway.shield import finish, start
from gateway.telemetry import metrics
from gateway.vocabulary import (
    Checkpoint,
    Ending,
    InferenceRequest,
    KeyId,
    LimitStatus,
    ModelInfo,
    OpenRow,
    Principal,
    ReplicaId,
    RequestId,
    Settlement,
    Usage,
    UsageSource,
)

SETTLE_PATIENCE_SECONDS = 1.0
MAX_ATTEMPTS = 2
RETRY_BURST = 100.0
RETRY_SHARE = 0.1  #: retries are at most this share of requests, beyond the burst: no retry storm when a pool dies

Result = TypeVar("Result")


class Answer(Protocol):
    """The way back to the client: one head, then bytes."""

    started: bool  #: something has reached the client: no other replica may answer, no other status be given

    async def start(self, content_type: bytes, status: LimitStatus) -> None:
        """Send the head."""

    async def write(self, data: bytes) -> None:
        """Send bytes; waits while the client does not read."""


class UpstreamBody(Protocol):
    """Builds the body for the replica from a validated request."""

    def __call__(self, request: InferenceRequest, *, max_tokens: int, stream: bool, cache_salt: str) -> bytes:
        """Return JSON."""


@dataclass(slots=True, eq=False)
class Running:
    """A request from its open row to its settlement, for those who look after it meanwhile."""

    request_id: RequestId
    principal: Principal
    model: str
    hold: Hold
    answer: Answer
    task: asyncio.Task[object]
    opened_at: float = field(default_factory=time.monotonic)
    dispatched: bool = False
    attempts: int = 0
    replica: str | None = None
    tap: UsageTap | None = None
    first_token_seconds: float | None = None
    cut_because: WeighbridgeError | None = None
    ending: Ending | None = None  #: set when its settlement has begun, which happens once

    @property
    def usage(self) -> Usage:
        """Return the tokens produced so far by the attempt that answers."""
        return self.tap.usage if self.tap is not None else Usage()

    def billed(self) -> tuple[Usage, UsageSource]:
        """Return what is billed for `ending`: what was delivered when we failed, what was produced when the client did."""
        failed_us = self.ending in {Ending.REPLICA_LOST, Ending.TIMEOUT} and not self.answer.started
        if self.tap is None or failed_us or self.ending in {Ending.REFUSED, Ending.NOT_DISPATCHED}:
            return Usage(), UsageSource.NONE
        return self.tap.usage, self.tap.source

    def cut(self, reason: WeighbridgeError) -> None:
        """End it now with *reason*, in the middle of its stream if need be."""
        if self.cut_because is None and self.ending is None:
            self.cut_because = reason
            self.task.cancel()


class RunningRequests:
    """All running requests of this process."""

    def __init__(self) -> None:
        self._by_id: dict[RequestId, Running] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, running: Running) -> None:
        """Begin to look after *running*."""
        self._by_id[running.request_id] = running

    def remove(self, running: Running) -> None:
        """Stop looking after *running*."""
        self._by_id.pop(running.request_id, None)

    def checkpoints(self) -> list[Checkpoint]:
        """Return how far every dispatched request is."""
        return [Checkpoint(item.request_id, item.usage) for item in self._by_id.values() if item.dispatched]

    def holds(self) -> list[Hold]:
        """Return the holds whose leases must not end."""
        return [item.hold for item in self._by_id.values()]

    def key_ids(self) -> set[KeyId]:
        """Return the keys whose requests are running."""
        return {item.principal.key_id for item in self._by_id.values()}

    def cut_keys(self, key_ids: Collection[KeyId]) -> None:
        """End every request of these keys: they were revoked."""
        for item in list(self._by_id.values()):
            if item.principal.key_id in key_ids:
                item.cut(KeyRevoked("This API key was revoked. Ask an administrator of this gateway for a new key."))

    def cut_all(self) -> None:
        """End every request: this process must go."""
        for item in list(self._by_id.values()):
            item.cut(ShuttingDown("The gateway is restarting. Send the request again."))


class Pipeline:
    """The stages, joined. One per process."""

    def __init__(
        self,
        *,
        settings: Settings,
        directory: ReplicaDirectory,
        count_prompt: Callable[[InferenceRequest, ModelInfo], Awaitable[PromptCount]],
        holds: Holds,
        ledger: Ledger,
        client: Client,
        upstream_body: UpstreamBody,
        assembled_exactly: Callable[[InferenceRequest], bool],
    ) -> None:
        self.running = RunningRequests()
        self.is_draining = False
        self._settings = settings
        self.directory = directory
        self._count_prompt = count_prompt
        self._holds = holds
        self._ledger = ledger
        self._client = client
        self._upstream_body = upstream_body
        self._assembled_exactly = assembled_exactly
        self._salt_key = settings.secrets.derive("cache-salt")
        self._retry_tokens = RETRY_BURST

    def models(self, principal: Principal) -> list[ModelInfo]:
        """Return the models that *principal* may call."""
        return [model for model in self.directory.models() if _may_call(principal, model.name)]

    def model(self, principal: Principal, name: str) -> ModelInfo:
        """
        Return what *principal* may know of the model *name*.

        Raises:
            ModelNotFound: it does not exist, or this key may not call it: one answer for both.
        """
        if not _may_call(principal, name):
            raise ModelNotFound(name)
        return self.directory.info(name)

    async def serve(
        self, request_id: RequestId, principal: Principal, request: InferenceRequest, answer: Answer,
        notes: dict[str, object],
    ) -> None:  # fmt: skip
        """
        Serve one request from beginning to end, into *answer*; put what the log line should say into *notes*.

        Cancel it when the client leaves; it returns when everything taken was given back.

        Raises:
            WeighbridgeError: with `answer.started` false it becomes the answer, else the stream's last event.
        """
        if self.is_draining:
            raise ShuttingDown("The gateway is restarting. Send the request again.")
        model = self.model(principal, request.model)
        prompt = await self._count_prompt(request, model)
        default = self._settings.policy_of(model.name).default_max_tokens or self._settings.bounds.default_max_tokens
        max_tokens = bounded_max_tokens(request, prompt, model.max_model_len, default)
        context = min(prompt.tokens + max_tokens, model.max_model_len)
        # Without a replica there is nothing to hold tokens for; the choice that counts is made after `open`.
        self.directory.choose(model.name, tokens=context)

        hold, status = await self._holds.admit(
            request_id, principal, tokens_to_hold(prompt.tokens, request.choices, max_tokens)
        )
        row = OpenRow(
            request_id, principal.tenant_id, principal.person_id, principal.key_id, model.name, request.endpoint,
            hold.tokens,
        )  # fmt: skip
        try:
            await self._ledger.open(row)
        except BaseException:
            await finish(self._release(hold))
            raise
        running = Running(request_id, principal, model.name, hold, answer, _current_task())
        self.running.add(running)
        job = _Job(request, prompt.tokens, max_tokens, context, status, running)
        try:
            await self._relay(job)
        except BaseException as error:
            # Not `finally`: on the good way the settlement is a part of the relay, before the last bytes.
            reason = _reason(running, error)
            await finish(self._settle(running, _ending_of(reason, running)))
            if reason is error:
                raise
            raise reason from None
        finally:
            notes.update(_notes(running))

    async def _relay(self, job: "_Job") -> None:
        """Route and relay; settle before the answer's last bytes."""
        async with asyncio.timeout(self._settings.timeouts.request):
            if job.request.stream:
                last = await self._somewhere(job, self._relay_stream)
            elif self._assembled_exactly(job.request):
                last = await self._somewhere(job, self._relay_assembled)
            else:
                last = await self._somewhere(job, self._relay_as_is)
        running = job.running
        ending = Ending.LENGTH_CUT if running.tap is not None and running.tap.ended_by_length else Ending.OK
        await _patiently(self._settle(running, ending))
        if not running.answer.started:
            await running.answer.start(b"application/json", job.status)
        await running.answer.write(last)

    async def _somewhere(self, job: "_Job", attempt: Callable[["_Job", TrackedReplica], Awaitable[Result]]) -> Result:
        """Make one attempt, and one more on another replica if the first failed before anything reached the client."""
        tried: set[ReplicaId] = set()
        failure: UpstreamFailed | ReplicaLost | None = None
        self._retry_tokens = min(RETRY_BURST, self._retry_tokens + RETRY_SHARE)
        while True:
            try:
                target = self.directory.choose(job.running.model, tokens=job.context, tried=tried)
            except (NoReplica, PoolSaturated):
                if failure is not None:
                    raise failure from None
                raise
            job.running.attempts += 1
            job.running.replica = target.replica.address.name
            job.running.dispatched = True
            job.running.tap = None
            target.begin()
            try:
                result = await attempt(job, target)
            except (UpstreamFailed, ReplicaLost) as error:
                target.failed()
                if job.running.answer.started or job.running.attempts >= MAX_ATTEMPTS or not self._may_retry():
                    raise
                tried.add(target.replica.address.id)
                failure = error
            except UpstreamTimeout:
                target.failed()
                raise
            else:
                target.succeeded()
                return result
            finally:
                target.end()

    async def _relay_stream(self, job: "_Job", target: TrackedReplica) -> bytes:
        """Relay events as they come; return the last ones, which wait for the settlement."""
        answer = job.running.answer
        tap = job.tap(job.request.include_usage, job.request.continuous_usage)
        async with await self._begin(job, target) as generation:
            async for events in generation.batches():
                job.saw_events(tap, target)
                out = b"".join([kept for event in events if (kept := tap.see(event)) is not None])
                if tap.error is not None and not answer.started:
                    raise UpstreamFailed("The replica failed before it answered.")
                if not answer.started:
                    await answer.start(b"text/event-stream", job.status)
                if tap.done_seen:
                    return out
                if out:
                    await answer.write(out)
                if tap.error is not None:
                    raise ReplicaLost("The replica failed in the middle of its answer.")
        raise ReplicaLost("The replica's answer ended too early.")

    async def _relay_assembled(self, job: "_Job", target: TrackedReplica) -> bytes:
        """Stream from the replica, so that an early end still has a count; return the JSON that it would have sent."""
        tap = job.tap(include_usage=True, continuous_usage=True)
        assembler = Assembler(job.request.endpoint)
        room = self._settings.bounds.answer_bytes
        async with await self._begin(job, target) as generation:
            async for events in generation.batches():
                job.saw_events(tap, target)
                for event in events:
                    tap.see(event)
                    assembler.see(event)
                    room -= len(event)
                if tap.done_seen or tap.error is not None or room < 0:
                    break
        try:
            return assembler.answer()
        except Incomplete as error:
            raise ReplicaLost("The replica's answer ended too early.") from error

    async def _relay_as_is(self, job: "_Job", target: TrackedReplica) -> bytes:
        """Fetch the replica's own JSON, for requests whose answer cannot be assembled from a stream exactly."""
        tap = job.tap(include_usage=True, continuous_usage=True)
        body = await fetch(
            self._client,
            target.replica.address,
            job.request.endpoint.path,
            to_replica(job.running.request_id, target.replica.address.token),
            self._body(job, stream=False),
            timeouts=self._settings.timeouts,
            answer_bytes=self._settings.bounds.answer_bytes,
        )
        tap.see_json(body)
        return body

    async def _begin(self, job: "_Job", target: TrackedReplica) -> Generation:
        return await begin(
            self._client,
            target.replica.address,
            job.request.endpoint.path,
            to_replica(job.running.request_id, target.replica.address.token),
            self._body(job, stream=True),
            timeouts=self._settings.timeouts,
            event_bytes=self._settings.bounds.event_bytes,
        )

    def _body(self, job: "_Job", *, stream: bool) -> bytes:
        # Tenants never share a prefix cache: a hit's timing would tell one what another has asked.
        salt = hmac.new(self._salt_key, job.running.principal.tenant_id.bytes, hashlib.sha256).hexdigest()
        return self._upstream_body(job.request, max_tokens=job.max_tokens, stream=stream, cache_salt=salt)

    def _may_retry(self) -> bool:
        if self._retry_tokens < 1:
            return False
        self._retry_tokens -= 1
        return True

    async def _settle(self, running: Running, ending: Ending) -> None:
        """Write the ledger row, then give the hold back: truth first."""
        if running.ending is not None:
            return
        running.ending = ending
        usage, source = running.billed()
        metrics.request_settled(running.model, ending, usage, source)
        try:
            await self._ledger.settle(
                Settlement(
                    running.request_id,
                    ending,
                    usage,
                    source,
                    running.attempts,
                    running.replica,
                    running.first_token_seconds,
                )
            )
        finally:
            self.running.remove(running)
        try:
            await self._holds.settle(running.hold, usage.total_tokens)
        except StoreUnavailable:
            pass  # the hold ends with its lease; the ledger has the truth

    async def _release(self, hold: Hold) -> None:
        try:
            await self._holds.release(hold)
        except StoreUnavailable:
            pass  # as above


@dataclass(slots=True)
class _Job:
    """What the attempts on one request have in common."""

    request: InferenceRequest
    prompt_tokens: int
    max_tokens: int
    context: int
    status: LimitStatus
    running: Running

    def tap(self, include_usage: bool, continuous_usage: bool) -> UsageTap:
        """Return the usage tap of a new attempt: only the attempt that answers is billed."""
        self.running.tap = UsageTap(
            choices=self.request.choices,
            include_usage=include_usage,
            continuous_usage=continuous_usage,
            prompt_bound=self.prompt_tokens,
            max_completion=self.max_tokens,
        )
        return self.running.tap

    def saw_events(self, tap: UsageTap, target: TrackedReplica) -> None:
        """Note that the answer goes on."""
        target.progressed()
        if not tap.started:
            self.running.first_token_seconds = time.monotonic() - self.running.opened_at


def _may_call(principal: Principal, model: str) -> bool:
    return principal.models is None or model in principal.models


def _current_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a story runs in a task of its own")
    return task


async def _patiently(settlement: Awaitable[None]) -> None:
    """Wait for the settlement for a while; a slow Postgres must not keep a finished answer from its reader."""
    task = start(_awaited(settlement))
    await asyncio.wait({task}, timeout=SETTLE_PATIENCE_SECONDS)


async def _awaited(work: Awaitable[None]) -> None:
    await work


def _reason(running: Running, error: BaseException) -> BaseException:
    """Return why it ended: a cut by us arrives as a cancellation, a hard limit as a bare TimeoutError."""
    if isinstance(error, asyncio.CancelledError) and running.cut_because is not None:
        running.task.uncancel()
        return running.cut_because
    if isinstance(error, TimeoutError):
        return UpstreamTimeout("The request took longer than this gateway allows.")
    return error


def _ending_of(error: BaseException, running: Running) -> Ending:
    """Return the ending that *error* stands for in the ledger."""
    if isinstance(error, asyncio.CancelledError):
        return Ending.CLIENT_GONE
    if isinstance(error, NoReplica | PoolSaturated):
        return Ending.NOT_DISPATCHED
    endings: dict[type[WeighbridgeError], Ending] = {
        KeyRevoked: Ending.REVOKED,
        UpstreamTimeout: Ending.TIMEOUT,
        UpstreamRefused: Ending.REFUSED,
        UpstreamFailed: Ending.REPLICA_LOST,
        ReplicaLost: Ending.REPLICA_LOST,
    }
    for kind, ending in endings.items():
        if isinstance(error, kind):
            return ending
    return Ending.GATEWAY_LOST if running.dispatched else Ending.NOT_DISPATCHED


def _notes(running: Running) -> dict[str, object]:
    usage, source = running.billed()
    return {
        "model": running.model,
        "replica": running.replica,
        "attempts": running.attempts,
        "ending": running.ending.value if running.ending is not None else None,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "usage_source": source.value,
        "ttft_seconds": running.first_token_seconds,
    }
