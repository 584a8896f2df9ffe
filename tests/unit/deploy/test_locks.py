"""The locks that every installation comes from."""

import re
from pathlib import Path

LOCKS = Path(__file__).parents[3] / "deploy" / "locks"
OURS = ("gateway", "runtime", "dev")


def pins(lock: str) -> set[str]:
    """Return the `name==version` lines of *lock*, without their markers."""
    return set(re.findall(r"^[A-Za-z0-9._-]+==[^ ;\\]+", (LOCKS / f"{lock}.txt").read_text(), re.MULTILINE))


def test_each_lock_holds_every_pin_of_the_smaller_one() -> None:
    """`make run` after `make test` installs nothing, and a container runs the versions that were tested."""
    assert pins("gateway") < pins("runtime") < pins("dev")


def test_every_pin_carries_hashes_and_no_address() -> None:
    """A package is what it was when it was locked, wherever it comes from."""
    for lock in OURS:
        text = (LOCKS / f"{lock}.txt").read_text()

        blocks = re.split(r"\n(?=\S)", text.strip())
        assert all("--hash=sha256:" in block for block in blocks), lock
        assert "://" not in text, lock
        assert "--index-url" not in text, lock
