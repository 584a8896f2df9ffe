"""
Bring .venv to a lock: `python3 deploy/install.py runtime` (to run) or `python3 deploy/install.py dev` (to test).

Runs on a machine that has nothing but Python and pip, so it imports only the standard library. Every package is checked
against the lock's hashes. A second call with an unchanged lock returns at once.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST, TOO_NEW = (3, 11), (3, 14)
PIN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*==", re.MULTILINE)
#: what each lock provides; `dev` holds every pin of `runtime` (tests/unit/deploy/test_locks.py)
PROVIDES = {"runtime": ("runtime",), "dev": ("dev", "runtime")}
BAR_CELLS = 24


def main() -> int:
    """Install what the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lock", choices=tuple(PROVIDES))
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    chosen = parser.parse_args()
    if not OLDEST <= sys.version_info[:2] < TOO_NEW:
        print(
            f"Weighbridge runs on Python 3.11 to 3.13; this is {sys.version.split()[0]} ({sys.executable}).\n"
            "Name another one: make run PYTHON=python3.12",
            file=sys.stderr,
        )
        return 1
    return install(chosen.lock, chosen.venv)


def install(lock: str, directory: Path) -> int:
    """Make *directory* hold exactly the pins of *lock* and this checkout, editable; return the exit status."""
    stamp = directory / ".weighbridge-installed"
    python = directory / "bin" / "python"
    if runs(python) and stamp.exists():
        installed, _, digest = stamp.read_text(encoding="utf-8").strip().partition(" ")
        if lock in PROVIDES.get(installed, ()) and digest == digest_of(installed):
            return 0
    stamp.unlink(missing_ok=True)
    if not runs(python):
        shutil.rmtree(directory, ignore_errors=True)
        try:
            venv.create(directory, with_pip=True)
        except (OSError, subprocess.CalledProcessError):
            print(
                f"{sys.executable} cannot create a virtual environment with pip. On Debian and Ubuntu: "
                "apt install python3-venv",
                file=sys.stderr,
            )
            return 1
    pins = lock_path(lock)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install"]
    status = run_pip(
        [*pip, "--require-hashes", "-r", str(pins)], f"Installing {directory.name}", count=count_pins(pins)
    ) or run_pip([*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT)], "Installing weighbridge", count=1)
    if status == 0:
        stamp.write_text(f"{lock} {digest_of(lock)}\n", encoding="utf-8")
    return status


def lock_path(lock: str) -> Path:
    """Return where *lock* lies."""
    return ROOT / "deploy" / "locks" / f"{lock}.txt"


def count_pins(path: Path) -> int:
    """Return how many packages the lock at *path* names."""
    return len(PIN.findall(path.read_text(encoding="utf-8")))


def digest_of(lock: str) -> str:
    """Return a digest of everything that an installation depends on, the place of this checkout included."""
    digest = hashlib.sha256(os.fsencode(ROOT))
    for path in (lock_path(lock), ROOT / "pyproject.toml"):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def runs(python: Path) -> bool:
    """Tell whether *python* works: a virtual environment dies with the interpreter it was made from."""
    try:
        return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def run_pip(command: list[str], title: str, *, count: int) -> int:
    """Run pip showing how far it is; show all it said if it fails. Return its exit status."""
    shows_bar = sys.stderr.isatty()
    begun = time.monotonic()
    if not shows_bar:
        print(f"{title}: {count} packages …", file=sys.stderr, flush=True)
    said: list[str] = []
    collected = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            said.append(line)
            collected += line.startswith(("Collecting ", "Requirement already satisfied: "))
            if shows_bar:
                step = "unpacking" if line.startswith("Installing collected") else f"{min(collected, count)}/{count}"
                filled = min(collected, count) * BAR_CELLS // count
                print(f"\r{title}  {'━' * filled}{'╌' * (BAR_CELLS - filled)}  {step:<12}", end="", file=sys.stderr)
                sys.stderr.flush()
    if process.returncode != 0:
        print(f"\n{''.join(said[-40:])}", file=sys.stderr)
        print(f"{title} failed; pip's last lines are above.", file=sys.stderr)
        return process.returncode
    ending = f"{title}: {count} packages in {time.monotonic() - begun:.0f} s"
    print(f"\r{ending:<79}" if shows_bar else ending, file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
