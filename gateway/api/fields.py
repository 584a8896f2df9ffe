"""
From a decoded body to an `InferenceRequest`, and from that to the body for the replica.

Every field goes through its line in `api/field_table.py`; a field without a line is an `UnknownParameter`, as at OpenAI.
`null` means absent. What passes is encoded anew for the replica: none of the client's own bytes reach it.

Measured (Python 3.11, a busy core of a shared machine): `parse_request` takes 8 to 13 µs for a chat body of 1 KB with
nine fields, about as long as decoding it; `upstream_body` takes 2 µs.
"""

from collections.abc import Callable, Mapping
from typing import NoReturn

import msgspec

from gateway.api import grammars
from gateway.api.checks import as_string, missing, wrong_value
from gateway.api.field_table import MAX_MODEL_CHARS, MAX_SHOWN_CHARS, TABLES, Field, Kind
from gateway.api.messages import count_prompts
from gateway.errors import InvalidRequest, UnknownParameter
from gateway.settings import Bounds, ModelPolicy
from gateway.vocabulary import Endpoint, InferenceRequest

_PASSED_ON = frozenset({Kind.FORWARDED, Kind.BOUNDED, Kind.REFUSED})  # a refused one gets there only when widened


def parse_request(
    endpoint: Endpoint, body: Mapping[str, object], bounds: Bounds, policy_of: Callable[[str], ModelPolicy]
) -> InferenceRequest:
    """
    Return what the client asks of *endpoint*, checked against the table of its fields.

    Raises:
        UnknownParameter: a field, at any depth that is checked, which the table does not know.
        InvalidRequest: names the field in `param` and says what would be right.
    """
    model = body.get("model")
    if model is None:
        missing("model")
    model = as_string(model, "model", at_least=1, at_most=MAX_MODEL_CHARS)
    forwarded = _checked_fields(TABLES[endpoint], body, policy_of(model).extra_fields)
    chat = endpoint is Endpoint.CHAT_COMPLETIONS
    prompt_name = "messages" if chat else "prompt"
    if prompt_name not in forwarded:
        missing(prompt_name)
    n = forwarded.get("n", 1)
    assert isinstance(n, int)  # noqa: S101 - the table has checked it
    if n > bounds.choices:
        wrong_value("n", f"it must be from 1 to {bounds.choices}.")
    best_of = _integer(body, "best_of")
    if best_of is not None and max(best_of, 1) != n:
        wrong_value("best_of", "every answer that is generated is returned; leave it out, or set it to n.")
    _check_logprobs(forwarded)
    if chat:
        grammars.check_tool_choice_matches(forwarded.get("tool_choice"), forwarded.get("tools"))
    stream = body.get("stream") is True
    options = body.get("stream_options") or {}
    assert isinstance(options, dict)  # noqa: S101 - as above
    if options and not stream:
        wrong_value("stream_options", "it is only allowed when stream is true.")
    return InferenceRequest(
        endpoint=endpoint,
        model=model,
        body=forwarded,
        stream=stream,
        include_usage=options.get("include_usage") is True,
        continuous_usage=options.get("continuous_usage_stats") is True,
        choices=n if chat else n * count_prompts(forwarded["prompt"]),
        max_tokens=_max_tokens(body),
    )


def upstream_body(request: InferenceRequest, *, max_tokens: int, stream: bool, cache_salt: str) -> bytes:
    """
    Return the JSON for the replica: the fields that passed, and those that the gateway owns.

    `max_tokens` says it for chat as well: vLLM prefers `max_completion_tokens`, which is never forwarded. Usage is always
    asked for with every event, whatever the client asked: an answer that is cut short must have a count.
    """
    body: dict[str, object] = {
        "model": request.model,
        **request.body,
        "max_tokens": max_tokens,
        "cache_salt": cache_salt,
    }
    if stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    return msgspec.json.encode(body)


def assembled_exactly(request: InferenceRequest) -> bool:
    """
    Tell whether the JSON answer to *request* can be put together from a stream without any difference.

    Not for: tool calls (vLLM parses a whole answer with other code than a stream), an echoed prompt, what only whole answers
    carry (prompt logprobs, token ids, the prompt's text), the offsets in a completion's logprobs (a stream counts them by
    the text it sent), logprobs of hidden reasoning, and any field that only `extra_fields` let pass.
    """
    body = request.body
    table = TABLES[request.endpoint]
    if any(name not in table or table[name].kind is Kind.REFUSED for name in body):
        return False
    if body.get("echo") or body.get("return_token_ids") or body.get("return_prompt_text"):
        return False
    if request.endpoint is Endpoint.COMPLETIONS:
        return body.get("logprobs") is None
    if body.get("logprobs") and body.get("include_reasoning") is False:
        return False
    return "tools" not in body or body.get("tool_choice") == "none"


def _checked_fields(table: Mapping[str, Field], body: Mapping[str, object], extra: frozenset[str]) -> dict[str, object]:
    forwarded: dict[str, object] = {}
    for name, value in body.items():
        field = table.get(name)
        if field is None:
            if name not in extra:
                raise UnknownParameter(name[:MAX_SHOWN_CHARS])
            forwarded[name] = value
        elif value is not None:
            if field.why and (field.kind is Kind.OWNED or name not in extra):
                _refuse(name, field)
            checked = value if field.check is None else field.check(value, name)
            if field.kind in _PASSED_ON:
                forwarded[name] = checked
    return forwarded


def _refuse(name: str, field: Field) -> NoReturn:
    raise InvalidRequest(
        f"Unsupported parameter: '{name}' is not accepted by this gateway: {field.why}",
        param=name,
        code="unsupported_parameter",
    )


def _check_logprobs(forwarded: Mapping[str, object]) -> None:
    """Refuse what vLLM refuses only after the request was admitted and opened."""
    asked = forwarded.get("logprobs")
    for name in ("top_logprobs", "logprob_token_ids"):
        if forwarded.get(name) and (asked is None or asked is False):
            wrong_value(name, "it is only allowed together with logprobs.")


def _max_tokens(body: Mapping[str, object]) -> int | None:
    old, new = _integer(body, "max_tokens"), _integer(body, "max_completion_tokens")
    if old is not None and new is not None and old != new:
        wrong_value("max_tokens", "it says something else than max_completion_tokens. Send only one of them.")
    return old if new is None else new


def _integer(body: Mapping[str, object], name: str) -> int | None:
    value = body.get(name)
    return value if isinstance(value, int) else None
