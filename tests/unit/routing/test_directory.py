"""Which replica takes the next request."""

from uuid import UUID

import pytest

from gateway.errors import ModelNotFound, NoReplica, PoolSaturated
from gateway.routing.directory import ReplicaDirectory
from gateway.routing.replica import QUEUE_FACTOR, TrackedReplica
from gateway.settings import Health as HealthSettings
from gateway.vocabulary import ProbeReport, Replica, ReplicaAddress, ReplicaId, ReplicaLoad, ReplicaState

GOOD = ProbeReport(load=ReplicaLoad(0, 0, 0.0, observed_at=0.0), tokens_total=0.0)


def replica(number: int, *, state: ReplicaState = ReplicaState.READY, model: str = "m", slots: int = 4) -> Replica:
    """Return a replica as the store would."""
    address = ReplicaAddress(ReplicaId(UUID(int=number)), f"r{number}", f"http://127.0.0.1:{9000 + number}")
    return Replica(address, model, state, max_model_len=2048, slots=slots)


def directory_of(*replicas: Replica) -> ReplicaDirectory:
    """Return a directory in which all of *replicas* were probed once, with success."""
    directory = ReplicaDirectory(HealthSettings())
    directory.refresh(replicas)
    for tracked in directory.all():
        tracked.observe(GOOD)
    return directory


def by_name(directory: ReplicaDirectory, name: str) -> TrackedReplica:
    """Return one tracked replica."""
    return next(tracked for tracked in directory.all() if tracked.replica.address.name == name)


@pytest.mark.parametrize("state", [state for state in ReplicaState if state not in {"ready", "ejected"}])
def test_only_a_ready_replica_gets_traffic(state: ReplicaState) -> None:
    """Loading, warming, draining and gone replicas get none."""
    directory = directory_of(replica(1, state=state))

    with pytest.raises(NoReplica):
        directory.choose("m", tokens=10)


def test_a_replica_that_was_never_probed_gets_no_traffic() -> None:
    """Declared ready is not found ready."""
    directory = ReplicaDirectory(HealthSettings())
    directory.refresh([replica(1)])

    with pytest.raises(NoReplica):
        directory.choose("m", tokens=10)


def test_an_unknown_model_is_not_found_and_a_stopped_one_is() -> None:
    """A model whose workers restart is unavailable for a moment; it does not cease to exist."""
    directory = directory_of(replica(1, state=ReplicaState.GONE))

    assert directory.info("m").name == "m"
    assert directory.models() == []
    with pytest.raises(ModelNotFound):
        directory.info("other")


def test_a_burst_between_two_scrapes_is_spread() -> None:
    """Our own count stands in for the scrape that has not come yet: equals share a burst evenly."""
    directory = directory_of(replica(1, slots=100), replica(2, slots=100))

    for _ in range(40):
        directory.choose("m", tokens=10).begin()

    assert [tracked.running_here for tracked in directory.all()] == [20, 20]


def test_full_replicas_are_saturated_not_missing() -> None:
    """Contended capacity is a 429, no capacity is a 503: different advice to the client."""
    directory = directory_of(replica(1, slots=2))
    for _ in range(2 * QUEUE_FACTOR):
        directory.choose("m", tokens=10).begin()

    with pytest.raises(PoolSaturated):
        directory.choose("m", tokens=10)


def test_a_tried_replica_is_not_tried_again() -> None:
    """The second attempt goes to another replica, or nowhere."""
    directory = directory_of(replica(1), replica(2))
    first = directory.choose("m", tokens=10).replica.address.id

    second = directory.choose("m", tokens=10, tried={first}).replica.address.id
    assert second != first
    with pytest.raises(NoReplica):
        directory.choose("m", tokens=10, tried={first, second})


def test_never_more_than_half_of_a_pool_is_ejected_by_failed_requests() -> None:
    """When everything fails the requests are suspect, and what is left could not carry the load."""
    directory = directory_of(replica(1), replica(2))
    for _ in range(3):
        by_name(directory, "r1").failed()
    assert {directory.choose("m", tokens=10).replica.address.name for _ in range(20)} == {"r2"}

    for _ in range(3):
        by_name(directory, "r2").failed()

    assert {directory.choose("m", tokens=10).replica.address.name for _ in range(50)} == {"r1", "r2"}


def test_a_restarted_worker_starts_with_a_clean_sheet() -> None:
    """The engine that failed is not the engine that comes back."""
    directory = directory_of(replica(1))
    for _ in range(3):
        by_name(directory, "r1").failed()

    directory.refresh([replica(1, state=ReplicaState.LOADING)])
    directory.refresh([replica(1)])

    assert by_name(directory, "r1").state is ReplicaState.WARMING
    assert by_name(directory, "r1").health.passive_until == 0.0


def test_what_left_the_snapshot_is_reported_once() -> None:
    """The relay closes its connections to a replica that is gone."""
    directory = directory_of(replica(1), replica(2))

    left = directory.refresh([replica(1)])

    assert [item.address.name for item in left] == ["r2"]
    assert directory.refresh([replica(1)]) == []
