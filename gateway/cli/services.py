"""
What `weighbridge up` keeps between two runs, and the services that it runs unless it is given some.

The state directory holds the embedded databases, the root secret and the demo's credentials. One `up` at a time uses it:
the lock is inherited by the databases, so that it is free only when the last of them is gone, however `up` ended.
"""

import base64
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gateway.embedded import Postgres, Valkey
from gateway.errors import Conflict

LOCK_SECONDS = 15.0  #: what an earlier run may still need to end
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the two databases are."""

    database_url: str = field(repr=False)
    redis_url: str = field(repr=False)


class StateDirectory:
    """A directory of ours alone, mode 0700 (0711 for root, whose Postgres runs as another user)."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o711 if os.geteuid() == 0 else 0o700)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """
        Hold the directory; yield the file descriptor that does.

        Raises:
            Conflict: another `weighbridge up` holds it, or a database that one left behind.
        """
        lock = self.path / "lock"
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            deadline = time.monotonic() + (LOCK_SECONDS if not _is_alive(_read_pid(lock)) else 0)
            while not _try_lock(handle):
                if time.monotonic() >= deadline:
                    raise Conflict(
                        f"Another `weighbridge up` (process {_read_pid(lock) or 'unknown'}) uses {self.path}.\n"
                        "Stop it with Ctrl-C in its terminal, or give this one a directory of its own: --state-dir DIR"
                    )
                time.sleep(0.2)
            os.truncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
            yield handle
        finally:
            os.close(handle)

    def secret(self) -> str:
        """Return the root secret in base64; made on first use and kept, since without it no issued key works."""
        path = self.path / "secret"
        if not path.exists():
            self.write("secret", base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode() + "\n")
        return path.read_text(encoding="utf-8").strip()

    def read_json(self, name: str) -> dict[str, str]:
        """Return the strings kept as *name*; none when there are none, or they cannot be read."""
        try:
            kept = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {key: value for key, value in kept.items() if isinstance(value, str)} if isinstance(kept, dict) else {}

    def write(self, name: str, text: str) -> None:
        """Keep *text* as *name*, readable by us alone; a crash leaves the old text or the new."""
        unfinished = self.path / f"{name}.unfinished"
        unfinished.unlink(missing_ok=True)
        unfinished.touch(mode=0o600)
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(self.path / name)


@contextmanager
def databases(state: StateDirectory, lock: int, database_url: str | None, redis_url: str | None) -> Iterator[Addresses]:
    """Yield the given databases, and embedded ones in *state* for those that are not given, stopped at the end."""
    with ExitStack() as stack:
        if database_url is None:
            postgres = Postgres(state.path, pass_fds=(lock,))
            stack.callback(postgres.child.stop)
            postgres.start()
            database_url = postgres.url()
        if redis_url is None:
            valkey = Valkey(state.path, pass_fds=(lock,))
            stack.callback(valkey.child.stop)
            valkey.start()
            redis_url = valkey.url()
        yield Addresses(database_url, redis_url)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_pid(lock: Path) -> int | None:
    text = lock.read_text(encoding="utf-8").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _is_alive(pid: int | None) -> bool:
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
