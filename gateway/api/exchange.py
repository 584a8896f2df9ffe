"""
One HTTP exchange: the story runs in one task, and beside it a watch for the client's departure that cancels it.

Decided by experiment (Litestar 2.25, uvicorn): ASGI's `send()` to a client that has left does not raise, a handler is not
cancelled when its client leaves, and a streaming response does not close its generator while a write is blocked. So the
watch is the only way to learn that nobody listens any more, for streams and JSON answers alike.

After the head an error cannot change the status: it becomes the stream's last event, and no `[DONE]` follows.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import structlog

from gateway.admission.limits import rate_limit_headers
from gateway.api.body import decode_body
from gateway.api.openai_errors import describe, sse_event
from gateway.errors import WeighbridgeError
from gateway.pipeline import Pipeline
from gateway.vocabulary import Endpoint, InferenceRequest, LimitStatus, Principal, RequestId

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

log = structlog.get_logger(__name__)

Parse = Callable[[Endpoint, Mapping[str, object]], InferenceRequest]


class HttpAnswer:
    """The pipeline's `Answer` over ASGI."""

    def __init__(self, send: "Send", slow_reader_seconds: float) -> None:
        self.started = False
        self.finished = False
        self._is_stream = False
        self._send = send
        self._slow_reader_seconds = slow_reader_seconds
        self._received_at = time.monotonic()

    async def start(self, content_type: bytes, status: LimitStatus) -> None:
        """Send the head of a good answer: 200, the limits in force, and how long it took until now."""
        self._is_stream = content_type == b"text/event-stream"
        elapsed_ms = int((time.monotonic() - self._received_at) * 1000)
        headers = [
            (b"content-type", content_type + b"; charset=utf-8" if self._is_stream else content_type),
            (b"openai-processing-ms", str(elapsed_ms).encode()),
            *rate_limit_headers(status),
        ]
        if self._is_stream:
            # Proxies that gather an answer before they pass it on would turn a stream into a long silence.
            headers += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        self.started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Send bytes. A client that takes nothing for too long counts as gone."""
        try:
            async with asyncio.timeout(self._slow_reader_seconds):
                await self._send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            raise asyncio.CancelledError from None

    async def finish(self) -> None:
        """Send the end."""
        self.finished = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, error: BaseException) -> None:
        """Send *error*: as a whole answer, or as the last event of a stream that has begun."""
        if not self.started:
            self.started = True
            answer = describe(error)
            await self._send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
            await self._send({"type": "http.response.body", "body": answer.body, "more_body": False})
            self.finished = True
        elif self._is_stream:
            await self.write(sse_event(error))


class Exchange:
    """Serves one endpoint: reads the body, then runs the story beside the watch."""

    def __init__(self, endpoint: Endpoint, pipeline: Pipeline, parse: Parse, slow_reader_seconds: float) -> None:
        self._endpoint = endpoint
        self._pipeline = pipeline
        self._parse = parse
        self._slow_reader_seconds = slow_reader_seconds

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer one request; raises nothing: errors are written as answers."""
        answer = HttpAnswer(send, self._slow_reader_seconds)
        body = await _read(receive)
        if body is None:
            return
        state = scope["state"]
        story = asyncio.ensure_future(self._story(state, body, answer))
        watch = asyncio.ensure_future(_departure(receive))
        try:
            await asyncio.wait({story, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not story.done():
                story.cancel()
            await _outcome(story, answer)
        finally:
            # Also when the server cancels us: the story settles what it took, in tasks of its own.
            watch.cancel()
            story.cancel()

    async def _story(self, state: dict[str, object], body: bytes, answer: HttpAnswer) -> None:
        principal, request_id, notes = state["principal"], state["request_id"], state["log"]
        assert isinstance(principal, Principal)  # noqa: S101 - the authentication middleware put it there
        assert isinstance(notes, dict)  # noqa: S101 - as did the log middleware
        request = self._parse(self._endpoint, decode_body(body))
        await self._pipeline.serve(RequestId(request_id), principal, request, answer, notes)  # type: ignore[arg-type]


async def _read(receive: "Receive") -> bytes | None:
    """Return the whole body, which the body-limit middleware bounds; `None` when the client left before its end."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _departure(receive: "Receive") -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _outcome(story: "asyncio.Future[None]", answer: HttpAnswer) -> None:
    """Wait for the story's end; finish the answer if somebody may still be listening."""
    try:
        await story
    except asyncio.CancelledError:
        if not story.cancelled():
            raise  # it is we who are cancelled
        return
    except WeighbridgeError as error:
        await answer.fail(error)
    except Exception as error:
        log.exception("request_crashed", error=type(error).__name__)
        await answer.fail(error)
    if not answer.finished:
        await answer.finish()
