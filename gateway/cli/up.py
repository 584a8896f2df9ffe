"""
`weighbridge up`: everything on this machine, from nothing to the first answer. `make run` is this.

    1. databases, unless given     2. migrations     3. the gateway     4. the first key     5. replicas

The gateway listens from step 3 on and says at `/readyz` what it still waits for. Whatever ends by itself is started
again; Ctrl-C ends all of it in the opposite order, a second Ctrl-C at once. Nothing outlives this process.
"""

import contextlib
import errno
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import httpx
import rich_click as click
from rich.console import Console

from gateway import __version__
from gateway.cli import demo
from gateway.cli.progress import step
from gateway.cli.replicas import Replicas, choose
from gateway.cli.services import StateDirectory, databases
from gateway.embedded import ChildFailed
from gateway.embedded.child import Child, kill_all
from gateway.errors import Conflict
from gateway.settings import Listen, Settings, load
from gateway.store.migrate import upgrade

STATE_DIRECTORY = ".weighbridge"
LISTEN_SECONDS = 60.0
LOOK_SECONDS = 0.5
BACKOFF_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
STABLE_SECONDS = 60.0  #: after this long a process that ends is started again without delay


@click.command("up")
@click.option(
    "--replicas",
    default="",
    help="How many vLLM replicas, `simulated`, or `none`. Default: one for each GPU, or one on the CPU.",
)
@click.option(
    "--model",
    default=None,
    help="What the replicas serve; any model that vLLM serves. Default without a GPU: SmolLM2-135M-Instruct.",
)
@click.option(
    "--public", envvar="WEIGHBRIDGE_PUBLIC", default="127.0.0.1:8080", show_default=True, help="Where clients connect."
)
@click.option(
    "--admin",
    envvar="WEIGHBRIDGE_ADMIN",
    default="127.0.0.1:8081",
    show_default=True,
    help="Where the admin API listens.",
)
@click.option(
    "--internal",
    envvar="WEIGHBRIDGE_INTERNAL",
    default="127.0.0.1:8082",
    show_default=True,
    help="Where /livez, /readyz and /metrics listen.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=STATE_DIRECTORY,
    show_default=True,
    help="Where data and logs are kept.",
)
def up(replicas: str, model: str | None, public: str, admin: str, internal: str, state_dir: Path) -> None:
    """
    Start everything on this machine and print what to try: databases, gateway, replicas.

    DATABASE_URL and REDIS_URL in the environment take the place of the embedded databases.
    """
    begun = time.monotonic()
    console = Console(highlight=False)
    listen = {"WEIGHBRIDGE_PUBLIC": public, "WEIGHBRIDGE_ADMIN": admin, "WEIGHBRIDGE_INTERNAL": internal}
    try:
        with _stopping_in_order(console), ExitStack() as stack:
            _run(console, stack, StateDirectory(state_dir), listen, choose(replicas, model), begun)
    except ChildFailed as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        console.print("Stopped.")


def _run(
    console: Console,
    stack: ExitStack,
    state: StateDirectory,
    listen: Mapping[str, str],
    replicas: Replicas,
    begun: float,
) -> None:
    lock = stack.enter_context(state.locked())
    environ = {**os.environ, **listen}
    environ.setdefault("WEIGHBRIDGE_SECRET", state.secret())
    # Everything that can be wrong is found before anything is started.
    settings = load({"DATABASE_URL": "postgresql://embedded", "REDIS_URL": "redis://embedded"} | environ)
    for listener in (settings.public, settings.admin, settings.internal):
        _require_free(listener)
    console.print(f"[bold]Weighbridge[/] {__version__}")

    with step(console, "Postgres and Valkey"):
        addresses = stack.enter_context(databases(state, lock, environ.get("DATABASE_URL"), environ.get("REDIS_URL")))
    environ |= {"DATABASE_URL": addresses.database_url, "REDIS_URL": addresses.redis_url}
    settings = load(environ)
    with step(console, "Tables"):
        _migrate(settings)

    gateway = Kept(
        Child("The gateway", state.path / "gateway.log"), [sys.executable, "-m", "gateway.main", "serve"], environ
    )
    stack.callback(gateway.child.stop, settings.timeouts.drain + 15)
    with step(console, f"Gateway at {settings.public.url}"):
        gateway.start()
        _wait_until_listening(gateway.child, settings)
    kept = [gateway]
    first = demo.ensure_credentials(state, settings)

    worker_environ = {**environ, "WEIGHBRIDGE_ADMIN_URL": settings.admin.url, "WEIGHBRIDGE_ADMIN_KEY": first.worker_key}
    for name in ("DATABASE_URL", "REDIS_URL", "WEIGHBRIDGE_SECRET"):
        del worker_environ[name]  # a worker needs none of the gateway's secrets
    for name, command in replicas.commands(console, state.path):
        worker = Kept(Child(name, state.path / f"{name}.log"), command, worker_environ)
        stack.callback(worker.child.stop, settings.timeouts.drain + 15)
        worker.start()
        kept.append(worker)
    _wait_until_ready(console, kept, settings, first, replicas)
    demo.show(console, first, settings, replicas.model, state, time.monotonic() - begun)
    while True:
        _keep(console, kept)
        time.sleep(LOOK_SECONDS)


