"""
The prompt of a request: chat messages with their parts and tool calls, or the prompts of a completion.

Only what this table knows passes: a part that makes the replica fetch a URL, load a tensor, or find another tenant's media
by its id is refused by name. Names that clients send along and no engine reads are left out of what is forwarded.
"""

from collections.abc import Callable
from typing import NoReturn

from gateway.api.checks import (
    Check,
    array_of,
    as_array,
    as_object,
    as_string,
    missing,
    one_of,
    text,
    token_ids,
    wrong_type,
    wrong_value,
)
from gateway.errors import InvalidRequest, UnknownParameter

MAX_PROMPTS = 16
MAX_TOOL_CALLS = 128
MAX_NAME_CHARS = 256

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_PLAIN_MESSAGE = frozenset({"role", "content"})

REFUSED_PARTS = {
    "file": "files are not accepted; send their text.",
    "audio_url": "media URLs are not fetched; send the audio as an `input_audio` part.",
    "video_url": "media URLs are not fetched; send frames as `image_url` parts.",
}


def messages(value: object, param: str) -> object:
    """Accept the messages of a chat."""
    return [_message(message, f"{param}[{index}]") for index, message in enumerate(as_array(value, param, at_least=1))]


def prompts(value: object, param: str) -> object:
    """Accept one prompt or a few, as text or as token ids."""
    if isinstance(value, str):
        return as_string(value, param, at_least=1)
    if not isinstance(value, list):
        wrong_type(value, param, "a string or an array")
    if not value:
        wrong_value(param, "it must not be empty.")
    if isinstance(value[0], str | list):
        as_array(value, param, at_most=MAX_PROMPTS)
        return [_prompt(item, f"{param}[{index}]") for index, item in enumerate(value)]
    token_ids(value, param)
    return value


def count_prompts(prompt: object) -> int:
    """Return how many prompts the checked value of `prompt` holds."""
    return len(prompt) if isinstance(prompt, list) and isinstance(prompt[0], str | list) else 1


def _prompt(value: object, param: str) -> object:
    if isinstance(value, str):
        return as_string(value, param, at_least=1)
    token_ids(as_array(value, param, at_least=1), param)
    return value


def _message(value: object, param: str) -> object:
    message = as_object(value, param)
    role = message.get("role")
    if role is None:
        missing(f"{param}.role")
    if as_string(role, f"{param}.role") not in ROLES:
        wrong_value(f"{param}.role", f"it must be one of {', '.join(sorted(ROLES))}.")
    if message.keys() == _PLAIN_MESSAGE and isinstance(message["content"], str):
        return message  # nearly every message of nearly every request
    forwarded: dict[str, object] = {"role": role, "content": _content(message, str(role), param)}
    for name, item in message.items():
        if name in _PLAIN_MESSAGE:
            continue
        if name not in _MESSAGE_FIELDS or (name == "tool_calls" and role != "assistant"):
            raise UnknownParameter(f"{param}.{name[:64]}")
        check = _MESSAGE_FIELDS[name]
        if item is not None and check is not None:
            forwarded[name] = check(item, f"{param}.{name}")
    if role == "tool" and "tool_call_id" not in forwarded:
        missing(f"{param}.tool_call_id")
    return forwarded


def _content(message: dict[str, object], role: str, param: str) -> object:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None:
        if role == "assistant":
            return None  # an assistant may have said nothing but called a tool
        missing(f"{param}.content")
    if not isinstance(content, list):
        wrong_type(content, f"{param}.content", "a string or an array of parts")
    return [_part(part, f"{param}.content[{index}]") for index, part in enumerate(content)]


