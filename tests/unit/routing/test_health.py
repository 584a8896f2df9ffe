"""When a replica gets traffic, decided from what was observed; no clock, no network."""

from gateway.routing.health import PASSIVE_EJECTION_SECONDS, WEDGED_AFTER_SECONDS, Health
from gateway.vocabulary import ProbeReport, ReplicaLoad


def good(*, running: int = 0, tokens: float = 0.0) -> ProbeReport:
    """Return the report of a replica that answers."""
    return ProbeReport(load=ReplicaLoad(running, 0, 0.0, observed_at=0.0), tokens_total=tokens)


BAD = ProbeReport(reason="cannot be reached")


def up() -> Health:
    """Return a replica that was found fit."""
    health = Health()
    health.observe(good(), 0.0)
    return health


def test_a_new_replica_needs_one_good_probe() -> None:
    """Nobody waits for three probes after a worker has just proved itself with a canary."""
    health = Health()

    assert not health.is_up
    health.observe(good(), 0.0)
    assert health.is_up


def test_two_failed_probes_are_a_hiccup_and_three_eject() -> None:
    """One lost packet must not halve a pool."""
    health = up()

    health.observe(BAD, 2.0)
    health.observe(BAD, 4.0)
    assert health.is_up
    health.observe(BAD, 6.0)
    assert not health.is_up
    assert health.was_up


def test_an_ejected_replica_returns_after_three_good_probes() -> None:
    """One good answer between bad ones does not bring a flapping replica back."""
    health = up()
    for now in (2.0, 4.0, 6.0):
        health.observe(BAD, now)

    health.observe(good(), 8.0)
    health.observe(good(), 10.0)
    assert not health.is_up
    health.observe(good(), 12.0)
    assert health.is_up


def test_a_wedged_engine_is_ejected_although_it_answers_probes() -> None:
    """`/health` is 200 while an engine hangs; tokens that stand still give it away."""
    health = up()

    health.observe(good(running=3, tokens=100.0), 10.0)
    health.observe(good(running=3, tokens=100.0), 10.0 + WEDGED_AFTER_SECONDS - 1)
    assert health.is_up
    health.observe(good(running=3, tokens=100.0), 10.0 + WEDGED_AFTER_SECONDS)
    assert not health.is_up


def test_slow_but_moving_is_never_ejected() -> None:
    """One token in 29 seconds is slow; it is not a hang."""
    health = up()

    for step in range(1, 20):
        health.observe(good(running=1, tokens=float(step)), step * (WEDGED_AFTER_SECONDS - 1))
        assert health.is_up


def test_an_idle_replica_is_not_wedged() -> None:
    """No tokens move when nobody asks for any."""
    health = up()

    health.observe(good(running=0, tokens=7.0), 1000.0)
    health.observe(good(running=0, tokens=7.0), 5000.0)
    assert health.is_up
    health.observe(good(running=1, tokens=7.0), 5002.0)
    assert health.is_up


def test_three_failed_calls_in_a_row_eject_for_longer_each_time() -> None:
    """What fails its requests is left alone for 10 s, then tried with one request, then left alone for twice that."""
    health = up()

    health.call_failed(100.0)
    health.call_failed(100.0)
    assert not health.is_passively_ejected(100.0)
    health.call_failed(100.0)
    assert health.is_passively_ejected(100.0 + PASSIVE_EJECTION_SECONDS - 0.1)
    assert not health.is_passively_ejected(100.0 + PASSIVE_EJECTION_SECONDS)
    health.call_failed(120.0)
    assert health.is_passively_ejected(120.0 + 2 * PASSIVE_EJECTION_SECONDS - 0.1)


def test_an_answered_call_clears_the_count() -> None:
    """Three failures count only in a row."""
    health = up()

    for _ in range(5):
        health.call_failed(0.0)
        health.call_failed(0.0)
        health.call_succeeded()

    assert not health.is_passively_ejected(0.0)
