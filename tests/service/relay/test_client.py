"""The client for replicas, over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.errors import UpstreamFailed, UpstreamTimeout
from gateway.relay.client import Client

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 2\r\n\r\nok"


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """Yield the base URL of a server that hands each connection to *handler*."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """Return a client that is closed at the end."""
    client = Client(connect_seconds=1.0)
    yield client
    await client.close()


async def read_head(reader: asyncio.StreamReader) -> bytes:
    """Read one request's head; its body is empty in these tests."""
    return await reader.readuntil(b"\r\n\r\n")


async def test_a_connection_is_used_again(client: Client) -> None:
    """Two requests one after the other share a connection."""
    connections = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await read_head(reader)
            writer.write(OK)

    async with serving(handler) as url:
        for _ in range(3):
            async with await client.send(url, "GET", "/", [], head_within_seconds=5) as response:
                assert await response.read(5, at_most=100) == b"ok"
                assert response.content_type == b"text/plain"

    assert connections == 1


async def test_an_idle_connection_closed_by_the_replica_is_not_an_error(client: Client) -> None:
    """HTTP's oldest race: the server closes an idle connection while the next request is on its way."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(OK)
        await read_head(reader)  # the second request on this connection: close instead of answering

    async with serving(handler) as url:
        for _ in range(4):
            async with await client.send(url, "GET", "/", [], head_within_seconds=5) as response:
                assert await response.read(5, at_most=100) == b"ok"


async def test_abandoning_an_answer_cuts_its_connection(client: Client) -> None:
    """That is how vLLM learns that nobody wants the rest."""
    cut = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await reader.read()
        cut.set()

    async with serving(handler) as url:
        async with await client.send(url, "GET", "/", [], head_within_seconds=5) as response:
            assert await response.next_chunk(5) == b"a"
        async with asyncio.timeout(5):
            await cut.wait()


async def test_the_pool_survives_cancellation_at_any_moment(client: Client) -> None:
    """httpx's pool wedges here; a gateway cancels whenever a client leaves."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_head(reader)
            await asyncio.sleep(0.005)
            writer.write(OK)

    async def ask(url: str) -> bytes:
        async with await client.send(url, "GET", "/", [], head_within_seconds=10) as response:
            return await response.read(10, at_most=100)

    async with serving(handler) as url:
        tasks = [asyncio.ensure_future(ask(url)) for _ in range(200)]
        for number, task in enumerate(tasks):
            asyncio.get_running_loop().call_later(number * 0.0001, task.cancel)
        await asyncio.gather(*tasks, return_exceptions=True)

        assert await asyncio.gather(*(ask(url) for _ in range(100))) == [b"ok"] * 100


async def test_a_refused_connection_is_a_failure_of_the_replica(client: Client) -> None:
    """Nobody listens: another replica may be tried."""
    async with serving(lambda _reader, _writer: asyncio.sleep(0)) as url:
        pass

    with pytest.raises(UpstreamFailed):
        await client.send(url, "GET", "/", [], head_within_seconds=5)


async def test_silence_is_a_timeout(client: Client) -> None:
    """A replica that accepts and says nothing is given up after the time allowed."""

    async def handler(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(handler) as url:
        with pytest.raises(UpstreamTimeout):
            await client.send(url, "GET", "/", [], head_within_seconds=0.1)


@pytest.mark.parametrize(
    "garbage",
    [
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x-long: " + b"a" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nwithout a length",
        b"",
    ],
    ids=["not-http", "short-body", "bad-chunk", "huge-head", "no-length", "nothing"],
)
async def test_garbage_is_a_failure_and_never_an_answer(client: Client, garbage: bytes) -> None:
    """Truncated, oversized or unparsable answers end as one kind of error, quickly."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(garbage)
        await writer.drain()

    async with serving(handler) as url:
        with pytest.raises(UpstreamFailed):
            async with await client.send(url, "GET", "/", [], head_within_seconds=5) as response:
                await response.read(5, at_most=1000)


async def test_an_answer_larger_than_allowed_is_refused(client: Client) -> None:
    """A replica cannot fill our memory."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(OK)

    async with serving(handler) as url:
        with pytest.raises(UpstreamFailed):
            async with await client.send(url, "GET", "/", [], head_within_seconds=5) as response:
                await response.read(5, at_most=1)
