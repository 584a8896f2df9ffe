"""
One attempt on one replica: send the request, make sure that an answer really begins, hand out its events.

vLLM may answer a stream with status 200 and an error as its first event, so nothing counts as an answer before the
first event was looked at. Up to that point every failure is an `UpstreamFailed` (another replica may be tried) or the
replica's own refusal; after it a broken stream is a `ReplicaLost`.
"""

import re
import time
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Self

import msgspec

from gateway.errors import ReplicaLost, UpstreamFailed, UpstreamRefused, UpstreamTimeout
from gateway.relay.client import Client, Headers, Response
from gateway.relay.sse import EventSplitter, EventTooLarge
from gateway.relay.usage_tap import first_event_error
from gateway.settings import Timeouts
from gateway.vocabulary import ReplicaAddress

#: what a replica may say is the client's own fault; anything else is between us and the replica
CLIENT_FAULTS = {400, 413, 415, 422}
MAX_ERROR_BYTES = 64 * 1024
MAX_MESSAGE_CHARS = 1000


class Generation:
    """An answer that has begun: its first events are here, the others follow."""

    def __init__(self, response: Response, splitter: EventSplitter, first: list[bytes], stall_seconds: float) -> None:
        self._response = response
        self._splitter = splitter
        self._first = first
        self._stall_seconds = stall_seconds

    async def batches(self) -> AsyncIterator[list[bytes]]:
        """
        Yield whole events, bytes untouched, as many at a time as have come.

        Raises:
            ReplicaLost: the connection broke, or what came is not a stream of events.
            UpstreamTimeout: nothing came for the stall time.
        """
        yield self._first
        while True:
            try:
                chunk = await self._response.next_chunk(self._stall_seconds)
                events = [] if chunk is None else self._splitter.feed(chunk)
            except (UpstreamFailed, EventTooLarge) as error:
                raise ReplicaLost("The replica was lost in the middle of its answer.") from error
            if chunk is None:
                return
            if events:
                yield events

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._response.close()


async def begin(
    client: Client, replica: ReplicaAddress, path: str, headers: Headers, body: bytes, *, timeouts: Timeouts,
    event_bytes: int,
) -> Generation:  # fmt: skip
    """
    Return the generation that *replica* began for *body*, a streamed request.

    Raises:
        UpstreamFailed: no answer began; another replica may be tried.
        UpstreamTimeout: no first event within `timeouts.first_token`.
        UpstreamRefused: the replica says that the request is wrong.
    """
    deadline = time.monotonic() + timeouts.first_token
    response = await client.send(
        replica.base_url, "POST", path, headers, body, head_within_seconds=timeouts.first_token
    )
    try:
        if response.status != 200:
            raise _refusal(response.status, await _error_body(response))
        if response.content_type != b"text/event-stream":
            raise UpstreamFailed("The replica did not answer with a stream.")
        splitter = EventSplitter(event_bytes)
        first: list[bytes] = []
        while not first:
            chunk = await response.next_chunk(max(deadline - time.monotonic(), 0.0))
            if chunk is None:
                raise UpstreamFailed("The replica's answer ended before it began.")
            first = splitter.feed(chunk)
        error = first_event_error(first[0])
        if error is not None:
            raise _refusal(_status_of(error), error)
        return Generation(response, splitter, first, timeouts.stall)
    except EventTooLarge as error:
        response.close()
        raise UpstreamFailed("The replica did not answer with a stream.") from error
    except BaseException:
        response.close()
        raise


async def fetch(
    client: Client, replica: ReplicaAddress, path: str, headers: Headers, body: bytes, *, timeouts: Timeouts,
    answer_bytes: int,
) -> bytes:  # fmt: skip
    """
    Return the whole JSON answer of *replica* for *body*, a request that is not streamed.

    Raises:
        UpstreamFailed, UpstreamTimeout, UpstreamRefused: as `begin`. The first-token timeout cannot be told from a long
            generation here, so only the hard limit of a request applies.
    """
    response = await client.send(replica.base_url, "POST", path, headers, body, head_within_seconds=timeouts.request)
    async with response:
        if response.status != 200:
            raise _refusal(response.status, await _error_body(response))
        if response.content_type != b"application/json":
            raise UpstreamFailed("The replica did not answer with JSON.")
        return await response.read(timeouts.stall, at_most=answer_bytes)


async def _error_body(response: Response) -> Mapping[str, object]:
    try:
        document = msgspec.json.decode(await response.read(5.0, at_most=MAX_ERROR_BYTES))
    except (msgspec.DecodeError, UpstreamFailed, UpstreamTimeout, UnicodeDecodeError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    error = document.get("error", document)
    return error if isinstance(error, dict) else {}


def _status_of(error: Mapping[str, object]) -> int:
    code = error.get("code")
    return code if isinstance(code, int) and not isinstance(code, bool) else 500


def _refusal(status: int, error: Mapping[str, object]) -> UpstreamRefused | UpstreamFailed:
    """Return what a replica's error means: the client's fault, or a failure of the replica."""
    if status not in CLIENT_FAULTS:
        return UpstreamFailed(f"The replica answered with status {status}.")
    message = error.get("message")
    if not isinstance(message, str) or not message.strip():
        message = "The model server refused the request as invalid."
    param = error.get("param")
    too_long = re.search("maximum (context|model) length", message)
    return UpstreamRefused(
        message.strip()[:MAX_MESSAGE_CHARS],
        status=400 if status == 422 else status,
        param=param if isinstance(param, str) else None,
        code="context_length_exceeded" if too_long else "invalid_value",
    )
