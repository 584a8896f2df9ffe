"""
The open rows and the ledger: the four statements that decide what is billed.

An open row is the right to bill one request; settling consumes it and writes the ledger row in the same statement, so
neither a retry, nor a lost acknowledgement, nor two processes can bill twice. All are batches over arrays: one
statement and one commit for many requests. Only Postgres's clock counts.
"""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.store.engine import transaction
from gateway.vocabulary import Checkpoint, OpenRow, OwnerId, RequestId, Settlement

# The join is the last word on a key: a request that arrives after a revocation was acknowledged finds nothing here,
# whatever any cache believes. The lease fences a process that was stopped for longer than it may be.
_OPEN = text(
    """
    INSERT INTO inflight (
        request_id, owner, tenant_id, person_id, key_id, model, endpoint, opened_at, bill_day, hold_tokens)
    SELECT r.request_id, g.owner, k.tenant_id, k.person_id, k.id, r.model, r.endpoint,
           now(), (now() AT TIME ZONE 'UTC')::date, r.hold_tokens
    FROM unnest(CAST(:request_ids AS uuid[]), CAST(:key_ids AS text[]), CAST(:tenant_ids AS uuid[]),
                CAST(:models AS text[]), CAST(:endpoints AS text[]), CAST(:holds AS bigint[]))
         AS r (request_id, key_id, tenant_id, model, endpoint, hold_tokens)
    JOIN api_key k ON k.id = r.key_id AND k.tenant_id = r.tenant_id
    JOIN person p ON p.id = k.person_id
    JOIN tenant t ON t.id = k.tenant_id
    JOIN gateway_instance g ON g.owner = :owner AND g.lease_until > now()
    WHERE k.revoked_at IS NULL AND k.expires_at > now() AND p.disabled_at IS NULL AND t.disabled_at IS NULL
    ON CONFLICT (request_id) DO NOTHING
    RETURNING request_id
    """
)

_SETTLE = text(
    """
    WITH r AS (
        SELECT * FROM unnest(
            CAST(:request_ids AS uuid[]), CAST(:endings AS text[]), CAST(:prompts AS bigint[]),
            CAST(:completions AS bigint[]), CAST(:cacheds AS bigint[]), CAST(:reasonings AS bigint[]),
            CAST(:sources AS text[]), CAST(:attempts AS smallint[]), CAST(:replicas AS text[]),
            CAST(:first_tokens AS double precision[])
        ) AS r (request_id, ending, prompt, completion, cached, reasoning, source, attempts, replica, first_token)
    ), d AS (
        DELETE FROM inflight i USING r WHERE i.request_id = r.request_id RETURNING i.*
    )
    INSERT INTO usage_ledger (
        bill_day, request_id, kind, tenant_id, person_id, key_id, model, endpoint, replica,
        prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens,
        usage_source, ending, attempts, opened_at, first_token_seconds)
    SELECT d.bill_day, d.request_id, 'base', d.tenant_id, d.person_id, d.key_id, d.model, d.endpoint, r.replica,
           r.prompt, r.completion, r.cached, r.reasoning, r.source, r.ending, r.attempts, d.opened_at, r.first_token
    FROM d JOIN r USING (request_id)
    ON CONFLICT DO NOTHING
    RETURNING request_id
    """
)

# greatest(): a checkpoint that arrives late, or twice, never takes tokens back.
_CHECKPOINT = text(
    """
    UPDATE inflight i
    SET dispatched = true, ck_at = now(),
        ck_prompt = greatest(i.ck_prompt, r.prompt),
        ck_completion = greatest(i.ck_completion, r.completion),
        ck_cached = greatest(i.ck_cached, r.cached)
    FROM unnest(CAST(:request_ids AS uuid[]), CAST(:prompts AS bigint[]), CAST(:completions AS bigint[]),
                CAST(:cacheds AS bigint[])) AS r (request_id, prompt, completion, cached)
    WHERE i.request_id = r.request_id AND i.owner = :owner
    """
)

