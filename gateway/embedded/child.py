"""
Processes that live no longer than we do.

A child runs in a session of its own, so that Ctrl-C in the terminal reaches only us and we decide who stops first. On
Linux the kernel ends it when we die without saying goodbye.
"""

import contextlib
import ctypes
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict
from weakref import WeakSet

START_SECONDS = 60.0
STOP_SECONDS = 10.0
LAST_WORDS = 600  #: characters of a log that are worth repeating
PR_SET_PDEATHSIG = 1


class ChildFailed(RuntimeError):
    """A child did not start; the message ends with what it last said."""


class RunAs(TypedDict, total=False):
    """The arguments of `subprocess` that choose the user."""

    user: int
    group: int
    extra_groups: list[int]


_spawned: "WeakSet[Child]" = WeakSet()


def kill_all() -> None:
    """Tell every child to end at once, without waiting. Safe in a signal handler."""
    for child in tuple(_spawned):
        child.signal_kill()


class Child:
    """One process of ours, with a log and a way to be stopped."""

    def __init__(
        self,
        name: str,
        log: Path,
        *,
        stop_signal: signal.Signals = signal.SIGTERM,
        kill_signal: signal.Signals = signal.SIGKILL,
    ) -> None:
        """Describe the child. It gets *stop_signal* when it is stopped or when we die, *kill_signal* if that fails."""
        self.name = name
        self.log = log
        self._stop_signal = stop_signal
        self._kill_signal = kill_signal
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Return the process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def is_running(self) -> bool:
        """Tell whether it runs."""
        return self.pid is not None

    @property
    def exit_status(self) -> int | None:
        """Return how the last process ended (negative: by which signal), or `None` while it runs."""
        return None if self._process is None else self._process.poll()

    def spawn(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
        run_as: RunAs | None = None,
    ) -> None:
        """Start *command* without waiting. Call it from the main thread: Linux ties the child's life to the thread."""
        _spawned.add(self)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - command lines of ours
                command,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=tuple(pass_fds),
                preexec_fn=_die_with_parent(self._stop_signal),  # noqa: PLW1509 - one async-signal-safe call
                **(run_as or {}),
            )
        if self._process.stdin is not None:
            self._process.stdin.write(stdin or b"")
            self._process.stdin.close()

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """
        Return once *is_ready* says so.

        Raises:
            ChildFailed: the process ended, or `START_SECONDS` passed.
        """
        deadline = time.monotonic() + START_SECONDS
        while not is_ready():
            if not self.is_running or time.monotonic() > deadline:
                self.kill()
                raise ChildFailed(f"{self.name} did not start. It last said:\n{self.last_words()}")
            time.sleep(0.02)

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Ask it to stop, wait *seconds*, then kill it; return when it is gone."""
        self._end(self._stop_signal, seconds)
        self.kill()

    def kill(self) -> None:
        """End it as a power cut would; return when it is gone."""
        self._end(self._kill_signal, STOP_SECONDS)
        self._end(signal.SIGKILL, STOP_SECONDS)

    def signal_kill(self) -> None:
        """Tell it to end as `kill` does, without waiting."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(self._kill_signal)

    def _end(self, number: signal.Signals, seconds: float) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(number)
        self._process.send_signal(signal.SIGCONT)  # a stopped process acts on no signal but SIGKILL
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def last_words(self) -> str:
        """Return the end of its log."""
        with contextlib.suppress(OSError):
            return self.log.read_text(encoding="utf-8", errors="replace").strip()[-LAST_WORDS:]
        return ""


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _die_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """Return what a child calls so that the kernel sends it *number* when its parent dies; `None` outside Linux."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask_kernel() -> None:
        prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)

    return ask_kernel
