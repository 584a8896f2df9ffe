"""
The composition root: the only place that names concrete classes and joins the stages.

Nothing connects before it is needed: with Postgres, Redis and all replicas down the process stays up, `/livez` says 200
and `/readyz` says what is missing; it serves within seconds of their return.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from litestar import Litestar
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine
from uuid_utils.compat import uuid7

from gateway import __version__
from gateway.admission.estimate import PromptCounter
from gateway.admission.hold import RedisHolds
from gateway.api import fields
from gateway.api.admin import AdminServices, admin_handlers
from gateway.api.health import health_handlers
from gateway.api.v1.inference import inference_handlers
from gateway.api.v1.models import model_handlers
from gateway.auth import keys as key_format
from gateway.auth.authenticator import Authenticator
from gateway.errors import StoreUnavailable
from gateway.jobs.follow import Follower
from gateway.jobs.heartbeat import Heartbeat
from gateway.jobs.reconciler import Reconciler
from gateway.ledger.open_settle import Ledger
from gateway.pipeline import Pipeline
from gateway.relay.client import Client
from gateway.relay.probe import probe
from gateway.routing.directory import ReplicaDirectory
from gateway.routing.prober import Prober
from gateway.settings import Settings
from gateway.shield import drain
from gateway.store import control, credentials, instances, keys, ledger, replicas, tokenizers
from gateway.store.cipher import Cipher
from gateway.store.engine import REPORT_TIMEOUT_MS, create_engine
from gateway.telemetry import metrics
from gateway.vocabulary import Endpoint, InferenceRequest, ModelInfo, OwnerId

log = structlog.get_logger(__name__)

SETTLE_SECONDS = 10.0  #: at shutdown, for settlements that Postgres has not confirmed yet


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway process, ready to be listened to."""

    public: Litestar
    admin: Litestar
    internal: Litestar
    pipeline: Pipeline


@asynccontextmanager
async def open_gateway(settings: Settings) -> AsyncIterator[Gateway]:
    """Yield a gateway whose jobs run; on the way out, await its settlements and forget the instance."""
    owner = OwnerId(uuid7())
    engine = create_engine(settings.database_url, pool=settings.database_pool)
    reports = create_engine(settings.database_url, pool=2, statement_timeout_ms=REPORT_TIMEOUT_MS)
    redis = connect_redis(settings)
    client = Client(connect_seconds=settings.timeouts.connect)
    gateway, jobs, prober = _assemble(settings, owner, engine, reports, redis, client)
    running = [asyncio.create_task(job) for job in jobs]
    try:
        yield gateway
    finally:
        gateway.pipeline.running.cut_all()
        left = await drain(SETTLE_SECONDS)
        if left:
            log.warning("stopped_before_settling", requests=left)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await prober.stop()
        with contextlib.suppress(StoreUnavailable):
            await instances.forget(engine, owner)
        await client.close()
        await redis.aclose()
        await engine.dispose()
        await reports.dispose()


def connect_redis(settings: Settings) -> "Redis":
    """Return the Redis client; nothing connects yet. Every call is bounded, and none is retried: a hold counts once."""
    return Redis.from_url(
        settings.redis_url,
        protocol=3,
        socket_timeout=settings.redis_timeout_seconds,
        socket_connect_timeout=settings.redis_timeout_seconds,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
    )


def _assemble(
    settings: Settings, owner: OwnerId, engine: AsyncEngine, reports: AsyncEngine, redis: "Redis", client: Client
) -> tuple[Gateway, list[Coroutine[Any, Any, None]], Prober]:
    secrets = settings.secrets
    pepper = secrets.derive("key-pepper")
    cipher = Cipher(secrets.derive("replica-token"))
    authenticator = Authenticator(pepper, partial(keys.look_up, engine), partial(credentials.look_up, engine))
    directory = ReplicaDirectory(settings.health)
    counter = PromptCounter(partial(tokenizers.get, engine))
    redis_holds = RedisHolds(redis, timeout_seconds=settings.redis_timeout_seconds)
    bill = Ledger(
        open_rows=partial(ledger.open_rows, engine, owner),
        settle_rows=partial(ledger.settle_rows, engine),
        checkpoint_rows=partial(ledger.checkpoint_rows, engine, owner),
    )

    async def count_prompt(request: InferenceRequest, model: ModelInfo) -> PromptCount:
        return await counter.count(request, model.tokenizer_sha256)

    def parse(endpoint: Endpoint, body: Mapping[str, object]) -> InferenceRequest:
        return fields.parse_request(endpoint, body, settings.bounds, settings.policy_of)

    pipeline = Pipeline(
        settings=settings,
        directory=directory,
        count_prompt=count_prompt,
        holds=redis_holds,
        ledger=bill,
        client=client,
        upstream_body=fields.upstream_body,
        assembled_exactly=fields.assembled_exactly,
    )
    prober = Prober(
        directory,
        partial(probe, client, timeout_seconds=settings.health.probe_timeout_seconds),
        settings.health.probe_interval_seconds,
    )
    follower = Follower(
        pipeline=pipeline,
        directory=directory,
        prober=prober,
        forget_keys=authenticator.forget,
        forget_replica=client.forget,
        read_revisions=partial(control.read_revisions, engine),
        revoked_among=partial(control.revoked_among, engine),
        read_replicas=partial(replicas.all_replicas, engine, cipher),
    )
    heartbeat = Heartbeat(
        pipeline=pipeline,
        ledger=bill,
        lease=settings.lease,
        renew_lease=partial(
            instances.renew,
            engine,
            owner,
            lease_seconds=settings.lease.seconds,
            host=socket.gethostname(),
            version=__version__,
        ),
        renew_holds=redis_holds.renew,
        own_rows=partial(ledger.own_rows, engine, owner),
    )
    reconciler = Reconciler(
        settle_orphans=partial(ledger.settle_orphans, engine, settings.lease.reconcile_after_seconds),
        expire_silent=partial(replicas.expire_silent, engine, settings.health.heartbeat_expiry_seconds),
        ensure_partitions=partial(ledger.ensure_partitions, engine),
    )

    async def why_not_ready() -> list[str]:
        if pipeline.is_draining:
            return ["this process is draining"]
        return [*await _missing_stores(engine, redis, bill), *directory.why_not_ready()]

    services = AdminServices(
        engine=engine,
        report_engine=reports,
        cipher=cipher,
        pepper=pepper,
        issue_key=key_format.issue,
        key_defaults=settings.key_defaults,
        key_days=settings.key_days,
    )
    gateway = Gateway(
        public=_app(
            [*inference_handlers(pipeline, parse, settings.timeouts.slow_reader), *model_handlers(pipeline)],
            authenticator,
            settings,
        ),
        admin=_app(admin_handlers(services), authenticator, settings),
        internal=_app(health_handlers(why_not_ready, metrics.render), authenticator, settings),
        pipeline=pipeline,
    )
    return gateway, [heartbeat.run(), follower.run(), reconciler.run()], prober
