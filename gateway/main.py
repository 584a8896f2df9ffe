"""
Where the program starts: the command line, and the one command that needs everything, `serve`.

A floor above the rest, so that the command line itself never imports the server.
"""

from gateway.cli import cli, settings_from_environment


@cli.command("serve")
def serve() -> None:
    """Run one gateway process until SIGTERM. Run as many as you like, on as many machines."""
    from gateway.serve import run

    run(settings_from_environment())


if __name__ == "__main__":
    cli()
