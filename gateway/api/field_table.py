"""
The body-field policy: one table per endpoint, a line for each field that OpenAI's specification or vLLM's schema knows.

    FORWARDED   passed on as it is, once its type is right
    BOUNDED     passed on within bounds: what it costs the replica grows with its value
    ACCEPTED    validated and left out: OpenAI's clients send it, no engine reads it
    OWNED       the gateway's to set; a few of them the client may say (`max_tokens`, `stream`), the others are refused
    REFUSED     dangerous, or it would change what is counted; `extra_fields` lets it pass for one model

A field in neither table is unknown, and refused as such. How the tables are applied: `api/fields.py`.

Source: OpenAI API reference 2.3.0 and vLLM 0.32; tests compare the tables with both.
"""

from dataclasses import dataclass
from enum import StrEnum

from gateway.api import grammars
from gateway.api.checks import (
    Check,
    array_of,
    as_array,
    as_object,
    as_string,
    boolean,
    integer,
    number,
    one_of,
    text,
    token_ids,
    wrong_type,
    wrong_value,
)
from gateway.api.messages import messages, prompts
from gateway.vocabulary import Endpoint

MAX_STOPS = 4
MAX_STOP_CHARS = 256
MAX_LOGPROBS = 20
MAX_LOGIT_BIASES = 300
MAX_LISTED_TOKENS = 1024
MAX_BAD_WORDS = 64
MAX_MODEL_CHARS = 256
MAX_SHOWN_CHARS = 64
MAX_COUNT = 2**31 - 1


class Kind(StrEnum):
    """What happens to a field; see above."""

    FORWARDED = "forwarded"
    BOUNDED = "bounded"
    ACCEPTED = "accepted"
    OWNED = "owned"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Field:
    """One line of a table. An owned field without a check is one that the client may not say."""

    kind: Kind
    check: Check | None = None
    why: str = ""  #: for the client, when it is refused


def _stop(value: object, param: str) -> object:
    if isinstance(value, str):
        return as_string(value, param, at_least=1, at_most=MAX_STOP_CHARS)
    if not isinstance(value, list):
        wrong_type(value, param, "a string or an array of strings")
    return _STOPS(value, param)


def _logit_bias(value: object, param: str) -> object:
    biases = as_object(value, param)
    if len(biases) > MAX_LOGIT_BIASES:
        wrong_value(param, f"it holds {len(biases)} tokens; at most {MAX_LOGIT_BIASES} are accepted.")
    for token, bias in biases.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            wrong_value(param, "its names must be token ids, written as strings of digits.")
        _BIAS(bias, f"{param}.{token}")
    return biases


def _listed_tokens(at_most: int) -> Check:
    def check(value: object, param: str) -> object:
        listed = as_array(value, param, at_most=at_most)
        if listed:
            token_ids(listed, param)
        return listed

    return check


def _stream_options(value: object, param: str) -> object:
    options = as_object(value, param, _STREAM_OPTIONS)
    for name, item in options.items():
        if item is not None:
            boolean(item, f"{param}.{name}")
    return options


def _metadata(value: object, param: str) -> object:
    pairs = as_object(value, param)
    if len(pairs) > 16:
        wrong_value(param, f"it holds {len(pairs)} pairs; at most 16 are accepted.")
    for name, item in pairs.items():
        as_string(name, param, at_most=64)
        as_string(item, f"{param}.{name[:MAX_SHOWN_CHARS]}", at_most=512)
    return pairs


_STOPS = array_of(text(MAX_STOP_CHARS, at_least=1), at_most=MAX_STOPS)
_BIAS = number(-100, 100)
_STREAM_OPTIONS = frozenset({"include_usage", "continuous_usage_stats", "include_obfuscation"})
_INT64 = integer(-(2**63), 2**63 - 1)
_COUNT = integer(1, MAX_COUNT)


def _forwarded(check: Check) -> Field:
    return Field(Kind.FORWARDED, check)


def _bounded(check: Check) -> Field:
    return Field(Kind.BOUNDED, check)


def _accepted(check: Check) -> Field:
    return Field(Kind.ACCEPTED, check)


def _said(check: Check) -> Field:
    return Field(Kind.OWNED, check)


def _owned(why: str) -> Field:
    return Field(Kind.OWNED, None, why)


def _refused(why: str, check: Check | None = None) -> Field:
    return Field(Kind.REFUSED, check, why)


_TEMPLATE = "the chat template is the model's own."
_TENSORS = "tensors and transfers between engines are not accepted from clients."
_COST = "it would produce or keep tokens that nobody asked for."
_MEDIA = "how media are read is configured on the replica."
_COUNTING = "it changes how many tokens a prompt has after they were counted."
_GUIDED = "use `structured_outputs` or `response_format`."
_BEAM = "beam search is not offered."
_FUNCTIONS = "it is deprecated and no engine reads it; use `tools` and `tool_choice`."

