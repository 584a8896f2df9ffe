"""The usage tap bills what vLLM reports, and shows the client only what it asked for."""

import pytest

from gateway.relay.assemble import Assembler, Incomplete
from gateway.relay.sse import EventSplitter
from gateway.relay.usage_tap import UsageTap, first_event_error
from gateway.vocabulary import Endpoint, Usage, UsageSource


def chunk(text: str, completion: object, *, index: int = 0) -> bytes:
    return (
        f'data: {{"id":"c","created":1,"model":"m","choices":[{{"index":{index},"delta":{{"content":"{text}"}},'
        f'"finish_reason":null}}],"usage":{{"prompt_tokens":7,"total_tokens":9,"completion_tokens":{completion},'
        f'"completion_tokens_details":null}}}}\n\n'
    ).encode()


FINAL = (
    b'data: {"id":"c","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":7,"total_tokens":9,'
    b'"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
)


def tap(*, include_usage: bool = False, continuous_usage: bool = False, choices: int = 1) -> UsageTap:
    return UsageTap(
        choices=choices,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        prompt_bound=7,
        max_completion=10,
    )


def test_client_that_asked_for_all_usage_gets_the_same_bytes() -> None:
    """Nothing is changed for a client that asked for what we asked for."""
    watching = tap(include_usage=True, continuous_usage=True)

    assert watching.see(chunk("a", 1)) == chunk("a", 1)
    assert watching.see(FINAL) == FINAL


def test_unasked_usage_is_cut_out_and_billed() -> None:
    """A client that did not ask sees no usage, and pays by the final report."""
    watching = tap()

    seen = watching.see(chunk("a", 1))
    assert seen is not None
    assert b"usage" not in seen
    assert seen.endswith(b'"finish_reason":null}]}\n\n')
    assert watching.see(FINAL) is None
    assert watching.usage == Usage(7, 2, cached_tokens=4)
    assert watching.source is UsageSource.FINAL


def test_cut_stream_of_two_choices_is_billed_by_the_sum() -> None:
    """Without a final report, the last running reports of all choices are added up."""
    watching = tap(choices=2)

    for index in (0, 1):
        watching.see(chunk("a", 3, index=index))

    assert watching.usage == Usage(7, 6)
    assert watching.source is UsageSource.RUNNING


@pytest.mark.parametrize("lie", ["-1", "1.5", '"2"', "true", "null", "1e9", "999999", "[]"])
def test_unbelievable_report_is_ignored_and_text_is_counted(lie: str) -> None:
    """A report that cannot be true is an anomaly; the text that passed is billed instead."""
    watching = tap()

    watching.see(chunk("a", lie))

    assert watching.usage == Usage(7, 1)
    assert watching.source is UsageSource.COUNTED
    assert watching.anomalies == 1


def test_error_event_is_not_shown() -> None:
    """An error event is kept from the client, for the pipeline to word."""
    watching = tap()
    event = b'data: {"error":{"message":"no","code":500}}\n\n'

    assert watching.see(event) is None
    assert watching.error == first_event_error(event) == {"message": "no", "code": 500}


def test_unfinished_answer_is_not_assembled() -> None:
    """Without a finish reason there is no whole answer."""
    assembler = Assembler(Endpoint.CHAT_COMPLETIONS)
    assembler.see(chunk("a", 1))
    assembler.see(FINAL)

    with pytest.raises(Incomplete):
        assembler.answer()


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_events_survive_any_cut(size: int) -> None:
    """However the bytes are cut on the way, the same events come out."""
    events = [chunk("a", 1), b": ping\r\n\r\n", FINAL]
    stream = b"".join(events)
    splitter = EventSplitter(1000)

    out = [event for at in range(0, len(stream), size) for event in splitter.feed(stream[at : at + size])]
    assert b"".join(out) == stream
    assert out == events
