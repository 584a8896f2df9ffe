"""
Everything that is configured, read once, checked whole, frozen.

Three homes: the environment holds addresses and secrets; `gateway.toml` holds models, timeouts and defaults; Postgres
holds tenants, keys, limits and replicas. This module reads the first two and nothing else in the code reads them.
Every problem is reported at once, so that nobody repairs a configuration one restart at a time.
"""

import base64
import binascii
import hashlib
import hmac
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from gateway.errors import InvalidSettings
from gateway.vocabulary import Limits

MIN_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Listen:
    """One listening address."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Return the address as a client on this machine would write it."""
        host = "127.0.0.1" if self.host in {"0.0.0.0", "::"} else self.host  # noqa: S104 - compared, not bound
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Tell whether only this machine can connect."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True, slots=True)
class Secrets:
    """
    Keys for one purpose each, derived from the root secret by HMAC-SHA-256 over a label.

    Losing the root secret makes every stored key hash useless; leaking one derived key leaks no other.
    """

    root: bytes = field(repr=False)

    def derive(self, purpose: str) -> bytes:
        """Return the 32-byte key for *purpose*."""
        return hmac.new(self.root, b"weighbridge/v1/" + purpose.encode(), hashlib.sha256).digest()


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Bounded waits of the inference path, in seconds."""

    connect: float = 1.0
    first_token: float = 120.0
    stall: float = 30.0  #: between two chunks of a running stream
    request: float = 1800.0  #: for one whole request
    slow_reader: float = 60.0  #: a client that takes nothing for this long is treated as gone
    drain: float = 60.0  #: at shutdown, for running requests to finish


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one request may ask for."""

    body_bytes: int = 4 * 1024 * 1024
    default_max_tokens: int = 4096  #: when the client sets none; never more than the context has left
    choices: int = 4
    answer_bytes: int = 32 * 1024 * 1024  #: of a non-streamed answer
    event_bytes: int = 1024 * 1024  #: of one SSE event


@dataclass(frozen=True, slots=True)
class Health:
    """How replicas are probed."""

    probe_interval_seconds: float = 2.0
    probe_timeout_seconds: float = 5.0
    failures_to_eject: int = 3
    successes_to_return: int = 3
    heartbeat_expiry_seconds: float = 20.0  #: a registered worker silent for this long is gone


