"""
Every table, as SQLAlchemy Core sees it. `migrations/` creates them; `make check` proves that both agree.

Rows are small facts; what they mean together is in the module of each resource. `usage_ledger` is append-only: nothing
in the product updates or deletes a row of it.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


def _created_at() -> Column[object]:
    return Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now())


def _limits() -> tuple[Column[int], Column[int], Column[int]]:
    """Return the three limit columns; null means unlimited."""
    return (
        Column("requests_per_minute", Integer),
        Column("tokens_per_minute", Integer),
        Column("concurrency", Integer),
    )


tenant = Table(
    "tenant",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("disabled_at", DateTime(timezone=True)),
    *_limits(),
    _created_at(),
)

person = Table(
    "person",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", ForeignKey("tenant.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("email", Text),
    Column("disabled_at", DateTime(timezone=True)),
    _created_at(),
    UniqueConstraint("tenant_id", "name"),
)

api_key = Table(
    "api_key",
    metadata,
    Column("id", Text, primary_key=True),  # the public part of the key
    Column("tenant_id", ForeignKey("tenant.id"), nullable=False, index=True),
    Column("person_id", ForeignKey("person.id"), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("secret_hash", LargeBinary, nullable=False),  # HMAC-SHA-256(pepper, secret)
    Column("last4", Text, nullable=False),
    Column("models", ARRAY(Text)),  # null: every model
    *_limits(),
    _created_at(),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    Column("revoked_at", DateTime(timezone=True)),
)

admin_credential = Table(
    "admin_credential",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("last4", Text, nullable=False),
    _created_at(),
    Column("expires_at", DateTime(timezone=True)),
    Column("revoked_at", DateTime(timezone=True)),
    CheckConstraint("role IN ('platform_admin', 'worker')", name="role"),
)

tokenizer = Table(
    "tokenizer",
    metadata,
    Column("sha256", Text, primary_key=True),  # of the canonical upload, see store/tokenizers.py
    Column("tokenizer_json", LargeBinary, nullable=False),  # zlib
    Column("chat_template", Text),
    Column("special_tokens", Text, nullable=False),  # JSON object: bos_token, eos_token …
    _created_at(),
)

replica = Table(
    "replica",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("base_url", Text, nullable=False, unique=True),
    Column("model", Text, nullable=False, index=True),
    Column("state", Text, nullable=False),  # as its worker declares it; ejection is each gateway's own judgement
    Column("detail", Text),  # what it is doing, for people: "loading weights, 40 %"
    Column("token_cipher", LargeBinary),  # vLLM's api key, encrypted with a key derived from the root secret
    Column("max_model_len", Integer, nullable=False),
    Column("slots", Integer, nullable=False),  # sequences the engine runs at once
    Column("engine", Text),  # "vllm 0.32.0"
    Column("tokenizer_sha256", ForeignKey("tokenizer.sha256")),
    Column("managed", Boolean, nullable=False),  # a worker sends heartbeats for it
    Column("heartbeat_at", DateTime(timezone=True)),
    _created_at(),
    CheckConstraint("state IN ('loading', 'warming', 'ready', 'draining', 'gone')", name="state"),
    CheckConstraint("max_model_len > 0 AND slots > 0", name="sizes"),
)

control_rev = Table(
    "control_rev",
    metadata,
    Column("id", Boolean, primary_key=True, server_default=text("true")),
    Column("keys_rev", BigInteger, nullable=False, server_default=text("0")),  # raised by triggers, see migrations
    Column("replicas_rev", BigInteger, nullable=False, server_default=text("0")),
    CheckConstraint("id", name="single_row"),
)

gateway_instance = Table(
    "gateway_instance",
    metadata,
    Column("owner", Uuid, primary_key=True),
    Column("lease_until", DateTime(timezone=True), nullable=False),  # Postgres's clock only
    Column("host", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

inflight = Table(
    "inflight",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    Column("owner", Uuid, nullable=False, index=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("person_id", Uuid, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("opened_at", DateTime(timezone=True), nullable=False),
    Column("bill_day", Date, nullable=False),
    Column("hold_tokens", BigInteger, nullable=False),
    Column("dispatched", Boolean, nullable=False, server_default=text("false")),
    Column("ck_prompt", BigInteger, nullable=False, server_default=text("0")),
    Column("ck_completion", BigInteger, nullable=False, server_default=text("0")),
    Column("ck_cached", BigInteger, nullable=False, server_default=text("0")),
    Column("ck_at", DateTime(timezone=True)),
    # Rows live for seconds and are updated once a second: leave room on the page for HOT updates.
    postgresql_with={"fillfactor": "50"},
)

usage_ledger = Table(
    "usage_ledger",
    metadata,
    Column("bill_day", Date, nullable=False, primary_key=True),
    Column("request_id", Uuid, nullable=False, primary_key=True),
    Column("seq", SmallInteger, nullable=False, primary_key=True, server_default=text("0")),
    Column("kind", Text, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("person_id", Uuid, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("replica", Text),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("usage_source", Text, nullable=False),
    Column("ending", Text, nullable=False),
    Column("attempts", SmallInteger, nullable=False),
    Column("opened_at", DateTime(timezone=True), nullable=False),
    Column("first_token_seconds", Double),
    Column("settled_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Column("cost", Numeric(20, 10)),
    Column("price_rev", BigInteger),
    CheckConstraint("kind IN ('base', 'adjustment')", name="kind"),
    CheckConstraint("(kind = 'base') = (seq = 0)", name="base_is_seq_0"),
    Index("ix_usage_ledger_tenant_id_bill_day", "tenant_id", "bill_day"),
    postgresql_partition_by="RANGE (bill_day)",
)
