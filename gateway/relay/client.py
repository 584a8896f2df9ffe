"""
A keep-alive HTTP/1.1 client for replicas: asyncio.Protocol over httptools.

Why not a library: httpx's pool wedges for good under cancellation (reproduced: 16 of 16 later requests failed with
PoolTimeout), and a gateway cancels whenever a client leaves; it also costs 1.7 ms a call where this costs 0.05–0.15 ms
(measured, design/stack.md). So this speaks exactly what replicas speak: one request at a time on a connection, no
redirects, no decompression, no proxies, bounded heads, and a response abandoned half-way closes its connection, which
is how vLLM learns to stop.

Knows addresses and bytes; knows nothing of models, people or usage. Every failure is an `UpstreamFailed`.
"""

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, cast
from urllib.parse import urlsplit

import httptools

from gateway.errors import UpstreamFailed, UpstreamTimeout

IDLE_SECONDS = 3.0  #: uvicorn, hence vLLM, closes an idle connection after 5 s; we must be the first
MAX_HEAD_BYTES = 64 * 1024
PAUSE_BYTES = 256 * 1024  #: unread bytes at which reading pauses, so that a slow client costs bounded memory

Headers = list[tuple[bytes, bytes]]


class Response:
    """The answer of a replica: a head, then chunks. Leave it through `async with`, or `close()` it."""

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection
        self.status = connection.status
        self.headers: Headers = connection.headers

    @property
    def content_type(self) -> bytes:
        """Return the media type without its parameters, in lower case."""
        for name, value in self.headers:
            if name.lower() == b"content-type":
                return value.partition(b";")[0].strip().lower()
        return b""

    async def next_chunk(self, within_seconds: float) -> bytes | None:
        """
        Return the next bytes of the body, or `None` at its end.

        Raises:
            UpstreamTimeout: nothing came for *within_seconds*.
            UpstreamFailed: the connection broke before the end of the body.
        """
        return await self._connection.next_chunk(within_seconds)

    async def read(self, within_seconds: float, *, at_most: int) -> bytes:
        """Return the whole body; *within_seconds* bounds each wait, *at_most* the size in bytes."""
        parts: list[bytes] = []
        size = 0
        while (chunk := await self.next_chunk(within_seconds)) is not None:
            size += len(chunk)
            if size > at_most:
                raise UpstreamFailed("The replica's answer is too large.")
            parts.append(chunk)
        return b"".join(parts)

    def close(self) -> None:
        """Give the connection back if the body was read to its end, else cut it."""
        self._connection.leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@dataclass(slots=True)
