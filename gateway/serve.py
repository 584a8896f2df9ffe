"""
Run one gateway process: three listeners in one loop, and a shutdown that can be read.

    SIGTERM  1. /readyz says no, so that whoever sends traffic stops
             2. the listeners close; running requests go on, for at most `timeouts.drain`
             3. what still runs is cut with an error event, and billed for what it delivered
             4. settlements are awaited, the instance is forgotten, the process ends with 0
    A second SIGTERM skips to 3.
"""

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import uvicorn
import uvloop
from litestar import Litestar

from gateway.app import Gateway, open_gateway
from gateway.errors import InvalidSettings
from gateway.settings import Listen, Settings
from gateway.telemetry.logging import set_up_logging

log = structlog.get_logger(__name__)

SETTLE_SECONDS = 10.0


class _Server(uvicorn.Server):
    """uvicorn's server without its own signal handlers: one process, three servers, one decision to stop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `serve`."""
        yield

    async def run_until(self, stop: asyncio.Event, listener: socket.socket) -> None:
        """Serve until *stop* is set, then let running requests end."""
        serving = asyncio.ensure_future(self.serve(sockets=[listener]))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        self.should_exit = True
        await serving


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    set_up_logging(settings.log_format, settings.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings))


async def serve(settings: Settings) -> None:
    """Serve *settings* in the running loop."""
    stop, cut = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (cut if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    listeners = [_bind(listen) for listen in (settings.public, settings.admin, settings.internal)]
    async with open_gateway(settings) as gateway:
        stop_serving, stop_internal = asyncio.Event(), asyncio.Event()
        serving = [
            asyncio.ensure_future(_server(gateway.public, settings).run_until(stop_serving, listeners[0])),
            asyncio.ensure_future(_server(gateway.admin, settings).run_until(stop_serving, listeners[1])),
        ]
        internal = asyncio.ensure_future(_server(gateway.internal, settings).run_until(stop_internal, listeners[2]))
        log.info("listening", public=settings.public.url, admin=settings.admin.url, internal=settings.internal.url)
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({*serving, internal, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        gateway.pipeline.is_draining = True
        log.info("draining", running=len(gateway.pipeline.running))
        stop_serving.set()
        await _drain(gateway, cut, settings.timeouts.drain)
        await asyncio.gather(*serving)
        # Last, so that `/readyz` says why until the end.
        stop_internal.set()
        await internal
    log.info("stopped")


async def _drain(gateway: Gateway, cut: asyncio.Event, within_seconds: float) -> None:
    deadline = asyncio.get_running_loop().time() + within_seconds
    while len(gateway.pipeline.running) and not cut.is_set() and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.05)
    gateway.pipeline.running.cut_all()


def _bind(listen: Listen) -> socket.socket:
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        return socket.create_server((listen.host, listen.port), family=family, backlog=2048)
    except OSError as error:
        raise InvalidSettings([f"cannot listen on {listen.host}:{listen.port}: {error.strerror}"]) from error


def _server(app: Litestar, settings: Settings) -> _Server:
    return _Server(
        uvicorn.Config(
            app=app,
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(settings.timeouts.drain + SETTLE_SECONDS),
        )
    )