_BOTH: dict[str, Field] = {
    "model": _said(text(MAX_MODEL_CHARS, at_least=1)),
    "max_tokens": _said(_COUNT),
    "stream": _said(boolean),
    "stream_options": _said(_stream_options),
    "priority": _owned("the gateway decides who is served first."),
    "cache_salt": _owned("the gateway keeps the prefix caches of tenants apart."),
    "request_id": _owned("the gateway names requests; see the header x-request-id of the answer."),
    "n": _bounded(_COUNT),
    "stop": _bounded(_stop),
    "logit_bias": _bounded(_logit_bias),
    "bad_words": _bounded(array_of(text(MAX_STOP_CHARS, at_least=1), at_most=MAX_BAD_WORDS)),
    "allowed_token_ids": _bounded(_listed_tokens(MAX_LISTED_TOKENS)),
    "stop_token_ids": _bounded(_listed_tokens(64)),
    "logprob_token_ids": _bounded(_listed_tokens(64)),
    "response_format": _bounded(grammars.response_format),
    "structured_outputs": _bounded(grammars.structured_outputs),
    "thinking_token_budget": _bounded(integer(-1, MAX_COUNT)),
    "temperature": _forwarded(number(0, 2)),
    "top_p": _forwarded(number(0, 1, above_low=True)),
    "top_k": _forwarded(integer(-1, MAX_COUNT)),
    "min_p": _forwarded(number(0, 1)),
    "frequency_penalty": _forwarded(number(-2, 2)),
    "presence_penalty": _forwarded(number(-2, 2)),
    "repetition_penalty": _forwarded(number(0, 10, above_low=True)),
    "seed": _forwarded(_INT64),
    "echo": _forwarded(boolean),
    "include_stop_str_in_output": _forwarded(boolean),
    "skip_special_tokens": _forwarded(boolean),
    "spaces_between_special_tokens": _forwarded(boolean),
    "add_special_tokens": _forwarded(boolean),
    "return_tokens_as_token_ids": _forwarded(boolean),
    "return_token_ids": _forwarded(boolean),
    "user": _accepted(text(1024)),
    "session_id": _accepted(text(1024)),
    "return_token_offsets": _accepted(boolean),
    "return_mm_kwargs": _accepted(boolean),
    "mm_payload": _accepted(text(64)),
    "min_tokens": _refused(_COST, integer(0, MAX_COUNT)),
    "ignore_eos": _refused(_COST, boolean),
    "prompt_logprobs": _refused(_COST, integer(0, MAX_LOGPROBS)),
    "use_beam_search": _refused(_BEAM, boolean),
    "length_penalty": _refused(_BEAM, number(-10, 10)),
    "truncate_prompt_tokens": _refused(_COUNTING, integer(-1, MAX_COUNT)),
    "truncation_side": _refused(_COUNTING, one_of("left", "right")),
    "stream_interval": _refused("the gateway relays tokens as they come.", _COUNT),
    "repetition_detection": _refused("it is not offered.", as_object),
    "routed_experts_prompt_start": _refused("routing data are not returned.", integer(0, MAX_COUNT)),
    "watermarking": _refused("it is configured on the replica.", boolean),
    "kv_transfer_params": _refused(_TENSORS),
    "ec_transfer_params": _refused(_TENSORS),
    "prompt_embeds": _refused(_TENSORS),
    "vllm_xargs": _refused("arguments of engine extensions are not accepted from clients."),
    "logits_processors": _refused("code is not accepted from clients."),
    "guided_json": _refused(_GUIDED),
    "guided_regex": _refused(_GUIDED),
    "guided_choice": _refused(_GUIDED),
    "guided_grammar": _refused(_GUIDED),
    "guided_decoding_backend": _refused(_GUIDED),
    "guided_whitespace_pattern": _refused(_GUIDED),
}

CHAT_COMPLETIONS: dict[str, Field] = _BOTH | {
    "max_completion_tokens": _said(_COUNT),
    "messages": _bounded(messages),
    "tools": _bounded(grammars.tools),
    "tool_choice": _bounded(grammars.tool_choice),
    "top_logprobs": _bounded(integer(0, MAX_LOGPROBS)),
    "logprobs": _forwarded(boolean),
    "parallel_tool_calls": _forwarded(boolean),
    "reasoning_effort": _forwarded(one_of("none", "minimal", "low", "medium", "high", "xhigh", "max")),
    "include_reasoning": _forwarded(boolean),
    "add_generation_prompt": _forwarded(boolean),
    "continue_final_message": _forwarded(boolean),
    "return_prompt_text": _forwarded(boolean),
    "store": _accepted(boolean),
    "metadata": _accepted(_metadata),
    "service_tier": _accepted(one_of("auto", "default", "flex", "scale", "priority", "fast")),
    "safety_identifier": _accepted(text(64)),
    "prompt_cache_key": _accepted(text(1024)),
    "prompt_cache_retention": _accepted(one_of("in_memory", "in-memory", "24h")),
    "prompt_cache_options": _accepted(as_object),
    "verbosity": _accepted(one_of("low", "medium", "high")),
    "modalities": _accepted(array_of(one_of("text"), at_least=1, at_most=1)),
    "prediction": _accepted(as_object),
    "audio": _refused("answers are text."),
    "moderation": _refused("it is not offered."),
    "web_search_options": _refused("it is not offered."),
    "function_call": _refused(_FUNCTIONS),
    "functions": _refused(_FUNCTIONS),
    "chat_template": _refused(_TEMPLATE),
    "chat_template_kwargs": _refused(_TEMPLATE, as_object),
    "documents": _refused(_COUNTING),
    "media_io_kwargs": _refused(_MEDIA),
    "mm_processor_kwargs": _refused(_MEDIA),
}

COMPLETIONS: dict[str, Field] = _BOTH | {
    "prompt": _bounded(prompts),
    "logprobs": _bounded(integer(0, MAX_LOGPROBS)),
    "best_of": _accepted(integer(0, 20)),
    "suffix": _refused(_COUNTING, text(MAX_COUNT)),
}

TABLES: dict[Endpoint, dict[str, Field]] = {
    Endpoint.CHAT_COMPLETIONS: CHAT_COMPLETIONS,
    Endpoint.COMPLETIONS: COMPLETIONS,
}
