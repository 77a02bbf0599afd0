import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.integrations.rounds import KEYS

from rallypoint.errors import (
    ParameterError,
    RendezvousClosedError,
    RendezvousTimeoutError,
)
from rallypoint.hosting import host as hosting
from rallypoint.hosting.process import ServerProcess, start_process
from rallypoint.integrations import launcher_adapter as guest_module
from rallypoint.integrations.launcher_adapter import LauncherAdapter, core_parameters, errors_of
from rallypoint.rendezvous import RendezvousParameters, get_rendezvous_handler
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.options import Options

pytestmark = pytest.mark.integration


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    running = EmbeddedServer("127.0.0.1", 0, Options())
    yield running
    running.stop()


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> list[ServerProcess]:
    """Attempts to host are made in quick succession; the servers that come of it."""
    servers: list[ServerProcess] = []

    def host(*args: Any) -> ServerProcess:
        found = start_process(*args)
        servers.append(found)
        return found

    monkeypatch.setattr(guest_module, "start_process", host)
    monkeypatch.setattr(hosting, "FIRST_SECONDS", 0.001)
    return servers


def theirs(server: EmbeddedServer, most: int = 1, **config: Any) -> SimpleNamespace:
    """Return parameters as launchers make them."""
    return SimpleNamespace(
        endpoint=f"127.0.0.1:{server.port}", run_id="job", min_nodes=1, max_nodes=most,
        local_addr=None, config={"last_call": "0.2", "join_timeout": "20", **config},
    )  # fmt: skip


def new_guest(server: EmbeddedServer, most: int = 1, **config: Any) -> LauncherAdapter:
    params = theirs(server, most, is_host="0", **config)
    return LauncherAdapter(core_parameters(params, params.config), "a launcher", KEYS)


def another(server: EmbeddedServer, most: int) -> Any:
    return get_rendezvous_handler(
        RendezvousParameters(
            "core", f"127.0.0.1:{server.port}", "job", 1, most,
            is_host=False, last_call=0.2, join=20,
        )
    )  # fmt: skip


def until_waiting(adapter: LauncherAdapter) -> None:
    end = time.monotonic() + 20
    while adapter.waiting() == 0:
        assert time.monotonic() < end
        time.sleep(0.01)


class Theirs(ModuleType):
    class RendezvousError(Exception): ...

    class RendezvousClosedError(RendezvousError): ...


def test_errors_are_those_of_the_launcher() -> None:
    api = Theirs("api")
    with pytest.raises(Theirs.RendezvousClosedError, match="by node7"), errors_of(api):
        raise RendezvousClosedError("by node7")
    with pytest.raises(Theirs.RendezvousError, match="too late"), errors_of(api):
        raise RendezvousTimeoutError("too late")
    with pytest.raises(ParameterError), errors_of(api):
        raise ParameterError("wrong")


def test_tensorplay_parameters_are_ours(server: EmbeddedServer) -> None:
    params = theirs(server, 3, node_rank="2", timeout=900, token="abc")
    ours = core_parameters(params, params.config, without=("timeout",))
    assert (ours.backend, ours.min_nodes, ours.max_nodes, ours.node_rank) == ("core", 1, 3, 2)
    assert ours.endpoint == params.endpoint
    assert ours.config == {"last_call": "0.2", "join_timeout": "20", "token": "abc"}


