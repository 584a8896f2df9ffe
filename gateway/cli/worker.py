"""
`weighbridge worker`: hand over to `python -m workers`, which launches and watches vLLM.

The gateway never imports the workers; this command replaces itself with them, so that signals reach them directly.
"""

import os
import sys

import rich_click as click


@click.command(
    "worker",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def worker(arguments: tuple[str, ...]) -> None:
    """Launch and watch vLLM for MODEL on this machine's GPUs, or its CPU; `weighbridge worker --help` has the options."""
    # flush: what replaces this process starts with empty buffers
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "workers", "serve", *arguments])  # noqa: S606 - ourselves