def _part(value: object, param: str) -> object:
    part = as_object(value, param)
    kind = part.get("type")
    if kind is None:
        missing(f"{param}.type")
    reader = _PARTS.get(as_string(kind, f"{param}.type"))
    if reader is None:
        why = REFUSED_PARTS.get(str(kind), f"parts of a message are of type {', '.join(_PARTS)}.")
        wrong_value(f"{param}.type", why)
    name, check = reader
    for other in part:
        # `uuid` is among the refused: the replica's media cache is shared by all tenants.
        if other not in {"type", name, "prompt_cache_breakpoint"}:
            raise UnknownParameter(f"{param}.{other[:64]}")
    if part.get(name) is None:
        missing(f"{param}.{name}")
    return {"type": kind, name: check(part[name], f"{param}.{name}")}


def _image(value: object, param: str) -> object:
    image = as_object(value, param, frozenset({"url", "detail"}))
    if image.get("url") is None:
        missing(f"{param}.url")
    url = as_string(image["url"], f"{param}.url")
    if not url.startswith("data:image/"):
        _not_fetched(f"{param}.url")
    if image.get("detail") is not None:
        _DETAIL(image["detail"], f"{param}.detail")
    return {name: item for name, item in image.items() if item is not None}


def _audio(value: object, param: str) -> object:
    audio = as_object(value, param, frozenset({"data", "format"}))
    for name in ("data", "format"):
        if audio.get(name) is None:
            missing(f"{param}.{name}")
    as_string(audio["data"], f"{param}.data", at_least=1)
    _AUDIO_FORMAT(audio["format"], f"{param}.format")
    return audio


def _tool_call(value: object, param: str) -> object:
    call = as_object(value, param, frozenset({"id", "type", "function", "index"}))
    for name in ("id", "function"):
        if call.get(name) is None:
            missing(f"{param}.{name}")
    if call.get("type", "function") != "function":
        wrong_value(f"{param}.type", "only calls of functions are supported.")
    function = as_object(call["function"], f"{param}.function", frozenset({"name", "arguments"}))
    for name in ("name", "arguments"):
        if function.get(name) is None:
            missing(f"{param}.function.{name}")
    return {
        "id": as_string(call["id"], f"{param}.id", at_most=MAX_NAME_CHARS),
        "type": "function",
        "function": {
            "name": as_string(function["name"], f"{param}.function.name", at_least=1, at_most=MAX_NAME_CHARS),
            "arguments": as_string(function["arguments"], f"{param}.function.arguments"),
        },
    }


def _not_fetched(param: str) -> NoReturn:
    raise InvalidRequest(
        f"Invalid value for '{param}': this gateway fetches no URLs. Send the image itself as data:image/…;base64,….",
        param=param,
    )


def _refuse_audio_answer(_value: object, param: str) -> NoReturn:
    wrong_value(param, "audio of earlier answers is not kept here; send its transcript as content.")


def _refuse_function_call(_value: object, param: str) -> NoReturn:
    wrong_value(param, "it is deprecated and no engine reads it; send the call as tool_calls.")


_DETAIL = one_of("auto", "low", "high")
_AUDIO_FORMAT = one_of("wav", "mp3", "flac", "ogg", "m4a", "webm")
_ANY_TEXT = text(2**31)

_PARTS: dict[str, tuple[str, Check]] = {
    "text": ("text", _ANY_TEXT),
    "image_url": ("image_url", _image),
    "input_audio": ("input_audio", _audio),
    "refusal": ("refusal", _ANY_TEXT),
}

#: What a message may carry beside role and content. `None`: read by no engine, so it is left out.
_MESSAGE_FIELDS: dict[str, Callable[[object, str], object] | None] = {
    "name": text(MAX_NAME_CHARS),
    "tool_calls": array_of(_tool_call, at_most=MAX_TOOL_CALLS),
    "tool_call_id": text(MAX_NAME_CHARS),
    "refusal": _ANY_TEXT,
    "reasoning": _ANY_TEXT,
    "reasoning_content": _ANY_TEXT,
    "audio": _refuse_audio_answer,
    "annotations": None,
    "function_call": _refuse_function_call,
    "id": None,
}
