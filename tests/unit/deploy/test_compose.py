"""The promises that compose.yaml makes; that it is valid Compose is part of `make check`."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[3]
COMPOSE: dict[str, Any] = YAML(typ="safe").load(ROOT / "compose.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
WORKERS = [name for name in SERVICES if name.startswith("worker-")]


def test_only_the_public_listener_is_published_and_only_to_this_machine() -> None:
    """Nobody exposes the admin API, a database or an engine by starting the stack."""
    published = {name: service["ports"] for name, service in SERVICES.items() if service.get("ports")}

    assert published == {"gateway": ["${WEIGHBRIDGE_PUBLISH:-127.0.0.1:8080}:8080"]}
    assert COMPOSE["networks"]["inside"]["internal"] is True


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_confined(name: str) -> None:
    """A process that is taken over can change nothing in its image and gain no privilege."""
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", WORKERS)
def test_every_worker_has_a_gpu_of_its_own(name: str) -> None:
    """Two engines on one GPU would each believe that its memory is theirs."""
    (device,) = SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]

    assert device == {"driver": "nvidia", "device_ids": [name.removeprefix("worker-")], "capabilities": ["gpu"]}


def test_no_secret_has_a_default() -> None:
    """A stack that starts without a chosen password would be one that everybody knows."""
    text = (ROOT / "compose.yaml").read_text()

    for name in ("POSTGRES_PASSWORD", "VALKEY_PASSWORD", "WEIGHBRIDGE_SECRET"):
        assert f"${{{name}:?" in text
        assert f"${{{name}:-" not in text


def test_the_example_environment_names_every_variable() -> None:
    """Whoever copies the example is asked for everything that the stack wants to know."""
    example = (ROOT / "deploy" / "compose.env.example").read_text()
    names = {line.partition("=")[0] for line in example.splitlines() if "=" in line and not line.startswith("#")}
    wanted = {part.partition("}")[0].partition(":")[0] for part in (ROOT / "compose.yaml").read_text().split("${")[1:]}

    assert names == wanted
