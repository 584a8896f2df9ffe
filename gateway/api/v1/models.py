"""`GET /v1/models` and `GET /v1/models/{model}`: what this key may call, in OpenAI's shape with vLLM's `max_model_len`."""

from typing import Any

from litestar import Request, get
from litestar.handlers import HTTPRouteHandler

from gateway.pipeline import Pipeline
from gateway.vocabulary import ModelInfo, Principal

POLICY = {"policy": "inference"}


def model_handlers(pipeline: Pipeline) -> list[HTTPRouteHandler]:
    """Return the two handlers."""

    @get("/v1/models", opt=POLICY)
    async def list_models(request: Request[Any, Any, Any]) -> dict[str, object]:
        """List the models that the caller may use."""
        return {"object": "list", "data": [_shape(model) for model in pipeline.models(_principal(request))]}

    # A path parameter: names like "org/model" hold slashes.
    @get("/v1/models/{model:path}", opt=POLICY)
    async def get_model(request: Request[Any, Any, Any], model: str) -> dict[str, object]:
        """Return one model."""
        return _shape(pipeline.model(_principal(request), model.removeprefix("/")))

    return [list_models, get_model]


def _principal(request: Request[Any, Any, Any]) -> Principal:
    principal = request.scope["state"]["principal"]
    assert isinstance(principal, Principal)  # noqa: S101 - the authentication middleware put it there
    return principal


def _shape(model: ModelInfo) -> dict[str, object]:
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "weighbridge",
        "max_model_len": model.max_model_len,
    }
