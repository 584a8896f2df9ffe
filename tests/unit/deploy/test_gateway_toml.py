"""The example configuration."""

import base64
import tomllib
from dataclasses import fields
from pathlib import Path

from gateway.settings import ModelPolicy, load

EXAMPLE = Path(__file__).parents[3] / "deploy" / "gateway.toml"
ENVIRONMENT = {
    "DATABASE_URL": "postgresql://user@host/database",
    "REDIS_URL": "redis://host",
    "WEIGHBRIDGE_SECRET": base64.b64encode(bytes(32)).decode(),
}


def test_the_example_says_what_the_defaults_are() -> None:
    """Whoever starts from the example changes nothing until a line is changed."""
    assert load(ENVIRONMENT | {"WEIGHBRIDGE_CONFIG": str(EXAMPLE)}) == load(ENVIRONMENT)


def test_the_example_names_every_setting() -> None:
    """Whatever can be set is there to be found, with its default beside it."""
    document = tomllib.loads(EXAMPLE.read_text())
    defaults = load(ENVIRONMENT)

    for section in ("timeouts", "bounds", "health", "lease"):
        assert list(document[section]) == [item.name for item in fields(getattr(defaults, section))], section
    limits = [item.name for item in fields(defaults.key_defaults)]
    assert list(document["keys"]) == [*limits, "expire_after_days"]


def test_the_commented_model_is_valid_when_uncommented(tmp_path: Path) -> None:
    """The one part that is an example rather than a default works as it stands."""
    text = EXAMPLE.read_text()
    head, _, model = text.partition("# [models.")
    uncommented = tmp_path / "gateway.toml"
    uncommented.write_text(head + "[models." + model.replace("\n# ", "\n"))

    policy = load(ENVIRONMENT | {"WEIGHBRIDGE_CONFIG": str(uncommented)}).policy_of(
        "HuggingFaceTB/SmolLM2-135M-Instruct"
    )

    assert policy == ModelPolicy(1024, frozenset({"chat_template_kwargs"}))
    assert all(item.name in model for item in fields(ModelPolicy))
