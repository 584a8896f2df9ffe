"""
The internal listener: is this process alive, may it get traffic, and what does it count.

Liveness depends on nothing outside the process: restarting it cures no Postgres. Readiness does, and says why not.
"""

from collections.abc import Awaitable, Callable

from litestar import MediaType, Response, get
from litestar.handlers import HTTPRouteHandler

OPEN = {"policy": "open"}


def health_handlers(
    why_not_ready: Callable[[], Awaitable[list[str]]], render: Callable[[], bytes]
) -> list[HTTPRouteHandler]:
    """Return `/livez`, `/readyz` and `/metrics`; *why_not_ready* lists the reasons, empty when ready."""

    @get("/livez", opt=OPEN, media_type=MediaType.JSON)
    async def livez() -> dict[str, str]:
        """Answer 200 while the process runs."""
        return {"status": "alive"}

    @get("/readyz", opt=OPEN, media_type=MediaType.JSON)
    async def readyz() -> Response[dict[str, object]]:
        """Answer 200 when requests can be served, else 503 with the reasons."""
        reasons = await why_not_ready()
        if reasons:
            return Response({"status": "not ready", "reasons": reasons}, status_code=503)
        return Response({"status": "ready", "reasons": []}, status_code=200)

    @get("/metrics", opt=OPEN)
    async def metrics() -> Response[bytes]:
        """Answer with Prometheus's text format."""
        return Response(render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return [livez, readyz, metrics]