@dataclass
class Kept:
    """A process that is started again whenever it ends, later each time it fails early."""

    child: Child
    command: list[str]
    environ: Mapping[str, str]
    failures: int = 0
    started_at: float = 0.0
    start_at: float | None = None

    def start(self) -> None:
        """Start it."""
        self.started_at, self.start_at = time.monotonic(), None
        self.child.spawn(self.command, env=self.environ)

    def look(self, now: float) -> str | None:
        """Start it again if it ended and its time has come; return what happened, for people."""
        if self.child.is_running:
            return None
        if self.start_at is None:
            self.failures = 0 if now - self.started_at > STABLE_SECONDS else self.failures + 1
            delay = 0.0 if self.failures == 0 else BACKOFF_SECONDS[min(self.failures, len(BACKOFF_SECONDS)) - 1]
            self.start_at = now + delay
            return (
                f"{self.child.name} ended (status {self.child.exit_status}) and is started again in {delay:.0f} s; "
                f"its log is {self.child.log}"
            )
        if now >= self.start_at:
            self.start()
        return None


@contextmanager
def _stopping_in_order(console: Console) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into one orderly end; a second one ends our children at once."""

    def at_once(_number: int, _frame: FrameType | None) -> None:
        kill_all()

    def in_order(_number: int, _frame: FrameType | None) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, at_once)
        console.print("\nStopping: running answers end first. Ctrl-C again stops at once.")
        raise KeyboardInterrupt

    before = {number: signal.signal(number, in_order) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _require_free(listener: Listen) -> None:
    with socket.socket(socket.AF_INET6 if ":" in listener.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((listener.host, listener.port))
        except OSError as error:
            what = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            raise Conflict(
                f"{listener.host}:{listener.port} {what}. Stop what uses it, or choose another, for example\n"
                f"  weighbridge up --public 127.0.0.1:9080 --admin 127.0.0.1:9081 --internal 127.0.0.1:9082"
            ) from None


def _migrate(settings: Settings) -> None:
    logging.getLogger("alembic").setLevel(logging.WARNING)
    upgrade(settings.database_url)


def _wait_until_listening(child: Child, settings: Settings) -> None:
    with httpx.Client(timeout=2.0) as client:

        def listens() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return client.get(f"{settings.internal.url}/livez").is_success
            return False

        child.wait_until(listens)


def _wait_until_ready(
    console: Console, kept: list[Kept], settings: Settings, first: demo.Demo, replicas: Replicas
) -> None:
    """Return once a request would be answered, showing meanwhile what is still missing."""
    if replicas.count == 0:
        return
    headers = {"Authorization": f"Bearer {first.admin_key}"}
    with step(console, f"Replica of {replicas.model}") as detail, httpx.Client(timeout=5.0) as client:
        while True:
            _keep(console, kept)
            with contextlib.suppress(httpx.TransportError, ValueError, KeyError):
                if client.get(f"{settings.internal.url}/readyz").is_success:
                    return
                listed = client.get(f"{settings.admin.url}/admin/v1/replicas", headers=headers).json()["data"]
                alive = [item for item in listed if item["state"] != "gone"]
                detail("; ".join(f"{item['name']} {item['detail'] or item['state']}" for item in alive))
            time.sleep(LOOK_SECONDS)


def _keep(console: Console, kept: list[Kept]) -> None:
    for process in kept:
        if happened := process.look(time.monotonic()):
            console.print(happened, style="yellow", markup=False, soft_wrap=True)