@dataclass(frozen=True, slots=True)
class Lease:
    """How a living gateway process proves that it lives."""

    seconds: float = 5.0
    renew_seconds: float = 1.0
    reconcile_after_seconds: float = 5.0  #: added to the lease before an orphan's rows are settled


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """What `gateway.toml` says about one model."""

    default_max_tokens: int | None = None
    extra_fields: frozenset[str] = frozenset()  #: body fields forwarded although the policy table refuses them


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it."""

    database_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    secrets: Secrets
    public: Listen = Listen("127.0.0.1", 8080)
    admin: Listen = Listen("127.0.0.1", 8081)
    internal: Listen = Listen("127.0.0.1", 8082)
    timeouts: Timeouts = Timeouts()
    bounds: Bounds = Bounds()
    health: Health = Health()
    lease: Lease = Lease()
    key_defaults: Limits = Limits(requests_per_minute=60, tokens_per_minute=100_000, concurrency=10)
    key_days: int = 90  #: a new key expires after this many days
    database_pool: int = 10
    redis_timeout_seconds: float = 0.5
    log_format: str = "json"
    log_level: str = "info"
    models: Mapping[str, ModelPolicy] = field(default_factory=dict)

    def policy_of(self, model: str) -> ModelPolicy:
        """Return what is configured for *model*, or the defaults."""
        return self.models.get(model, ModelPolicy())


@dataclass(frozen=True, slots=True)
class AdminClientSettings:
    """How the command line and the workers reach the admin listener."""

    admin_url: str
    admin_key: str = field(repr=False)


def load(environ: Mapping[str, str]) -> Settings:
    """
    Return the settings of a gateway process.

    Environment: `DATABASE_URL`, `REDIS_URL`, `WEIGHBRIDGE_SECRET` (required); `WEIGHBRIDGE_PUBLIC`, `WEIGHBRIDGE_ADMIN`,
    `WEIGHBRIDGE_INTERNAL` (host:port), `WEIGHBRIDGE_CONFIG` (path of gateway.toml), `WEIGHBRIDGE_LOG_FORMAT`
    (json or console), `WEIGHBRIDGE_LOG_LEVEL`.

    Raises:
        InvalidSettings: lists every problem found.
    """
    problems: list[str] = []
    settings = Settings(
        database_url=_database_url(environ.get("DATABASE_URL", ""), problems),
        redis_url=_redis_url(environ.get("REDIS_URL", ""), problems),
        secrets=Secrets(_secret(environ.get("WEIGHBRIDGE_SECRET", ""), problems)),
        public=_listen(environ, "WEIGHBRIDGE_PUBLIC", Listen("127.0.0.1", 8080), problems),
        admin=_listen(environ, "WEIGHBRIDGE_ADMIN", Listen("127.0.0.1", 8081), problems),
        internal=_listen(environ, "WEIGHBRIDGE_INTERNAL", Listen("127.0.0.1", 8082), problems),
        log_format=_one_of(environ, "WEIGHBRIDGE_LOG_FORMAT", ("json", "console"), problems),
        log_level=_one_of(environ, "WEIGHBRIDGE_LOG_LEVEL", ("info", "debug", "warning", "error"), problems),
    )
    if path := environ.get("WEIGHBRIDGE_CONFIG"):
        settings = _with_file(settings, Path(path), problems)
    if problems:
        raise InvalidSettings(problems)
    return settings


def load_admin_client(environ: Mapping[str, str]) -> AdminClientSettings:
    """
    Return where the admin listener is and the credential to use there.

    Environment: `WEIGHBRIDGE_ADMIN_URL` (default http://127.0.0.1:8081), `WEIGHBRIDGE_ADMIN_KEY` (required).

    Raises:
        InvalidSettings: lists every problem found.
    """
    problems: list[str] = []
    url = environ.get("WEIGHBRIDGE_ADMIN_URL", "http://127.0.0.1:8081").rstrip("/")
    if urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname:
        problems.append("WEIGHBRIDGE_ADMIN_URL: write it as http://host:port, the address of the admin listener")
    key = environ.get("WEIGHBRIDGE_ADMIN_KEY", "")
    if not key:
        problems.append(
            "WEIGHBRIDGE_ADMIN_KEY: set it to an admin credential (ak-wb-…); "
            "`weighbridge admin-credential create` makes one on the gateway's machine"
        )
    if problems:
        raise InvalidSettings(problems)
    return AdminClientSettings(url, key)


def _database_url(value: str, problems: list[str]) -> str:
    parts = urlsplit(value)
    if not value:
        problems.append("DATABASE_URL: set it, for example postgresql://user:password@host:5432/weighbridge")
    elif parts.scheme.split("+")[0] not in {"postgresql", "postgres"}:
        problems.append("DATABASE_URL: must begin with postgresql://")
    return "postgresql+asyncpg://" + value.partition("://")[2]


def _redis_url(value: str, problems: list[str]) -> str:
    if not value:
        problems.append("REDIS_URL: set it, for example redis://host:6379/0")
    elif urlsplit(value).scheme not in {"redis", "rediss", "unix"}:
        problems.append("REDIS_URL: must begin with redis://, rediss:// or unix://")
    return value


def _secret(value: str, problems: list[str]) -> bytes:
    try:
        secret = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) < MIN_SECRET_BYTES:
        problems.append(
            f"WEIGHBRIDGE_SECRET: set it to at least {MIN_SECRET_BYTES} random bytes in base64; "
            "`openssl rand -base64 32` makes them. Keep it: without it no issued key works any more"
        )
    return secret


def _listen(environ: Mapping[str, str], name: str, default: Listen, problems: list[str]) -> Listen:
    value = environ.get(name)
    if value is None:
        return default
    host, separator, port = value.rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        problems.append(f"{name}: write it as host:port, for example 0.0.0.0:8080")
        return default
    return Listen(host.strip("[]"), int(port))


def _one_of(environ: Mapping[str, str], name: str, choices: tuple[str, ...], problems: list[str]) -> str:
    value = environ.get(name, choices[0])
    if value not in choices:
        problems.append(f"{name}: must be one of {', '.join(choices)}")
        return choices[0]
    return value


Section = TypeVar("Section", Timeouts, Bounds, Health, Lease)


def _with_file(settings: Settings, path: Path, problems: list[str]) -> Settings:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        problems.append(f"WEIGHBRIDGE_CONFIG: {path} cannot be read")
        return settings
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"{path}: not valid TOML: {error}")
        return settings
    known = {"timeouts", "bounds", "health", "lease", "keys", "models"}
    problems += [f"{path}: unknown section [{name}]" for name in document if name not in known]
    keys = _table(document, "keys", problems)
    key_days = keys.pop("expire_after_days", settings.key_days)
    if not isinstance(key_days, int) or isinstance(key_days, bool) or not 1 <= key_days <= 366:
        problems.append("keys.expire_after_days: must be a whole number from 1 to 366")
        key_days = settings.key_days
    return replace(
        settings,
        timeouts=_section(settings.timeouts, "timeouts", document, problems),
        bounds=_section(settings.bounds, "bounds", document, problems),
        health=_section(settings.health, "health", document, problems),
        lease=_section(settings.lease, "lease", document, problems),
        key_defaults=_checked(settings.key_defaults, "keys", keys, problems),
        key_days=key_days,
        models={name: _model(name, policy, problems) for name, policy in _table(document, "models", problems).items()},
    )


def _table(document: Mapping[str, Any], name: str, problems: list[str]) -> dict[str, Any]:
    table = document.get(name, {})
    if isinstance(table, dict):
        return dict(table)
    problems.append(f"[{name}]: must be a table")
    return {}


def _section(default: Section, name: str, document: Mapping[str, Any], problems: list[str]) -> Section:
    return _checked(default, name, _table(document, name, problems), problems)


Checked = TypeVar("Checked", Timeouts, Bounds, Health, Lease, Limits)


def _checked(default: Checked, name: str, table: Mapping[str, Any], problems: list[str]) -> Checked:
    """Return *default* with the values of *table*, each a positive number of the field's own kind."""
    accepted: dict[str, Any] = {}
    known = {item.name: getattr(default, item.name) for item in fields(default)}
    for key, value in table.items():
        if key not in known:
            problems.append(f"{name}.{key}: unknown setting; known are {', '.join(known)}")
        elif isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            problems.append(f"{name}.{key}: must be a number above 0")
        elif isinstance(known[key], int) and not isinstance(value, int):
            problems.append(f"{name}.{key}: must be a whole number")
        else:
            accepted[key] = value
    return replace(default, **accepted)


def _model(name: str, policy: object, problems: list[str]) -> ModelPolicy:
    if not isinstance(policy, dict):
        problems.append(f'[models."{name}"]: must be a table')
        return ModelPolicy()
    tokens = policy.get("default_max_tokens")
    extra = policy.get("extra_fields", [])
    problems += [
        f'models."{name}".{key}: unknown setting; known are default_max_tokens, extra_fields'
        for key in policy
        if key not in {"default_max_tokens", "extra_fields"}
    ]
    if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool) or tokens <= 0):
        problems.append(f'models."{name}".default_max_tokens: must be a whole number above 0')
        tokens = None
    if not isinstance(extra, list) or not all(isinstance(item, str) for item in extra):
        problems.append(f'models."{name}".extra_fields: must be a list of field names')
        extra = []
    return ModelPolicy(tokens, frozenset(extra))
