"""
Put a streamed answer together again, into the JSON that vLLM itself would have sent without `stream`.

Pure. Field order and nulls are those of vLLM 0.32, as recorded. Knows nothing of quotas or sockets.
"""

from dataclasses import dataclass, field

import msgspec

from gateway.relay.sse import data_of
from gateway.vocabulary import Endpoint


class Incomplete(Exception):
    """The stream ended before the answer was whole, or was no answer."""


@dataclass(slots=True)
class _Choice:
    """One completion as far as it has come."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    tools: dict[int, dict[str, object]] = field(default_factory=dict)
    logprobs: dict[str, list[object]] | None = None
    finish_reason: str | None = None
    stop_reason: object = None


class Assembler:
    """Collects the events of one answer of *endpoint*."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._is_chat = endpoint is Endpoint.CHAT_COMPLETIONS
        self._head: dict[str, object] = {}
        self._fingerprint: object = None
        self._usage: dict[str, object] | None = None
        self._choices: dict[int, _Choice] = {}
        self._is_broken = False

    def see(self, event: bytes) -> None:
        """Add *event*; what cannot be read makes `answer` raise."""
        data = data_of(event)
        if data is None or data == b"[DONE]":
            return
        try:
            chunk = msgspec.json.decode(data)
            if chunk.get("error") is not None:
                self._is_broken = True
                return
            self._head = self._head or {name: chunk.get(name) for name in ("id", "created", "model")}
            self._fingerprint = chunk.get("system_fingerprint") or self._fingerprint
            choices = chunk["choices"]
            if not choices and isinstance(chunk.get("usage"), dict):
                self._usage = chunk["usage"]
            for piece in choices:
                self._add(piece)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError, AttributeError):
            self._is_broken = True

    def answer(self) -> bytes:
        """
        Return the answer as JSON.

        Raises:
            Incomplete: a choice has no finish reason, the final usage is missing, or an event could not be read.
        """
        unfinished = any(choice.finish_reason is None for choice in self._choices.values())
        if self._is_broken or self._usage is None or not self._choices or unfinished:
            raise Incomplete
        document: dict[str, object] = {
            "id": self._head["id"],
            "object": "chat.completion" if self._is_chat else "text_completion",
            "created": self._head["created"],
            "model": self._head["model"],
            "choices": [self._whole(index, choice) for index, choice in sorted(self._choices.items())],
            "service_tier": None,
            "system_fingerprint": self._fingerprint,
            "usage": _whole_usage(self._usage),
        }
        if self._is_chat:
            document |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        document |= {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
        try:
            return msgspec.json.encode(document)
        except (TypeError, ValueError) as error:
            raise Incomplete from error

    def _add(self, piece: dict[str, object]) -> None:
        index = piece["index"]
        if type(index) is not int:
            raise TypeError("a choice needs an index")
        choice = self._choices.setdefault(index, _Choice())
        reason = piece.get("finish_reason")
        if isinstance(reason, str):
            choice.finish_reason, choice.stop_reason = reason, piece.get("stop_reason")
        logprobs = piece.get("logprobs")
        if isinstance(logprobs, dict):
            choice.logprobs = {} if choice.logprobs is None else choice.logprobs
            for name, values in logprobs.items():
                choice.logprobs.setdefault(name, []).extend(values or [])
        if not self._is_chat:
            _append(choice.text, piece.get("text"))
            return
        delta = piece.get("delta")
        if not isinstance(delta, dict):
            return
        _append(choice.text, delta.get("content"))
        _append(choice.reasoning, delta.get("reasoning"))
        _append(choice.refusal, delta.get("refusal"))
        for call in delta.get("tool_calls") or []:
            _merge_call(choice.tools, call)

    def _whole(self, index: int, choice: _Choice) -> dict[str, object]:
        end: dict[str, object] = {
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": None,
        }
        if not self._is_chat:
            end |= {"prompt_logprobs": None, "prompt_token_ids": None, "routed_experts": None}
            return {"index": index, "text": "".join(choice.text), **end}
        message: dict[str, object] = {
            "role": "assistant",
            "content": "".join(choice.text),
            "refusal": "".join(choice.refusal) or None,
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        if choice.tools:
            message["tool_calls"] = [call for _, call in sorted(choice.tools.items())]
        message["reasoning"] = "".join(choice.reasoning) or None
        return {"index": index, "message": message, **end, "routed_experts": None}


def _append(parts: list[str], part: object) -> None:
    if isinstance(part, str):
        parts.append(part)


def _merge_call(calls: dict[int, dict[str, object]], delta: dict[str, object]) -> None:
    """Add *delta* to the tool call of its index: id and name come once, the arguments in pieces."""
    index = delta["index"]
    if type(index) is not int:
        raise TypeError("a tool call needs an index")
    function = delta.get("function")
    call = calls.setdefault(index, {"id": None, "type": "function", "function": {"name": None, "arguments": ""}})
    call["id"] = call["id"] or delta.get("id")
    whole = call["function"]
    if isinstance(function, dict) and isinstance(whole, dict):
        whole["name"] = whole["name"] or function.get("name")
        whole["arguments"] += function.get("arguments") or ""


def _whole_usage(usage: dict[str, object]) -> dict[str, object]:
    """Return *usage* with the nulls that a stream leaves out."""
    names = ("prompt_tokens", "total_tokens", "completion_tokens")
    whole: dict[str, object] = {name: usage.get(name) for name in names}
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        empty = {"cached_tokens": None, "created_cache_tokens": None, "multimodal_tokens": None}
        whole["prompt_tokens_details"] = empty | details
    else:
        whole["prompt_tokens_details"] = None
    whole["completion_tokens_details"] = usage.get("completion_tokens_details")
    return whole