_RECONCILE = text(
    """
    WITH d AS (
        DELETE FROM inflight i
        WHERE NOT EXISTS (
            SELECT FROM gateway_instance g
            WHERE g.owner = i.owner AND g.lease_until > now() - make_interval(secs => :grace_seconds)
        )
        RETURNING i.*
    )
    INSERT INTO usage_ledger (
        bill_day, request_id, kind, tenant_id, person_id, key_id, model, endpoint,
        prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens,
        usage_source, ending, attempts, opened_at)
    SELECT bill_day, request_id, 'base', tenant_id, person_id, key_id, model, endpoint,
           ck_prompt, ck_completion, ck_cached, 0,
           CASE WHEN ck_prompt + ck_completion > 0 THEN 'checkpoint' ELSE 'none' END,
           CASE WHEN dispatched THEN 'gateway_lost' ELSE 'not_dispatched' END,
           CASE WHEN dispatched THEN 1 ELSE 0 END, opened_at
    FROM d
    ON CONFLICT DO NOTHING
    RETURNING request_id
    """
)

_OWN_ROWS = text(
    """
    SELECT request_id FROM inflight
    WHERE owner = :owner AND opened_at < now() - make_interval(secs => :older_than_seconds)
    """
)


async def open_rows(engine: AsyncEngine, owner: OwnerId, rows: Sequence[OpenRow]) -> set[RequestId]:
    """
    Write open rows; return the ids that were granted.

    An id that is missing from the answer has no right to be served: its key, person or tenant is not valid any more, or
    our own lease has run out.

    Raises:
        StoreUnavailable: it is unknown whether the rows exist; they must be settled as not dispatched.
    """
    async with transaction(engine) as connection:
        result = await connection.execute(
            _OPEN,
            {
                "owner": owner,
                "request_ids": [row.request_id for row in rows],
                "key_ids": [row.key_id for row in rows],
                "tenant_ids": [row.tenant_id for row in rows],
                "models": [row.model for row in rows],
                "endpoints": [row.endpoint.value for row in rows],
                "holds": [row.hold_tokens for row in rows],
            },
        )
        return {RequestId(request_id) for (request_id,) in result}


async def settle_rows(engine: AsyncEngine, settlements: Sequence[Settlement]) -> set[RequestId]:
    """
    Turn open rows into ledger rows; return the ids that were turned now.

    Idempotent: an id whose open row is gone (settled before, reconciled, never opened) has no effect.

    Raises:
        StoreUnavailable: repeat the same call; it cannot bill twice.
    """
    async with transaction(engine) as connection:
        result = await connection.execute(
            _SETTLE,
            {
                "request_ids": [item.request_id for item in settlements],
                "endings": [item.ending.value for item in settlements],
                "prompts": [item.usage.prompt_tokens for item in settlements],
                "completions": [item.usage.completion_tokens for item in settlements],
                "cacheds": [item.usage.cached_tokens for item in settlements],
                "reasonings": [item.usage.reasoning_tokens for item in settlements],
                "sources": [item.usage_source.value for item in settlements],
                "attempts": [item.attempts for item in settlements],
                "replicas": [item.replica for item in settlements],
                "first_tokens": [item.first_token_seconds for item in settlements],
            },
        )
        return {RequestId(request_id) for (request_id,) in result}


async def checkpoint_rows(engine: AsyncEngine, owner: OwnerId, checkpoints: Sequence[Checkpoint]) -> None:
    """Note how far running requests have come, so that a killed process loses at most the time since."""
    async with transaction(engine) as connection:
        await connection.execute(
            _CHECKPOINT,
            {
                "owner": owner,
                "request_ids": [item.request_id for item in checkpoints],
                "prompts": [item.usage.prompt_tokens for item in checkpoints],
                "completions": [item.usage.completion_tokens for item in checkpoints],
                "cacheds": [item.usage.cached_tokens for item in checkpoints],
            },
        )


async def settle_orphans(engine: AsyncEngine, grace_seconds: float) -> int:
    """Settle the open rows of processes whose lease ended *grace_seconds* ago, from their checkpoints; return how many."""
    async with transaction(engine) as connection:
        result = await connection.execute(_RECONCILE, {"grace_seconds": grace_seconds})
        return len(result.all())


async def own_rows(engine: AsyncEngine, owner: OwnerId, older_than_seconds: float) -> set[RequestId]:
    """Return our open rows older than *older_than_seconds*; one we do not know is left from a lost acknowledgement."""
    async with transaction(engine) as connection:
        result = await connection.execute(_OWN_ROWS, {"owner": owner, "older_than_seconds": older_than_seconds})
        return {RequestId(UUID(str(request_id))) for (request_id,) in result}


async def ensure_partitions(engine: AsyncEngine, months_ahead: int = 2) -> None:
    """Create the ledger's monthly partitions from this month to *months_ahead*."""
    async with transaction(engine) as connection:
        await connection.execute(text("SELECT ensure_ledger_partitions(:months)"), {"months": months_ahead})