def test_unused_setting_is_reported(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    params = theirs(server, is_host="false", last_cal="5", timeout="9")
    core_parameters(params, params.config, without=("timeout",))
    (record,) = caplog.records
    assert "--rdzv-conf last_cal: rallypoint has no such setting" in record.getMessage()


def test_is_host_must_be_of_this_machine(server: EmbeddedServer) -> None:
    params = theirs(server, is_host="true")
    params.endpoint = "192.0.2.1:29400"
    with pytest.raises(ParameterError, match=r"192\.0\.2\.1"):
        LauncherAdapter(core_parameters(params, params.config), "a launcher", KEYS)


def test_host_connects_to_its_own_server(
    server: EmbeddedServer, spawned: list[ServerProcess]
) -> None:
    params = theirs(server)
    params.endpoint = "127.0.0.1:0"
    ours = core_parameters(params, params.config)
    adapter = LauncherAdapter(ours, "a launcher", KEYS)
    assert [found.endpoint for found in spawned] == [ours.endpoint]
    adapter.join()
    adapter.shutdown()


@pytest.mark.parametrize("config", [{}, {"is_host": "true"}])
def test_adapter_hosts_once_the_port_becomes_free(
    server: EmbeddedServer, spawned: list[ServerProcess], config: dict[str, Any]
) -> None:
    """That of an earlier run still listens when all are made, and then ends."""
    params = theirs(server, **config)
    adapter = LauncherAdapter(core_parameters(params, params.config), "a launcher", KEYS)
    server.stop()
    assert adapter.join()[0].world_size == 1
    assert [found.endpoint for found in spawned] == [params.endpoint]
    adapter.shutdown()


def test_only_the_first_join_of_an_adapter_retries(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    def begin(*args: object) -> AbstractContextManager[None]:
        made.append(args)
        return nullcontext()

    monkeypatch.setattr(guest_module, "retry_hosting", begin)
    params = theirs(server)
    adapter = LauncherAdapter(core_parameters(params, params.config), "a launcher", KEYS)
    adapter.join()
    adapter.join()
    assert len(made) == 1
    adapter.shutdown()


def test_a_newcomer_is_waiting(server: EmbeddedServer) -> None:
    adapter, other = new_guest(server, 2), another(server, 2)
    assert adapter.join()[0].world_size == 1
    assert adapter.waiting() == 0
    joining = threading.Thread(target=other.next_rendezvous, daemon=True)
    joining.start()
    until_waiting(adapter)
    assert adapter.join()[0].world_size == 2
    joining.join(20)
    other.leave("it has had enough")
    until_waiting(adapter)  # a round that is over must be seen by who only polls this
    adapter.shutdown()
    other.shutdown()


def test_agent_at_the_exit_barrier_is_done(server: EmbeddedServer) -> None:
    adapter = new_guest(server)
    _info, agent_round = adapter.join()
    agent_round.add("exit/count", 1)
    assert adapter.shutdown()
    assert adapter.shutdown(), "again: nothing happens"
    assert "the only node of round 1 finished" in closed_for(server)


def closed_for(server: EmbeddedServer) -> str:
    late = another(server, 1)
    with pytest.raises(RendezvousClosedError) as caught:
        late.next_rendezvous()
    late.shutdown()
    return str(caught.value)


class ChildFailedError(Exception):
    """As torch's and TensorPlay's are called."""


@pytest.mark.parametrize("error", [None, ChildFailedError()])
def test_agent_that_gives_up_closes_the_run(
    server: EmbeddedServer, error: Exception | None
) -> None:
    adapter = new_guest(server)
    adapter.join()
    try:
        if error is not None:
            raise error
    except ChildFailedError:
        adapter.shutdown()
    else:
        adapter.shutdown()
    assert "a launcher on " in closed_for(server)


@pytest.mark.cases("case-C9")
def test_other_agent_error_ends_only_that_node(server: EmbeddedServer) -> None:
    adapter = new_guest(server)
    adapter.join()
    try:
        raise OSError("no space left")
    except OSError:
        adapter.shutdown()
    late = another(server, 1)
    assert late.next_rendezvous().world_size == 1
    late.shutdown()


@pytest.mark.cases("case-C1")
def test_dropped_adapter_leaves(server: EmbeddedServer) -> None:
    adapter, other = new_guest(server, 2), another(server, 2)
    adapter.join()
    del adapter
    gc.collect()
    assert other.next_rendezvous().world_size == 1
    other.shutdown()


def test_forked_child_does_not_end_the_parents_handler(server: EmbeddedServer) -> None:
    adapter = new_guest(server)
    adapter.join()
    guest_module._end_of(adapter.handler, os.getpid() + 1)
    assert adapter.handler.report().phase == "sealed"
    adapter.shutdown()


def test_polling_agent_sees_a_closed_run_as_waiting(server: EmbeddedServer) -> None:
    adapter = new_guest(server)
    adapter.join()
    other = another(server, 1)
    other.set_closed("enough")
    until_waiting(adapter)
    with pytest.raises(RendezvousClosedError, match="enough"):
        adapter.join()
    adapter.shutdown()
    other.shutdown()


def test_no_node_hosts_a_list_of_endpoints() -> None:
    source = SimpleNamespace(
        endpoint="127.0.0.1:1,127.0.0.1:2", run_id="job", min_nodes=1, max_nodes=1, local_addr=None
    )
    with pytest.raises(ParameterError, match="no node starts a server of a list itself"):
        LauncherAdapter(core_parameters(source, {"is_host": "1"}), "a launcher", KEYS)
    ours = core_parameters(source, {"close": "0.1"})
    adapter = LauncherAdapter(ours, "a launcher", KEYS)
    assert ours.endpoint == source.endpoint
    adapter.shutdown()
