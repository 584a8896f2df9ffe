"""Server-sent events: the cases of the standard, and a bound on what a replica may make us remember."""

import pytest

from gateway.relay.sse import EventSplitter, EventTooLarge, data_of, is_done


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: x\n\n", b"x"),
        (b"data:x\n\n", b"x"),
        (b"data:  x\n\n", b" x"),
        (b"data: x\r\n\r\n", b"x"),
        (b"data: x\r\r", b"x"),
        (b"\ndata: x\n\n", b"x"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"data\ndata\n\n", b"\n"),
        (b"data:\n\n", b""),
        (b"event: e\nid: 1\ndata: x\n\n", b"x"),
        (b"\xef\xbb\xbfdata: x\n\n", b"x"),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: x\n\n", None),
        (b"data : x\n\n", None),
        (b" data: x\n\n", None),
        (b"Data: x\n\n", None),
        (b": comment\n\n", None),
        (b"\n\n", None),
        ("data: é\u2028\u2029\x85\x0b\x0c\n\n".encode(), "é\u2028\u2029\x85\x0b\x0c".encode()),
    ],
)
def test_the_payload_of_an_event(event: bytes, data: bytes | None) -> None:
    """As the standard has it; after the web platform tests of EventSource (eventsource/format-*)."""
    assert data_of(event) == data


@pytest.mark.parametrize("event", [b"data: [DONE]\n\n", b"data:[DONE]\r\n\r\n", b"event: done\ndata: [DONE]\n\n"])
def test_the_end_mark_in_every_dress(event: bytes) -> None:
    """Other servers write it with other line ends or without the space."""
    assert is_done(event)


def test_text_that_speaks_of_the_end_mark_is_not_one() -> None:
    """A model may well explain the protocol."""
    assert not is_done(b'data: {"choices":[{"text":"data: [DONE]"}]}\n\n')


def test_an_event_that_never_ends_is_given_up() -> None:
    """A replica cannot make us remember more than one event of the allowed size."""
    splitter = EventSplitter(100)
    splitter.feed(b"data: " + b"x" * 94)

    with pytest.raises(EventTooLarge):
        splitter.feed(b"x")


def test_an_event_too_large_is_refused_though_it_came_whole() -> None:
    """The bound is on the event, not on what is left over."""
    with pytest.raises(EventTooLarge):
        EventSplitter(100).feed(b"data: " + b"x" * 100 + b"\n\n")


def test_many_events_may_come_in_one_chunk() -> None:
    """The bound is on each event, not on how much arrives at once."""
    assert len(EventSplitter(100).feed(b"data: x\n\n" * 100)) == 100


def test_a_cr_ends_the_last_event_at_once() -> None:
    """Nobody waits for a line feed that may never come."""
    splitter = EventSplitter(100)

    assert splitter.feed(b"data: [DONE]\r\r") == [b"data: [DONE]\r\r"]
    assert splitter.rest == b""


def test_crlf_is_not_torn_by_the_network() -> None:
    """A chunk that ends between CR and LF does not end the event there."""
    splitter = EventSplitter(100)

    assert splitter.feed(b"data: x\r\n\r") == []
    assert splitter.feed(b"\ndata: y\r\n\r\n") == [b"data: x\r\n\r\n", b"data: y\r\n\r\n"]
