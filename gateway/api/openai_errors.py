"""
The one mapping from what went wrong to what the client is told: status, OpenAI's error object, headers.

    {"error": {"message": str, "type": str, "param": str | null, "code": str | null}}      always all four

Our own errors carry a message written for the client. Anything else becomes a fixed text; its details go to the log,
never to the client. After the head of a stream the same object travels as the stream's last event.

Source: OpenAI API reference, error codes; openai-python `_base_client.py` for `x-should-retry` and `retry-after-ms`.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException, ValidationException

from gateway import errors
from gateway.admission.limits import rate_limit_headers

log = structlog.get_logger(__name__)

Header = tuple[bytes, bytes]

JSON_TYPE = b"application/json"
MAX_FOREIGN_MESSAGE_CHARS = 500
INTERNAL_ERROR = (
    "The gateway had an internal error. Try again; if it happens again, give the administrator of this gateway "
    "the x-request-id of this answer."
)


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error as it goes over the wire."""

    status: int
    code: str | None  #: what the log line and the metrics call it
    body: bytes
    headers: list[Header]  #: complete, with content type and length


@dataclass(frozen=True, slots=True)
class _Case:
    """One row of the table in design/wire.md. `None` stands for what the error itself says."""

    status: int
    type: str
    code: str | None
    headers: tuple[Header, ...] = ()


DO_NOT_RETRY: Header = (b"x-should-retry", b"false")
CLOSE: Header = (b"connection", b"close")
CHALLENGE: Header = (b"www-authenticate", b"Bearer")

#: The most special class first: the first that fits an error describes it.
CASES: dict[type[errors.WeighbridgeError], _Case] = {
    errors.NotAuthenticated: _Case(401, "invalid_request_error", "invalid_api_key", (CHALLENGE,)),
    errors.NotPermitted: _Case(403, "invalid_request_error", "not_permitted"),
    # The rest of a body that nobody will read would be taken for the next request on this connection.
    errors.BodyTooLarge: _Case(413, "invalid_request_error", None, (CLOSE,)),
    errors.UnsupportedMedia: _Case(415, "invalid_request_error", None),
    errors.InvalidRequest: _Case(400, "invalid_request_error", None),
    errors.ModelNotFound: _Case(404, "invalid_request_error", "model_not_found"),
    errors.NotFound: _Case(404, "invalid_request_error", "not_found"),
    # OpenAI's clients retry a 409; ours is not a race that another try could win.
    errors.Conflict: _Case(409, "invalid_request_error", "conflict", (DO_NOT_RETRY,)),
    errors.RateLimited: _Case(429, "requests", "rate_limit_exceeded"),
    errors.ConcurrencyReached: _Case(429, "requests", "concurrency_limit_exceeded"),
    errors.PoolSaturated: _Case(429, "server_error", "pool_saturated"),
    errors.NoReplica: _Case(503, "server_error", "no_replica"),
    errors.UpstreamFailed: _Case(502, "server_error", "upstream_error"),
    errors.ReplicaLost: _Case(502, "server_error", "upstream_error"),
    errors.UpstreamTimeout: _Case(504, "server_error", "upstream_timeout"),
    errors.UpstreamRefused: _Case(400, "invalid_request_error", None),
    errors.KeyRevoked: _Case(401, "invalid_request_error", "invalid_api_key", (CHALLENGE,)),
    errors.StoreUnavailable: _Case(503, "server_error", "service_unavailable"),
    errors.ShuttingDown: _Case(503, "server_error", "shutting_down", (CLOSE,)),
}

#: What the framework refuses before a handler runs: (code, message); `None` keeps the framework's own message.
FOREIGN_CASES: dict[int, tuple[str, str | None]] = {
    400: ("invalid_value", None),
    404: ("unknown_url", "There is nothing at this address. Check the path and the base URL of your client."),
    405: ("method_not_allowed", "This address does not take this method. The `allow` header lists those it takes."),
    413: ("request_too_large", "The request body is larger than this gateway accepts. Send a shorter request."),
    415: ("unsupported_media_type", "Send the body as application/json."),
}


