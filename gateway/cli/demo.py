"""
The first credentials and the first key, so that the first request needs no reading.

A development convenience: `weighbridge up` keeps what it created here in a file of its state directory and prints it at
every start. A deployment creates its own with `weighbridge admin-credential create` and never stores them.
"""

import asyncio
import json
from dataclasses import asdict, dataclass, field, replace

import httpx
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.syntax import Syntax

from gateway.auth.keys import KeyKind, issue
from gateway.cli.services import StateDirectory
from gateway.settings import Settings
from gateway.store import credentials
from gateway.store.engine import create_engine
from gateway.vocabulary import AdminRole

KEPT_AS = "credentials.json"
TENANT, PERSON = "demo", "developer"
SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Demo:
    """What a developer needs to try the gateway. Empty strings: not created yet."""

    admin_key: str = field(default="", repr=False)
    worker_key: str = field(default="", repr=False)
    api_key: str = field(default="", repr=False)


def load(state: StateDirectory) -> Demo:
    """Return what an earlier run created."""
    kept = state.read_json(KEPT_AS)
    return Demo(**{name: kept.get(name, "") for name in asdict(Demo())})


def ensure_credentials(state: StateDirectory, settings: Settings) -> Demo:
    """Return the demo with credentials that the gateway at *settings* accepts, creating what is missing."""
    demo = load(state)
    with httpx.Client(base_url=settings.admin.url, timeout=SECONDS) as client:
        if not _is_accepted(client, "/admin/v1/replicas", demo.admin_key):
            demo = replace(demo, admin_key=_create_credential(settings, AdminRole.PLATFORM_ADMIN))
        if not _is_accepted(client, "/admin/v1/replicas", demo.worker_key):
            demo = replace(demo, worker_key=_create_credential(settings, AdminRole.WORKER))
        with httpx.Client(base_url=settings.public.url, timeout=SECONDS) as public:
            if not _is_accepted(public, "/v1/models", demo.api_key):
                demo = replace(demo, api_key=_create_key(client, demo.admin_key))
    state.write(KEPT_AS, json.dumps(asdict(demo), indent=2) + "\n")
    return demo


def _is_accepted(client: httpx.Client, path: str, key: str) -> bool:
    return bool(key) and client.get(path, headers=_bearer(key)).is_success


def _create_credential(settings: Settings, role: AdminRole) -> str:
    """Create a credential in the database: before the first one nobody may ask the admin API for it."""
    new = issue(KeyKind.ADMIN, settings.secrets.derive("key-pepper"))

    async def create() -> None:
        engine = create_engine(settings.database_url)
        try:
            await credentials.create(
                engine,
                credential_id=new.id,
                name=f"weighbridge up ({role.value})",
                role=role,
                secret_hash=new.secret_hash,
                last4=new.last4,
            )
        finally:
            await engine.dispose()

    asyncio.run(create())
    return new.text


def _create_key(client: httpx.Client, admin_key: str) -> str:
    headers = _bearer(admin_key)
    tenant = _find_or_create(client, "/admin/v1/tenants", {"name": TENANT}, headers)
    person = _find_or_create(client, f"/admin/v1/tenants/{tenant}/people", {"name": PERSON}, headers)
    answer = client.post(
        f"/admin/v1/tenants/{tenant}/keys", json={"person_id": person, "name": "first key"}, headers=headers
    ).raise_for_status()
    return str(answer.json()["key"])


def _find_or_create(client: httpx.Client, path: str, body: dict[str, str], headers: dict[str, str]) -> str:
    """Return the id of the object called `body["name"]`."""
    listed = client.get(path, headers=headers).raise_for_status().json()["data"]
    for item in listed:
        if item["name"] == body["name"]:
            return str(item["id"])
    return str(client.post(path, json=body, headers=headers).raise_for_status().json()["id"])


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def show(console: Console, demo: Demo, settings: Settings, model: str, state: StateDirectory, seconds: float) -> None:
    """Print what to try, ready to be copied."""
    url = f"{settings.public.url}/v1"
    curl = (
        f"curl {url}/chat/completions \\\n"
        f'  -H "Authorization: Bearer {demo.api_key}" \\\n'
        f'  -H "Content-Type: application/json" \\\n'
        f'  -d \'{{"model": "{model}", "messages": [{{"role": "user", "content": "What is a weighbridge?"}}]}}\''
    )
    python = (
        "from openai import OpenAI\n\n"
        f'client = OpenAI(base_url="{url}", api_key="{demo.api_key}")\n'
        "answer = client.chat.completions.create(\n"
        f'    model="{model}", messages=[{{"role": "user", "content": "What is a weighbridge?"}}]\n'
        ")\n"
        "print(answer.choices[0].message.content, answer.usage)"
    )
    usage = (
        f"export WEIGHBRIDGE_ADMIN_URL={settings.admin.url} WEIGHBRIDGE_ADMIN_KEY={demo.admin_key}\n"
        f".venv/bin/weighbridge usage --tenant {TENANT}"
    )
    console.print()
    console.print(
        Panel.fit(
            f"[bold]Weighbridge answers at {escape(url)}[/]   (ready after {seconds:.0f} s)\n"
            f"model             {escape(model)}\n"
            f"developer's key   {demo.api_key}\n"
            f"admin API         {escape(settings.admin.url)}/admin/v1\n"
            f"admin credential  {demo.admin_key}",
            border_style="green",
        ),
        soft_wrap=True,
    )
    for title, language, text in (("curl", "bash", curl), ("Python", "python", python), ("the bill", "bash", usage)):
        console.print(f"\n[dim]── {title}[/]")
        _print_code(console, text, language)
    console.print(
        f"\n[dim]The key and both credentials are kept in {escape(str(state.path / KEPT_AS))} and printed at every start: a "
        f"convenience for development.\nLogs: {escape(str(state.path))}/*.log. Ctrl-C stops everything.[/]",
        soft_wrap=True,
    )


def _print_code(console: Console, text: str, language: str) -> None:
    """Print *text* so that it can be copied: never wrapped, and coloured only on a terminal."""
    if console.is_terminal:
        highlighted = Syntax(text, language, background_color="default").highlight(text)
        highlighted.rstrip()
        console.print(highlighted, soft_wrap=True)
    else:
        console.print(text, markup=False, highlight=False, soft_wrap=True)
