"""case-E1 to case-E4: ranks and spares, with real handlers on a server."""

import socket
from collections.abc import Iterator

import pytest
from tests.integration.cluster import Cluster

from rallypoint.errors import RendezvousStateError

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as made:
        yield made


@pytest.mark.cases("case-E1")
def test_ranks_are_in_natural_order_of_addresses(cluster: Cluster) -> None:
    natural = ["10.0.0.9", "10.0.0.10", "10.0.0.100", "10.0.1.1"]
    handlers = [cluster.handler(4, 4, local_addr=address) for address in natural]
    infos = cluster.join_all(*reversed(handlers))
    assert [info.rank for info in infos] == [3, 2, 1, 0]
    assert [node.address for node in infos[0].participants] == natural


@pytest.mark.cases("case-E1")
def test_ranks_are_in_natural_order_of_host_names(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    natural, asked = ["node7", "node8", "node66", "node70"], {}
    for count, name in enumerate(reversed(natural), 1):
        monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
        asked[name] = cluster.join(cluster.handler(4, 4))
        if count < len(natural):
            cluster.wait_for("candidate", count)
    assert [asked[name].result(5).rank for name in natural] == [0, 1, 2, 3]


@pytest.mark.cases("case-E2")
def test_node_rank_is_honoured(cluster: Cluster) -> None:
    hints = [2, 0, 3, 1]
    handlers = [cluster.handler(4, 4, node_rank=hint) for hint in hints]
    assert [info.rank for info in cluster.join_all(*handlers)] == hints


@pytest.mark.cases("case-E2")
def test_duplicate_node_rank_error_names_both_nodes(cluster: Cluster) -> None:
    first = cluster.handler(2, 2, node_rank=1, local_addr="10.0.0.1")
    second = cluster.handler(2, 2, node_rank=1, local_addr="10.0.0.2")
    third = cluster.handler(2, 2, node_rank=0, local_addr="10.0.0.3")
    held = cluster.join(first)
    cluster.wait_for("candidate", 1)
    with pytest.raises(RendezvousStateError, match=r"node_rank=1 is taken by") as caught:
        second.next_rendezvous()
    assert "10.0.0.1" in str(caught.value)
    assert "10.0.0.2" in str(caught.value)
    assert third.next_rendezvous().rank == 0
    assert held.result(5).rank == 1


@pytest.mark.cases("case-E3")
def test_one_node_too_many_is_a_spare(cluster: Cluster) -> None:
    handlers = [cluster.handler(2, 4) for _ in range(4)]
    infos = cluster.join_all(*handlers)
    spare = cluster.handler(2, 4)
    fifth = cluster.join(spare)
    parked = cluster.until(spare, lambda view: view.parked is not None).parked
    assert parked is not None
    assert parked.spare
    assert "round 1" in parked.why
    assert "4" in parked.why
    assert [handler.num_nodes_waiting() for handler in handlers] == [0, 0, 0, 0]  # undisturbed
    gone = next(h for h, info in zip(handlers, infos, strict=True) if info.rank == 2)
    handlers.remove(gone)
    gone.leave()
    assert [info.world_size for info in cluster.join_all(*handlers)] == [4, 4, 4]
    assert fifth.result(5).rank == 2  # the free rank


@pytest.mark.cases("case-E4")
def test_former_members_have_precedence_over_early_spares(cluster: Cluster) -> None:
    members = [cluster.handler(3, 3) for _ in range(3)]
    ranks = [info.rank for info in cluster.join_all(*members)]
    spares = [cluster.handler(3, 3) for _ in range(2)]
    waiting = [cluster.join(spare) for spare in spares]
    cluster.wait_for("spare", 2)
    # One node starts a new round: spares are candidates at once, two members are not yet.
    first = cluster.join(members[0])
    cluster.wait_for("candidate", 3)
    again = [first, *(cluster.join(m) for m in members[1:])]
    infos = [future.result(5) for future in again]
    assert [info.rank for info in infos] == ranks
    assert [info.world_size for info in infos] == [3, 3, 3]
    assert not any(future.done() for future in waiting)
    cluster.wait_for("spare", 2)
    members[0].set_closed("end of the test")
    for future in waiting:
        assert "end of the test" in str(future.exception(5))
