"""However a stream is cut into chunks, the same events come out of it, and not a byte is lost."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.sse import EventSplitter, data_of

ROOM = 1 << 20

line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
lines = st.one_of(
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n"), max_size=12).map(
        lambda value: b"data: " + value.encode()
    ),
    st.sampled_from(
        [b"data:", b"data", b"data:x", b"data:  x", b": comment", b":", b"event: y", b"id: 1", b"retry: 9", b"", b"da"]
    ),
)
# The comment at the end: when lines end in mixed ways, a CR that is the very last byte may be half of a CRLF.
streams = st.builds(
    lambda bom, pairs: bom + b"".join(line + end for line, end in pairs) + b":",
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.lists(st.tuples(lines, line_ends), max_size=20),
)


def reference(stream: bytes) -> list[bytes]:
    """Return the payloads as the standard's own algorithm finds them, one line after the other."""
    text = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    payloads: list[bytes] = []
    values: list[bytes] = []
    for line in text.split(b"\n")[:-1]:
        name, _, value = line.partition(b":")
        if not line:
            if values:
                payloads.append(b"\n".join(values))
            values = []
        elif name == b"data":
            values.append(value.removeprefix(b" "))
    return payloads


def split(stream: bytes, cuts: list[int]) -> tuple[list[bytes], bytes]:
    """Feed *stream*, cut at the places *cuts*; return the events and the rest."""
    splitter = EventSplitter(ROOM)
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    events = []
    for start, end in itertools.pairwise(places):
        events += splitter.feed(stream[start:end])
    return events, splitter.rest


@given(streams, st.lists(st.integers(0, 1000), max_size=20))
def test_any_slicing_gives_the_payloads_of_the_standard(stream: bytes, cuts: list[int]) -> None:
    """Slices may fall anywhere: inside a character, between CR and LF, between two line ends."""
    events, _ = split(stream, cuts)

    assert [data for event in events if (data := data_of(event)) is not None] == reference(stream)


@given(streams)
def test_one_byte_at_a_time_is_no_different(stream: bytes) -> None:
    """The cruellest slicing of all."""
    events, _ = split(stream, list(range(len(stream))))

    assert [data for event in events if (data := data_of(event)) is not None] == reference(stream)


@given(st.binary(max_size=200), st.lists(st.integers(0, 1000), max_size=20))
def test_not_a_byte_is_lost_added_or_moved(stream: bytes, cuts: list[int]) -> None:
    """Events and the rest, put together again, are what came, whatever came."""
    events, rest = split(stream, cuts)

    assert b"".join(events) + rest == stream


@given(
    st.lists(st.sampled_from([b"data: x\n\n", b": c\n\n", b"\n", b"data: y\n", b"\r\n", b"data: z\r\r"]), max_size=12)
)
def test_the_quick_way_and_the_slow_way_agree(pieces: list[bytes]) -> None:
    """Whole events in one chunk take a short cut, which must not be seen."""
    whole, _ = split(b"".join(pieces), [])
    torn, _ = split(b"".join(pieces), list(range(1000)))

    assert [data_of(event) for event in whole if data_of(event)] == [data_of(event) for event in torn if data_of(event)]
