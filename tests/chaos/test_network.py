"""Agents and a server on separate machines (network namespaces), and network failures.

    pytest -m netns tests/chaos

Needs root. A missing requirement fails the test, since these tests run only on request.
"""

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.network import Machine, Network, missing
from tests.integration.harness import Fleet, Line, Process

pytestmark = pytest.mark.netns

LEASE_SECONDS = 3.0
GRACE_SECONDS = 1.0
PORT = 29400
SERVER, FIRST = 0, 1
OPTIONS = (
    "--nnodes=1:3", "--target-nodes=3", "--run-id=far", f"--lease={LEASE_SECONDS}",
    f"--disconnect-grace={GRACE_SECONDS}", "--rejoin-timeout=15", "--stop-grace=14",
    "--last-call=60",
)  # fmt: skip


class Cluster:
    """Three agents and a server, each on its own machine."""

    def __init__(self, fleet: Fleet, network: Network) -> None:
        self.fleet = fleet
        self.network = network
        self.server = self.start("server", SERVER, "serve", f"--bind=0.0.0.0:{PORT}", "--insecure")
        self.server.expect("^serving on ")
        self.agents = [self.agent(f"node{i}", FIRST + i) for i in range(3)]

    def start(self, name: str, machine: int, *argv: str) -> Process:
        where: Machine = self.network.machines[machine]
        command = where.argv([sys.executable, "-m", "rallypoint", *argv])
        return self.fleet.start(name, *command)

    def agent(self, name: str, machine: int) -> Process:
        where = f"--endpoint={self.network.machines[SERVER].address}:{PORT}"
        worker = ("worker.py", str(self.fleet.stop_file))
        return self.start(name, machine, "run", *OPTIONS, where, *worker)

    def three(self) -> list[Line]:
        """Wait until all three are in one round; its lines."""
        return [agent.round(3) for agent in self.agents]

    def end(self, *agents: Process) -> None:
        """Release the workers; all agents must end with success."""
        self.fleet.release()
        for agent in agents or self.agents:
            assert agent.wait() == 0, agent.shown()
        self.server.send(signal.SIGTERM)
        assert self.server.wait() == 0, self.server.shown()
        self.fleet.all_gone()


@pytest.fixture(name="network")
def _network() -> Iterator[Network]:
    if why := missing():
        pytest.fail(f"these tests cannot run here: {why}")
    with Network(5) as network:
        yield network


@pytest.fixture(name="cluster")
def _cluster(network: Network, tmp_path: Path) -> Iterator[Cluster]:
    with Fleet(tmp_path) as fleet:
        yield Cluster(fleet, network)


def cut_off(network: Network, way: str) -> float:
    """Disconnect the first agent from all others; return when."""
    others = [machine.number for machine in network.machines if machine.number != FIRST]
    if way == "both ways":
        return network.part([FIRST], others)
    if way == "from it":
        return min(network.cut(FIRST, other) for other in others)
    return min(network.cut(other, FIRST) for other in others)


@pytest.mark.cases("case-B1")
@pytest.mark.parametrize("way", ["both ways", "from it", "to it"])
def test_disconnected_node_is_lost_and_comes_back(cluster: Cluster, way: str) -> None:
    victim, *others = cluster.agents
    three = cluster.three()
    at = cut_off(cluster.network, way)
    lost = f"joining .* pid {victim.pid} was lost: its lease lapsed"
    told = [agent.expect(lost, line) for agent, line in zip(others, three[1:], strict=True)]
    two = [agent.round(2, line) for agent, line in zip(others, told, strict=True)]
    detected = max(line.at for line in told) - at
    formed = max(line.at for line in two) - at
    healed = cluster.network.mend()
    again = [agent.round(3, line) for agent, line in zip(others, two, strict=True)]
    back = victim.round(3, three[0])
    assert victim.expect("joining the next round: was fenced").number < back.number
    recovered = max(line.at for line in (*again, back)) - healed
    print(
        f"figures: cut off {way}: told after {detected:.2f} s, re-formed after {formed:.2f} s; "
        f"back {recovered:.2f} s after the network was"
    )
    assert detected < LEASE_SECONDS + 2.0
    assert formed < LEASE_SECONDS + 3.0
    assert len({re.sub("rank .", "", line.text) for line in (*again, back)}) <= 2  # one round
    cluster.end()


def test_node_disconnected_for_less_than_its_lease_is_not_lost(cluster: Cluster) -> None:
    three = cluster.three()
    cut_off(cluster.network, "both ways")
    cluster.network.part([FIRST + 1], [FIRST + 2])  # the run does not need this link
    with pytest.raises(AssertionError, match="no line with"):
        cluster.agents[1].expect("joining", three[1], limit=LEASE_SECONDS / 2)
    cluster.network.mend()
    with pytest.raises(AssertionError, match="no line with"):
        cluster.agents[1].expect("joining", three[1], limit=LEASE_SECONDS)
    cluster.end()
    assert all("joining" not in agent.out.text for agent in cluster.agents)


def test_run_continues_after_the_server_was_unreachable(cluster: Cluster) -> None:
    three = cluster.three()
    cluster.network.part([SERVER], [FIRST, FIRST + 1, FIRST + 2])
    with pytest.raises(AssertionError, match="no line with"):
        cluster.agents[0].expect("joining", three[0], limit=LEASE_SECONDS + 2.0)
    healed = cluster.network.mend()
    for agent, line in zip(cluster.agents, three, strict=True):
        again = agent.round(3, line)  # all were silent, and are back
        print(f"figures: the server was cut off: all back after {again.at - healed:.2f} s")
    cluster.end()


@pytest.mark.parametrize(("delay", "loss"), [(0.1, 0.0), (0.0, 0.05), (0.1, 0.05)])
def test_rounds_form_on_a_bad_network(
    network: Network, tmp_path: Path, delay: float, loss: float
) -> None:
    network.delay_seconds, network.loss = delay, loss
    with Fleet(tmp_path) as fleet:
        cluster = Cluster(fleet, network)
        three = cluster.three()
        formed = max(line.at for line in three) - cluster.agents[0].started_at
        at = cluster.agents[0].kill()
        two = [a.round(2, line) for a, line in zip(cluster.agents[1:], three[1:], strict=True)]
        again = max(line.at for line in two) - at
        print(
            f"figures: delay {delay * 1000:.0f} ms, loss {loss:.0%}: first round after "
            f"{formed:.2f} s, the next {again:.2f} s after a kill"
        )
        assert formed < 20.0
        assert again < GRACE_SECONDS + LEASE_SECONDS + 5.0
        cluster.end(*cluster.agents[1:])
