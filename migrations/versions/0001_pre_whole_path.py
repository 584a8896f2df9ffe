"""
Tenants, people, keys, replicas, and the ledger's three tables.

Revision: 0001
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

LIMITS = "requests_per_minute integer, tokens_per_minute integer, concurrency integer"
CREATED_AT = "created_at timestamptz NOT NULL DEFAULT now()"

STATEMENTS = (
    f"""
    CREATE TABLE tenant (
        id uuid CONSTRAINT pk_tenant PRIMARY KEY,
        name text NOT NULL CONSTRAINT uq_tenant_name UNIQUE,
        disabled_at timestamptz,
        {LIMITS},
        {CREATED_AT}
    )""",
    f"""
    CREATE TABLE person (
        id uuid CONSTRAINT pk_person PRIMARY KEY,
        tenant_id uuid NOT NULL CONSTRAINT fk_person_tenant_id REFERENCES tenant (id),
        name text NOT NULL,
        email text,
        disabled_at timestamptz,
        {CREATED_AT},
        CONSTRAINT uq_person_tenant_id_name UNIQUE (tenant_id, name)
    )""",
    f"""
    CREATE TABLE api_key (
        id text CONSTRAINT pk_api_key PRIMARY KEY,
        tenant_id uuid NOT NULL CONSTRAINT fk_api_key_tenant_id REFERENCES tenant (id),
        person_id uuid NOT NULL CONSTRAINT fk_api_key_person_id REFERENCES person (id),
        name text NOT NULL,
        secret_hash bytea NOT NULL,
        last4 text NOT NULL,
        models text[],
        {LIMITS},
        {CREATED_AT},
        expires_at timestamptz NOT NULL,
        revoked_at timestamptz
    )""",
    "CREATE INDEX ix_api_key_tenant_id ON api_key (tenant_id)",
    "CREATE INDEX ix_api_key_person_id ON api_key (person_id)",
    f"""
    CREATE TABLE admin_credential (
        id text CONSTRAINT pk_admin_credential PRIMARY KEY,
        name text NOT NULL,
        role text NOT NULL CONSTRAINT ck_admin_credential_role CHECK (role IN ('platform_admin', 'worker')),
        secret_hash bytea NOT NULL,
        last4 text NOT NULL,
        {CREATED_AT},
        expires_at timestamptz,
        revoked_at timestamptz
    )""",
    f"""
    CREATE TABLE tokenizer (
        sha256 text CONSTRAINT pk_tokenizer PRIMARY KEY,
        tokenizer_json bytea NOT NULL,
        chat_template text,
        special_tokens text NOT NULL,
        {CREATED_AT}
    )""",
    f"""
    CREATE TABLE replica (
        id uuid CONSTRAINT pk_replica PRIMARY KEY,
        name text NOT NULL,
        base_url text NOT NULL CONSTRAINT uq_replica_base_url UNIQUE,
        model text NOT NULL,
        state text NOT NULL
            CONSTRAINT ck_replica_state CHECK (state IN ('loading', 'warming', 'ready', 'draining', 'gone')),
        detail text,
        token_cipher bytea,
        max_model_len integer NOT NULL,
        slots integer NOT NULL,
        engine text,
        tokenizer_sha256 text CONSTRAINT fk_replica_tokenizer_sha256 REFERENCES tokenizer (sha256),
        managed boolean NOT NULL,
        heartbeat_at timestamptz,
        {CREATED_AT},
        CONSTRAINT ck_replica_sizes CHECK (max_model_len > 0 AND slots > 0)
    )""",
    "CREATE INDEX ix_replica_model ON replica (model)",
    """
    CREATE TABLE control_rev (
        id boolean DEFAULT true CONSTRAINT pk_control_rev PRIMARY KEY CONSTRAINT ck_control_rev_single_row CHECK (id),
        keys_rev bigint NOT NULL DEFAULT 0,
        replicas_rev bigint NOT NULL DEFAULT 0
    )""",
    "INSERT INTO control_rev DEFAULT VALUES",
    # Raised by the database itself, so that no code path, and nobody with psql, can forget to.
    """
    CREATE FUNCTION raise_keys_rev() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE control_rev SET keys_rev = keys_rev + 1;
        RETURN NULL;
    END $$""",
    """
    CREATE FUNCTION raise_replicas_rev() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE control_rev SET replicas_rev = replicas_rev + 1;
        RETURN NULL;
    END $$""",
    *(
        f"CREATE TRIGGER raise_rev AFTER INSERT OR UPDATE OR DELETE ON {table}"
        " FOR EACH STATEMENT EXECUTE FUNCTION raise_keys_rev()"
        for table in ("tenant", "person", "api_key", "admin_credential")
    ),
    # Heartbeats touch only heartbeat_at and detail, several times a second in a large pool: they raise nothing.
    """
    CREATE TRIGGER raise_rev AFTER INSERT OR DELETE OR UPDATE OF
        name, base_url, model, state, token_cipher, max_model_len, slots, engine, tokenizer_sha256, managed
        ON replica FOR EACH STATEMENT EXECUTE FUNCTION raise_replicas_rev()""",
    """
    CREATE TABLE gateway_instance (
        owner uuid CONSTRAINT pk_gateway_instance PRIMARY KEY,
        lease_until timestamptz NOT NULL,
        host text NOT NULL,
        version text NOT NULL,
        started_at timestamptz NOT NULL DEFAULT now()
    )""",
    """
    CREATE TABLE inflight (
        request_id uuid CONSTRAINT pk_inflight PRIMARY KEY,
        owner uuid NOT NULL,
        tenant_id uuid NOT NULL,
        person_id uuid NOT NULL,
        key_id text NOT NULL,
        model text NOT NULL,
        endpoint text NOT NULL,
        opened_at timestamptz NOT NULL,
        bill_day date NOT NULL,
        hold_tokens bigint NOT NULL,
        dispatched boolean NOT NULL DEFAULT false,
        ck_prompt bigint NOT NULL DEFAULT 0,
        ck_completion bigint NOT NULL DEFAULT 0,
        ck_cached bigint NOT NULL DEFAULT 0,
        ck_at timestamptz
    ) WITH (fillfactor = 50)""",
    "CREATE INDEX ix_inflight_owner ON inflight (owner)",
    """
    CREATE TABLE usage_ledger (
        bill_day date NOT NULL,
        request_id uuid NOT NULL,
        seq smallint NOT NULL DEFAULT 0,
        kind text NOT NULL CONSTRAINT ck_usage_ledger_kind CHECK (kind IN ('base', 'adjustment')),
        tenant_id uuid NOT NULL,
        person_id uuid NOT NULL,
        key_id text NOT NULL,
        model text NOT NULL,
        endpoint text NOT NULL,
        replica text,
        prompt_tokens bigint NOT NULL,
        completion_tokens bigint NOT NULL,
        cached_tokens bigint NOT NULL,
        reasoning_tokens bigint NOT NULL,
        usage_source text NOT NULL,
        ending text NOT NULL,
        attempts smallint NOT NULL,
        opened_at timestamptz NOT NULL,
        first_token_seconds double precision,
        settled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        cost numeric(20, 10),
        price_rev bigint,
        CONSTRAINT pk_usage_ledger PRIMARY KEY (bill_day, request_id, seq),
        CONSTRAINT ck_usage_ledger_base_is_seq_0 CHECK ((kind = 'base') = (seq = 0))
    ) PARTITION BY RANGE (bill_day)""",
    "CREATE INDEX ix_usage_ledger_tenant_id_bill_day ON usage_ledger (tenant_id, bill_day)",
    # Rows that no month takes still have a home: losing the bill is worse than a full scan.
    "CREATE TABLE usage_ledger_pdefault PARTITION OF usage_ledger DEFAULT",
    """
    CREATE FUNCTION ensure_ledger_partitions(months_ahead integer) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        month date;
        partition text;
    BEGIN
        FOR step IN 0..months_ahead LOOP
            month := date_trunc('month', now() AT TIME ZONE 'UTC')::date + make_interval(months => step);
            partition := 'usage_ledger_p' || to_char(month, 'YYYY_MM');
            IF to_regclass(partition) IS NULL THEN
                EXECUTE format('CREATE TABLE %I PARTITION OF usage_ledger FOR VALUES FROM (%L) TO (%L)',
                    partition, month, (month + interval '1 month')::date);
            END IF;
        END LOOP;
    END $$""",
    "SELECT ensure_ledger_partitions(2)",
)


def upgrade() -> None:
    """Create everything."""
    for statement in STATEMENTS:
        op.execute(statement)