class _Origin:
    """One replica's address and its idle connections, the most recently used last."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    host_header: bytes
    idle: deque["_Connection"] = field(default_factory=deque)


class Client:
    """Connections to all replicas. One per process; `close()` it at the end."""

    def __init__(self, *, connect_seconds: float) -> None:
        self._connect_seconds = connect_seconds
        self._origins: dict[str, _Origin] = {}
        self._open: set[_Connection] = set()

    async def send(
        self, base_url: str, method: str, path: str, headers: Headers, body: bytes = b"", *, head_within_seconds: float
    ) -> Response:
        """
        Send one request and return its answer once the head has come.

        Raises:
            UpstreamFailed: cannot connect, or the connection broke before a head came.
            UpstreamTimeout: no head within *head_within_seconds*.
        """
        origin = self._origin(base_url)
        message = _message(method, path, origin.host_header, headers, body)
        while (connection := self._take_idle(origin)) is not None:
            try:
                return await connection.exchange(message, head_within_seconds)
            except UpstreamFailed:
                if connection.received_anything:
                    raise
                # The replica closed the idle connection while our request was on its way: HTTP/1.1's oldest race.
                # Nothing was answered, so the next connection may carry the same request.
        connection = await self._connect(origin)
        return await connection.exchange(message, head_within_seconds)

    def forget(self, base_url: str) -> None:
        """Close the idle connections to a replica that is gone."""
        origin = self._origins.pop(base_url, None)
        while origin is not None and origin.idle:
            origin.idle.pop().abort()

    async def close(self) -> None:
        """Cut every connection."""
        for connection in list(self._open):
            connection.abort()
        self._origins.clear()
        await asyncio.sleep(0)

    def _origin(self, base_url: str) -> _Origin:
        origin = self._origins.get(base_url)
        if origin is None:
            parts = urlsplit(base_url)
            host = parts.hostname or ""
            tls = ssl.create_default_context() if parts.scheme == "https" else None
            port = parts.port or (443 if tls else 80)
            origin = self._origins[base_url] = _Origin(host, port, tls, parts.netloc.encode())
        return origin

    def _take_idle(self, origin: _Origin) -> "_Connection | None":
        now = asyncio.get_running_loop().time()
        while origin.idle:
            connection = origin.idle.pop()
            if connection.is_usable and now - connection.idle_since < IDLE_SECONDS:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: _Origin) -> "_Connection":
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, protocol = await loop.create_connection(
                    lambda: _Connection(self, origin), origin.host, origin.port, ssl=origin.tls
                )
        except (OSError, TimeoutError) as error:
            raise UpstreamFailed("The replica cannot be reached.") from error
        return protocol

    def _opened(self, connection: "_Connection") -> None:
        self._open.add(connection)

    def _lost(self, connection: "_Connection", origin: _Origin) -> None:
        self._open.discard(connection)
        if connection in origin.idle:
            origin.idle.remove(connection)


class _Connection(asyncio.Protocol):
    """One connection: one request at a time, its answer parsed by httptools as it comes."""

    def __init__(self, client: Client, origin: _Origin) -> None:
        self._client = client
        self._origin = origin
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reset()
        self._complete = True
        self._lost = False
        self.idle_since = 0.0

    def _reset(self) -> None:
        # A fresh parser per answer: llhttp keeps state of the last message otherwise.
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: Headers = []
        self.received_anything = False
        self._head_bytes = 0
        self._has_head = False
        self._complete = False
        self._keep_alive = False
        self._chunks: list[bytes] = []
        self._unread = 0
        self._paused = False
        self._error: UpstreamFailed | None = None
        self._waiter: asyncio.Future[None] | None = None

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._client._opened(self)  # noqa: SLF001 - the two classes are one thing

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._client._lost(self, self._origin)  # noqa: SLF001 - as above
        if not self._complete:
            # That would be the legal end of a body without a length; but such a body cannot be told from a cut one.
            self._fail("The replica closed the connection in the middle of its answer.")
        self._wake()

    def data_received(self, data: bytes) -> None:
        if self._complete:
            self.abort()  # bytes that nobody asked for: the next answer on this connection could not be trusted
            return
        self.received_anything = True
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail("The replica's answer is not valid HTTP.")
            self.abort()
        if not self._has_head and self._head_bytes > MAX_HEAD_BYTES:
            self._fail("The head of the replica's answer is too large.")
            self.abort()
        if self._unread > PAUSE_BYTES and not self._paused and self._transport is not None and not self._complete:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        return None

    # -- httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:  # 100 Continue, 103 Early Hints: the real head is still to come
            self.headers = []
            return
        self._has_head = True
        self._keep_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._unread += len(body)

    def on_message_complete(self) -> None:
        if self.status >= 200:
            self._complete = True

    # -- for Client and Response

    @property
    def is_usable(self) -> bool:
        """Tell whether another request may be sent."""
        return not self._lost and self._transport is not None and not self._transport.is_closing()

    async def exchange(self, message: bytes, head_within_seconds: float) -> Response:
        """Send *message*; return the answer when its head is complete. Cuts the connection if that fails."""
        self._reset()
        try:
            assert self._transport is not None  # noqa: S101 - connection_made came before anybody could call this
            if not self.is_usable:
                self._fail("The replica closed the connection.")
            self._transport.write(message)
            while not self._has_head:
                if self._error is not None:
                    raise self._error
                await self._wait(head_within_seconds, "The replica did not begin to answer in time.")
        except BaseException:
            self.abort()
            raise
        return Response(self)

    async def next_chunk(self, within_seconds: float) -> bytes | None:
        """See `Response.next_chunk`."""
        while not self._chunks:
            if self._complete:
                return None
            if self._error is not None:
                raise self._error
            await self._wait(within_seconds, "The replica stopped in the middle of its answer.")
        chunk = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks = []
        self._unread = 0
        if self._paused and self.is_usable and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return chunk

    def leave(self) -> None:
        """End the use of this connection: keep it if the answer was read to its end, else cut it."""
        if self._complete and not self._chunks and self._keep_alive and self.is_usable:
            self.idle_since = self._loop.time()
            if self not in self._origin.idle:
                self._origin.idle.append(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Cut the connection now."""
        if self._transport is not None:
            self._transport.abort()

    # -- waiting

    async def _wait(self, within_seconds: float, message: str) -> None:
        waiter = self._waiter = self._loop.create_future()
        timer = self._loop.call_later(within_seconds, _expire, waiter, message)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _wake(self) -> None:
        news = self._chunks or self._complete or self._has_head or self._error is not None
        if news and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, message: str) -> None:
        if self._error is None:
            self._error = UpstreamFailed(message)


def _expire(waiter: asyncio.Future[None], message: str) -> None:
    if not waiter.done():
        waiter.set_exception(UpstreamTimeout(message))


def _message(method: str, path: str, host: bytes, headers: Headers, body: bytes) -> bytes:
    lines = [f"{method} {path} HTTP/1.1".encode(), b"host: " + host]
    lines += [name + b": " + value for name, value in headers]
    if body or method == "POST":
        lines.append(b"content-length: " + str(len(body)).encode())
    return b"\r\n".join([*lines, b"", body])
