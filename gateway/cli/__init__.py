"""
The command line: `weighbridge COMMAND`.

`migrate` and `admin-credential` work on the database, since they must work before any gateway runs; whatever else an admin
does goes through the admin API.
"""

import asyncio
import os

import rich_click as click

from gateway import __version__
from gateway.auth.keys import KeyKind, issue
from gateway.errors import WeighbridgeError
from gateway.settings import Settings, load
from gateway.store import credentials, migrate
from gateway.store.engine import create_engine
from gateway.vocabulary import AdminRole


class _Group(click.RichGroup):
    """Prints our own errors as one message and ends with 2; anything else is a bug and shows itself."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except WeighbridgeError as error:
            click.echo(error.message, err=True)
            raise SystemExit(2) from None


def settings_from_environment() -> Settings:
    """Return the settings of this process."""
    return load(os.environ)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="weighbridge")
def cli() -> None:
    """The gateway in front of vLLM: a key per person, an exact bill, limits that hold."""


@cli.command("migrate")
def migrate_command() -> None:
    """Bring the database to this release's tables. Safe to run twice, or from many machines at once."""
    migrate.upgrade(settings_from_environment().database_url)
    click.echo("The database is up to date.")


@cli.group("admin-credential")
def admin_credential() -> None:
    """Credentials for the admin API; they cannot call models."""


@admin_credential.command("create")
@click.option("--name", required=True, help="What it is for, for people.")
@click.option(
    "--role", type=click.Choice([role.value for role in AdminRole]), default="platform_admin", show_default=True
)
def create_credential(name: str, role: str) -> None:
    """Create a credential and print it, once."""
    settings = settings_from_environment()
    new = issue(KeyKind.ADMIN, settings.secrets.derive("key-pepper"))

    async def create() -> None:
        engine = create_engine(settings.database_url)
        try:
            await credentials.create(
                engine,
                credential_id=new.id,
                name=name,
                role=AdminRole(role),
                secret_hash=new.secret_hash,
                last4=new.last4,
            )
        finally:
            await engine.dispose()

    asyncio.run(create())
    click.echo(new.text)
