"""
What can go wrong, by meaning.

    WeighbridgeError
    ├── InvalidSettings             the configuration has problems; all of them are listed
    ├── NotAuthenticated            no key, or one that is unknown, revoked or expired: one answer for all
    ├── NotPermitted                a known caller, but not for this
    ├── InvalidRequest              the request itself is wrong: `param`, `code`
    │   ├── UnknownParameter
    │   ├── ContextLengthExceeded
    │   ├── BodyTooLarge
    │   └── UnsupportedMedia
    ├── ModelNotFound               unknown or forbidden: one answer for both
    ├── NotFound                    an id that does not exist, or is somebody else's
    ├── Conflict                    the object exists already, or is in another state
    ├── RateLimited                 requests or tokens per minute
    ├── ConcurrencyReached
    ├── PoolSaturated               capacity exists, all of it is busy
    ├── NoReplica                   no capacity: none is ready
    ├── UpstreamFailed              the replica failed before the first byte
    ├── UpstreamTimeout             no first token in time, or the stream stalled
    ├── UpstreamRefused             the replica's own 4xx, to be passed on
    ├── ReplicaLost                 the replica died after the first byte
    ├── KeyRevoked                  the key was revoked while its stream ran
    ├── StoreUnavailable            Postgres or Redis does not answer: nothing is served unmetered
    └── ShuttingDown                this process takes no new work

Knows no HTTP: `api/openai_errors.py` is the one place that gives an error a status. The message of an error is written
for the client: it says what to do next, and never shows an address, SQL, a key or a prompt.
"""

from gateway.vocabulary import LimitStatus


class WeighbridgeError(Exception):
    """Base of everything we raise on purpose."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidSettings(WeighbridgeError):
    """The configuration has problems; `problems` lists every one of them."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("The configuration has problems:\n" + "\n".join(f"  - {problem}" for problem in problems))
        self.problems = problems


class NotAuthenticated(WeighbridgeError):
    """No credential, or one that is unknown, malformed, revoked or expired."""


class NotPermitted(WeighbridgeError):
    """The credential is good, but its role does not allow this."""


class InvalidRequest(WeighbridgeError):
    """The request is wrong. `param` names the field, `code` the kind."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class UnknownParameter(InvalidRequest):
    """A body field that we neither forward nor own."""

    def __init__(self, param: str) -> None:
        super().__init__(
            f"Unrecognized request argument supplied: {param}. Remove it and send the request again.",
            param=param,
            code="unknown_parameter",
        )


class ContextLengthExceeded(InvalidRequest):
    """Prompt and completion together do not fit the context window."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class BodyTooLarge(InvalidRequest):
    """The body is larger than this gateway accepts."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            f"The request body is larger than {limit_bytes} bytes. Send a shorter request.",
            code="request_too_large",
        )


class UnsupportedMedia(InvalidRequest):
    """Not the content type or content encoding that the endpoint takes."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="unsupported_media_type")


class ModelNotFound(WeighbridgeError):
    """The model does not exist, or this key may not call it."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The model `{model[:128]}` does not exist or you do not have access to it. GET /v1/models lists yours."
        )


class NotFound(WeighbridgeError):
    """The object does not exist for this caller."""


class Conflict(WeighbridgeError):
    """The object exists already, or its state does not allow this."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class RateLimited(WeighbridgeError):
    """
    Too many requests or tokens this minute.

    `kind` is "requests" or "tokens"; `retry_after_seconds` is `None` when waiting cannot help, because the one request
    asks for more than a full minute allows.
    """

    def __init__(
        self, message: str, *, kind: str, retry_after_seconds: float | None, status: LimitStatus | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after_seconds = retry_after_seconds
        self.status = status


class ConcurrencyReached(WeighbridgeError):
    """As many requests of this key or tenant run as may run at once."""

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0, status: LimitStatus | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.status = status


class PoolSaturated(WeighbridgeError):
    """Every replica of the model is busy."""

    retry_after_seconds = 1.0


class NoReplica(WeighbridgeError):
    """No replica of the model is ready."""

    retry_after_seconds = 5.0


class UpstreamFailed(WeighbridgeError):
    """A replica failed before anything of its answer reached the client; another one may be tried."""


class UpstreamTimeout(WeighbridgeError):
    """The replica gave no first token in time, or stopped in the middle."""


class UpstreamRefused(WeighbridgeError):
    """The replica refused the request with a 4xx of its own; the client's to mend."""

    def __init__(self, message: str, *, status: int, param: str | None, code: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


class ReplicaLost(WeighbridgeError):
    """The replica died after a part of its answer had been delivered."""


class KeyRevoked(WeighbridgeError):
    """The key stopped being valid while its request ran."""


class StoreUnavailable(WeighbridgeError):
    """Postgres or Redis did not answer in time; nothing is served unmetered."""

    retry_after_seconds = 1.0


class ShuttingDown(WeighbridgeError):
    """This process is stopping and takes no new work."""

    retry_after_seconds = 1.0
