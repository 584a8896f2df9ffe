"""
`POST /v1/chat/completions` and `POST /v1/completions`.

Raw ASGI mounts: a typed body and a response object would cost more than all the rest of the relay (measured:
design/stack.md), and the story must hold `receive` and `send` itself.
"""

from litestar import asgi
from litestar.handlers import ASGIRouteHandler
from litestar.types import Receive, Scope, Send

from gateway.api.exchange import Exchange, Parse
from gateway.pipeline import Pipeline
from gateway.vocabulary import Endpoint


def inference_handlers(pipeline: Pipeline, parse: Parse, slow_reader_seconds: float) -> list[ASGIRouteHandler]:
    """Return one handler for each endpoint that is metered by usage."""
    return [_handler(Exchange(endpoint, pipeline, parse, slow_reader_seconds), endpoint) for endpoint in Endpoint]


def _handler(exchange: Exchange, endpoint: Endpoint) -> ASGIRouteHandler:
    @asgi(endpoint.path, opt={"policy": "inference", "methods": {"POST"}}, copy_scope=False)
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        await exchange(scope, receive, send)

    return serve
