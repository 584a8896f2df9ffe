"""
Server-sent events, split and not rebuilt: whole events come out as the very bytes that came in.

Pure and incremental. Line ends may be LF, CRLF or CR, as the standard has it (WHATWG HTML, section 9.2).
"""

import re

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r|\r\n\n|\n\r\n")
_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventTooLarge(Exception):
    """An event is larger than allowed, or what comes is no stream of events."""


class EventSplitter:
    """Cuts a stream of bytes into events of at most *max_event_bytes*."""

    def __init__(self, max_event_bytes: int) -> None:
        self._max = max_event_bytes
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """
        Return the events that *chunk* completes, each with the blank line that ends it.

        Raises:
            EventTooLarge: an event has grown beyond the limit.
        """
        data = self._rest + chunk if self._rest else chunk
        events: list[bytes] = []
        start = 0
        for end in _END.finditer(data):
            # A CR at the very end may be half of a CRLF whose LF is still on its way.
            if end.group() == b"\r\r" and end.end() == len(data):
                break
            events.append(data[start : end.end()])
            start = end.end()
        self._rest = data[start:]
        if len(self._rest) > self._max or any(len(event) > self._max for event in events):
            raise EventTooLarge
        return events


def data_of(event: bytes) -> bytes | None:
    """Return the payload of *event*, its data lines joined by LF; `None` when it has none, as a comment."""
    if event.startswith(b"data: ") and event.endswith(b"\n\n") and b"\n" not in event[:-2] and b"\r" not in event:
        return event[6:-2]
    values = []
    for line in _LINE_END.split(event.removeprefix(b"\xef\xbb\xbf")):
        if line.startswith(b"data:"):
            values.append(line[5:].removeprefix(b" "))
    return b"\n".join(values) if values else None


def is_done(event: bytes) -> bool:
    """Tell whether *event* is OpenAI's end mark."""
    return data_of(event) == b"[DONE]"