def describe(error: BaseException) -> ErrorAnswer:
    """Return how *error* is told to the client. Pure; whoever caught an unexpected error logs it."""
    if isinstance(error, errors.WeighbridgeError):
        for kind, case in CASES.items():
            if isinstance(error, kind):
                return _own(error, case)
    if isinstance(error, HTTPException) and error.status_code < 500:
        return _foreign(error)
    return _answer(500, INTERNAL_ERROR, "server_error", None, "internal_error", [])


def sse_event(error: BaseException) -> bytes:
    """Return *error* as the last event of a stream that has begun."""
    return b"data: " + describe(error).body + b"\n\n"


def answer_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Answer a request whose handler, or the routing before it, raised *error*."""
    answer = describe(error)
    if answer.status == 500:
        log.error("request_crashed", error=type(error).__name__, exc_info=error)
    request.scope["state"].setdefault("log", {})["error"] = answer.code
    # The response sets type and length itself; a second pair would be a malformed answer.
    headers = {
        name.decode(): value.decode()
        for name, value in answer.headers
        if name not in {b"content-type", b"content-length"}
    }
    return Response(answer.body, status_code=answer.status, media_type=MediaType.JSON, headers=headers)


#: For every Litestar app, at app level: 404 and 405 reach no other.
exception_handlers: dict[int | type[Exception], Callable[[Request[Any, Any, Any], Exception], Response[bytes]]] = {
    Exception: answer_error
}


def _own(error: errors.WeighbridgeError, case: _Case) -> ErrorAnswer:
    status, kind, code, param = case.status, case.type, case.code, None
    headers = list(case.headers)
    match error:
        case errors.RateLimited():
            kind = error.kind
        case errors.UpstreamRefused():
            status, code, param = error.status, error.code, error.param
        case errors.InvalidRequest():
            code, param = error.code, error.param
        case errors.Conflict():
            param = error.param
        case errors.ModelNotFound():
            param = "model"
    if isinstance(error, errors.RateLimited | errors.ConcurrencyReached) and error.status is not None:
        headers += rate_limit_headers(error.status)
    if hasattr(error, "retry_after_seconds"):
        headers += _retry_after(error.retry_after_seconds)
    return _answer(status, error.message, kind, param, code, headers)


def _retry_after(seconds: float | None) -> list[Header]:
    if seconds is None:
        return [DO_NOT_RETRY]
    # Rounded up: a client that comes back a moment too early is refused again.
    milliseconds = max(1, math.ceil(seconds * 1000))
    return [(b"retry-after", b"%d" % math.ceil(milliseconds / 1000)), (b"retry-after-ms", b"%d" % milliseconds)]


def _foreign(error: HTTPException) -> ErrorAnswer:
    status = error.status_code
    code, message = FOREIGN_CASES.get(status, ("invalid_request", None))
    param = None
    if isinstance(error, ValidationException) and isinstance(error.extra, list) and error.extra:
        first = error.extra[0]
        if isinstance(first, dict):
            param = str(first["key"]) if first.get("key") else None
            message = ": ".join(str(part) for part in (param, first.get("message")) if part)
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in (error.headers or {}).items()
        if name.lower() == "allow"
    ]
    if status == 401:
        headers.append(CHALLENGE)
    message = message or error.detail
    return _answer(status, message[:MAX_FOREIGN_MESSAGE_CHARS], "invalid_request_error", param, code, headers)


def _answer(
    status: int, message: str, kind: str, param: str | None, code: str | None, headers: list[Header]
) -> ErrorAnswer:
    error = {"message": message, "type": kind, "param": param, "code": code}
    try:
        body = msgspec.json.encode({"error": error})
    except UnicodeEncodeError:  # half a surrogate pair in what the client called something
        body = json.dumps({"error": error}).encode()
    return ErrorAnswer(
        status,
        code,
        body,
        [(b"content-type", JSON_TYPE), (b"content-length", b"%d" % len(body)), *headers],
    )
