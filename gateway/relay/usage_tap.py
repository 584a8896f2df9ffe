"""
Read the tokens out of an answer as it passes, and take out the usage reports that the client did not ask for.

We always ask vLLM for running usage, so that a cut stream can be billed. Believes nothing: a report that is missing,
negative, of the wrong type, falling or too large is ignored and counted in `anomalies`. Then the text that passed is
counted. Knows nothing of sockets or of the ledger.
"""

import re
from collections.abc import Mapping

import msgspec

from gateway.relay.sse import data_of
from gateway.vocabulary import Usage, UsageSource

#: tokens that a replica may report beyond what was asked for, per choice
COMPLETION_SLACK = 16
#: our own count of the prompt is approximate when the tokenizer is unknown
PROMPT_FACTOR, PROMPT_SLACK = 8, 100_000
BYTES_PER_TOKEN = 4

# Quotes inside JSON strings are escaped, so this can only match a member. No brace may hide in a string of it.
_USAGE_MEMBER = re.compile(rb',"usage":\{[\w":,\s.+-]*(?:\{[\w":,\s.+-]*\}[\w":,\s.+-]*)*\}')
_TEXT_FIELDS = ("content", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call")


def first_event_error(event: bytes) -> dict[str, object] | None:
    """Return the error object that *event* carries instead of a piece of an answer, else `None`."""
    data = data_of(event)
    document = None if data is None else _object(data)
    error = None if document is None else document.get("error")
    if isinstance(error, dict):
        return error
    return None if error is None else {"message": str(error)}


class UsageTap:
    """
    Watches the events of one attempt. `max_completion` is per choice; `prompt_bound` is our own count of the prompt.

    `include_usage` and `continuous_usage` are what the *client* asked for.
    """

    def __init__(
        self, *, choices: int, include_usage: bool, continuous_usage: bool, prompt_bound: int, max_completion: int
    ) -> None:
        self._wants_final = include_usage
        self._wants_running = include_usage and continuous_usage
        self._prompt_bound = prompt_bound
        self._choices = choices
        self._most_prompt = prompt_bound * PROMPT_FACTOR + PROMPT_SLACK
        self._most_completion = max_completion * choices
        self._final: Usage | None = None
        self._running: dict[int, Usage] = {}
        self._counted = 0
        self.started = False
        self.done_seen = False
        self.ended_by_length = False
        self.error: dict[str, object] | None = None
        self.anomalies = 0

    @property
    def source(self) -> UsageSource:
        """Return where `usage` comes from."""
        if self._final is not None:
            return UsageSource.FINAL
        if not self.started:
            return UsageSource.NONE
        return UsageSource.RUNNING if self._running_completion else UsageSource.COUNTED

    @property
    def usage(self) -> Usage:
        """Return the tokens to bill if the answer ended now; zero before the first token."""
        if self._final is not None:
            return self._final
        if not self.started:
            return Usage()
        if not self._running_completion:
            return Usage(self._prompt_bound, min(self._counted, self._most_completion))
        reports = self._running.values()
        return Usage(
            prompt_tokens=max(report.prompt_tokens for report in reports),
            completion_tokens=self._running_completion,
            cached_tokens=max(report.cached_tokens for report in reports),
            reasoning_tokens=sum(report.reasoning_tokens for report in reports),
        )

    def see(self, event: bytes) -> bytes | None:
        """Return what the client receives for *event*: the same bytes, fewer, or `None` for nothing."""
        data = data_of(event)
        if data is None:
            return event
        if data == b"[DONE]":
            self.done_seen = True
            return event
        chunk = _object(data)
        if chunk is None:
            self.anomalies += 1
            return event
        if chunk.get("error") is not None:
            self.error = first_event_error(event)
            return None
        choices = chunk.get("choices")
        index = self._see_choices(choices)
        report = chunk.get("usage")
        if report is None:
            return event
        if choices == []:
            self._see_final(report)
            return event if self._wants_final else None
        if index is not None:
            self._see_running(index, report)
        return event if self._wants_running else _without_usage(event, chunk)

    def see_json(self, body: bytes) -> None:
        """Read the usage of a whole JSON answer; without a believable one, its text is counted by length."""
        answer = _object(body)
        if answer is None:
            self.anomalies += 1
            return
        self._see_choices(answer.get("choices"))
        self._see_final(answer.get("usage"))
        self.started = self.started or self._final is not None
        if self._final is None and self.started:
            self._counted = max(self._counted, len(body) // BYTES_PER_TOKEN)

    @property
    def _running_completion(self) -> int:
        return sum(report.completion_tokens for report in self._running.values())

    def _see_choices(self, choices: object) -> int | None:
        """Count what *choices* bring; return the index of the first, if it may be one."""
        if not isinstance(choices, list):
            return None
        first: int | None = None
        for choice in choices:
            if not isinstance(choice, dict):
                self.anomalies += 1
                continue
            if choice.get("finish_reason") == "length":
                self.ended_by_length = True
            part = choice.get("delta") or choice.get("message")
            has_text = bool(choice.get("text"))
            if isinstance(part, dict):
                has_text = has_text or any(part.get(name) for name in _TEXT_FIELDS)
            if has_text:
                self.started = True
                self._counted += 1
            index = choice.get("index")
            if first is None and type(index) is int and 0 <= index < self._choices:
                first = index
        return first

    def _see_running(self, index: int, report: object) -> None:
        usage = self._believable(report)
        before = self._running.get(index, Usage())
        if usage is None or usage.completion_tokens < before.completion_tokens:
            self.anomalies += 1
            return
        others = self._running_completion - before.completion_tokens
        if others + usage.completion_tokens > self._most_completion + COMPLETION_SLACK * self._choices:
            self.anomalies += 1
            return
        self._running[index] = usage
        self.started = self.started or usage.completion_tokens > 0

    def _see_final(self, report: object) -> None:
        usage = self._believable(report)
        if usage is None or usage.completion_tokens < max(self._running_completion, min(self._counted, 1)):
            self.anomalies += 1
            return
        self._final = usage

    def _believable(self, report: object) -> Usage | None:
        if not isinstance(report, dict):
            return None
        prompt = _count(report.get("prompt_tokens"))
        completion = _count(report.get("completion_tokens"))
        if prompt is None or prompt > self._most_prompt:
            return None
        if completion is None or completion > self._most_completion + COMPLETION_SLACK * self._choices:
            return None
        cached = _detail(report, "prompt_tokens_details", "cached_tokens")
        reasoning = _detail(report, "completion_tokens_details", "reasoning_tokens")
        return Usage(prompt, completion, min(cached, prompt), min(reasoning, completion))


def _without_usage(event: bytes, chunk: Mapping[str, object]) -> bytes:
    """Return *event* less its usage member; only when that cannot be cut out safely is it written anew."""
    shorter, cuts = _USAGE_MEMBER.subn(b"", event)
    if cuts == 1 and shorter.count(b'"usage":') == 0:
        return shorter
    return b"data: " + msgspec.json.encode({name: chunk[name] for name in chunk if name != "usage"}) + b"\n\n"


def _object(data: bytes) -> dict[str, object] | None:
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _count(value: object) -> int | None:
    # `bool` is an `int`, and no count.
    return value if type(value) is int and value >= 0 else None


def _detail(report: Mapping[str, object], group: str, name: str) -> int:
    details = report.get(group)
    return (_count(details.get(name)) or 0) if isinstance(details, dict) else 0
