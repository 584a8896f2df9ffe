"""
The shared words: frozen types that more than one stage speaks of.

Knows nothing of HTTP, SQL, Redis or configuration. Whatever only one stage needs is defined in that stage.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NewType
from uuid import UUID

TenantId = NewType("TenantId", UUID)
PersonId = NewType("PersonId", UUID)
ReplicaId = NewType("ReplicaId", UUID)
RequestId = NewType("RequestId", UUID)
OwnerId = NewType("OwnerId", UUID)  #: one gateway process, from its start to its end
KeyId = NewType("KeyId", str)  #: the public part of a key: 12 base62 characters, safe to log


class Endpoint(StrEnum):
    """An inference endpoint, named as reports name it."""

    CHAT_COMPLETIONS = "chat.completions"
    COMPLETIONS = "completions"

    @property
    def path(self) -> str:
        """Return the path that both our clients and vLLM use."""
        return "/v1/" + self.value.replace(".", "/")


class Ending(StrEnum):
    """How a request ended; every ledger row carries one."""

    OK = "ok"
    LENGTH_CUT = "length_cut"
    CLIENT_GONE = "client_gone"
    REPLICA_LOST = "replica_lost"
    TIMEOUT = "timeout"
    REFUSED = "refused"  #: the replica itself answered with a 4xx
    BUDGET_CUT = "budget_cut"
    REVOKED = "revoked"
    GATEWAY_LOST = "gateway_lost"
    NOT_DISPATCHED = "not_dispatched"


class UsageSource(StrEnum):
    """Where the billed tokens come from, the most trusted first."""

    FINAL = "final"  #: the replica's closing usage report
    RUNNING = "running"  #: the replica's last running report before the stream was cut
    COUNTED = "counted"  #: counted by us, because the replica reported nothing believable
    CHECKPOINT = "checkpoint"  #: the last count a lost gateway process had written down
    NONE = "none"  #: nothing was produced


class ReplicaState(StrEnum):
    """The life of a replica. Only `READY` receives traffic."""

    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    EJECTED = "ejected"
    GONE = "gone"


class AdminRole(StrEnum):
    """What an admin credential may do."""

    PLATFORM_ADMIN = "platform_admin"
    WORKER = "worker"  #: registers replicas and uploads tokenizers, nothing else


@dataclass(frozen=True, slots=True)
class Limits:
    """Rate limits of one key or one tenant. `None` means unlimited."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller, once authenticated. Only `auth.authenticator` makes one, so having it is the proof."""

    tenant_id: TenantId
    person_id: PersonId
    key_id: KeyId
    key_limits: Limits
    tenant_limits: Limits
    models: frozenset[str] | None = None  #: models this key may call; `None` allows all


@dataclass(frozen=True, slots=True)
class AdminPrincipal:
    """An authenticated admin credential."""

    credential_id: str
    name: str
    role: AdminRole


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key as the store knows it: what an authenticator needs to recognise it. Holds no secret, only its hash."""

    key_id: KeyId
    secret_hash: bytes = field(repr=False)
    tenant_id: TenantId
    person_id: PersonId
    key_limits: Limits
    tenant_limits: Limits
    models: frozenset[str] | None
    is_valid: bool  #: neither revoked nor expired, and its person and tenant are enabled (Postgres's clock)
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class StoredCredential:
    """An admin credential as the store knows it."""

    credential_id: str
    name: str
    role: AdminRole
    secret_hash: bytes = field(repr=False)
    is_valid: bool


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request."""

    prompt_tokens: int = 0  #: includes `cached_tokens`
    completion_tokens: int = 0  #: includes `reasoning_tokens`
    cached_tokens: int = 0  #: prompt tokens served from the prefix cache
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Return prompt plus completion, which is what rate limits count."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """What the client asked, after validation against the field policy (`api/fields.py`)."""

    endpoint: Endpoint
    model: str
    body: Mapping[str, object]  #: validated fields as the client sent them, without the fields that we own
    stream: bool = False
    include_usage: bool = False  #: the client asked for `stream_options.include_usage`
    continuous_usage: bool = False  #: the client asked for `stream_options.continuous_usage_stats`
    choices: int = 1  #: completions to be produced: `n`, times the prompts of a completions batch
    max_tokens: int | None = None  #: per choice, as the client set it


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model as its replicas serve it."""

    name: str
    max_model_len: int  #: context window in tokens: prompt plus completion
    tokenizer_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """What a replica said about its queue at one moment."""

    running: int
    waiting: int
    kv_cache_usage: float  #: 0–1
    observed_at: float  #: monotonic seconds


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What one probe of a replica found: its `load`, or the `reason` why it is not well, in words for an admin."""

    load: ReplicaLoad | None = None
    tokens_total: float | None = None  #: all tokens the engine ever processed; stands still when it is wedged
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """Where and how to reach a replica."""

    id: ReplicaId
    name: str
    base_url: str
    token: str | None = field(default=None, repr=False)  #: vLLM's `--api-key`; never logged


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica as the store knows it. `state` is what its worker declared; ejection is each gateway's judgement."""

    address: ReplicaAddress
    model: str
    state: ReplicaState
    max_model_len: int  #: tokens
    slots: int  #: sequences that its engine runs at once
    detail: str | None = None
    engine: str | None = None
    tokenizer_sha256: str | None = None
    managed: bool = False  #: a worker sends heartbeats for it
    heartbeat_at: datetime | None = None
    registered_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What is needed to count a model's prompt tokens, as its worker uploaded it."""

    sha256: str
    tokenizer_json: bytes = field(repr=False)
    chat_template: str | None = field(repr=False)
    special_tokens: Mapping[str, str] = field(
        default_factory=dict
    )  #: bos_token, eos_token … as the template names them


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """The limits in force, as the response headers report them. `None` means that no such limit exists."""

    limit_requests: int | None = None
    remaining_requests: int | None = None
    reset_requests_seconds: float = 0.0  #: until the full burst of requests is available again
    limit_tokens: int | None = None
    remaining_tokens: int | None = None
    reset_tokens_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class OpenRow:
    """The right to bill one request, to be written before anything is sent to a replica."""

    request_id: RequestId
    tenant_id: TenantId
    person_id: PersonId
    key_id: KeyId
    model: str
    endpoint: Endpoint
    hold_tokens: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """How one opened request ended; turns its open row into a ledger row."""

    request_id: RequestId
    ending: Ending
    usage: Usage
    usage_source: UsageSource
    attempts: int
    replica: str | None = None  #: name of the replica that answered
    first_token_seconds: float | None = None  #: from opening to the first token


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Tokens of a running request, written once a second so that a killed process loses at most one second."""

    request_id: RequestId
    usage: Usage


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One billed request as the ledger holds it."""

    request_id: RequestId
    tenant_id: TenantId
    person_id: PersonId
    key_id: KeyId
    model: str
    endpoint: str
    usage: Usage
    usage_source: UsageSource
    ending: Ending
    attempts: int
    replica: str | None
    opened_at: datetime
    settled_at: datetime
