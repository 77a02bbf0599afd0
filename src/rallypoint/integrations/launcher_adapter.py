"""Adapts a Rallypoint handler to the agents of other launchers.

The agents of torchrun and TensorPlay poll only `num_nodes_waiting()`. So that number carries
every change: it is 1 when the round is over, the run is closed or this node is fenced. The agent
then stops its workers and joins again, and the result (a round or an error) tells it the rest.
What such an agent does not report, the adapter infers:

* it reaches its exit barrier: its workers succeeded, and this node is done (rule F1);
* it shuts down without having reached it: its workers failed for good, which ends the run for
  all, as with the launcher's own backends;
* it shuts down during another exception, or ends without shutting down (a signal): only this
  node leaves (rule L3, case-C9).
"""

import itertools
import logging
import os
import socket
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

from rallypoint.agent.join.progress import JoinProgress
from rallypoint.errors import RallypointError, RendezvousError, RendezvousStateError
from rallypoint.hosting.host import host_if_ours
from rallypoint.hosting.process import ServerProcess, start_process
from rallypoint.integrations.agent_round import AgentKeys, AgentRound
from rallypoint.net.addresses import free_port
from rallypoint.net.endpoints import is_list, one_host, parse_rendezvous_endpoint
from rallypoint.net.tls import read_tls
from rallypoint.net.token_sources import read_token
from rallypoint.rendezvous import (
    DynamicRendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    defaults,
    get_rendezvous_handler,
)
from rallypoint.rendezvous.client.coordinator import retry_hosting

logger = logging.getLogger("rallypoint")

GAVE_UP = "its workers failed and its restarts are used up, or its agent was shut down"


@contextmanager
def errors_of(api: ModuleType) -> Iterator[None]:
    """Raise rendezvous errors as the errors of the same name in a launcher's module.

    ParameterError is not changed: it is a ValueError, which launchers raise too.
    """
    try:
        yield
    except RendezvousError as error:
        kind = getattr(api, type(error).__name__, api.RendezvousError)
        raise kind(str(error)) from error


def core_parameters(
    source: Any, config: Mapping[str, Any], without: Collection[str] = ()
) -> RendezvousParameters:
    """Convert a launcher's parameters, which have the same names.

    Args:
        source: the launcher's parameters.
        config: the user's configuration.
        without: its names that are not settings of Rallypoint.
    """
    ours = {name: value for name, value in config.items() if name not in without}
    for name in sorted(set(ours) - defaults.parameters()):
        logger.warning("--rdzv-conf %s: rallypoint has no such setting, and ignores it", name)
    return RendezvousParameters(
        backend="core",
        endpoint=source.endpoint or "localhost",  # launchers give "" for this machine
        run_id=source.run_id,
        min_nodes=source.min_nodes,
        max_nodes=source.max_nodes,
        local_addr=source.local_addr,
        node_rank=ours.pop("node_rank", None),
        local_world_size=getattr(source, "local_world_size", 1),
        config=ours,
    )


def _attempt_to_host(params: RendezvousParameters) -> Callable[[], ServerProcess | None] | None:
    """Return a function that starts the server if the endpoint is free; None: never on this node.

    The server is a separate process, so that it outlives the agent that started it.
    `is_host=true` means this machine; any of several agents on it may start the server.
    """
    endpoint, is_host = params.endpoint, params.get_as_bool("is_host")
    if is_host:
        one_host(endpoint)
        free_port(parse_rendezvous_endpoint(endpoint)[0])  # refuses a foreign address
    if is_host is False or is_list(endpoint):
        return None
    token = read_token(params.get("token"), params.get("token_file"))
    insecure = bool(params.get_as_bool("insecure", False))
    tls = read_tls(params.config)
    return lambda: host_if_ours(
        endpoint, None, lambda host, port: start_process(host, port, token, insecure, tls)
    )


class LauncherAdapter:
    """A handler that is driven by another launcher's agent.

    Args:
        params: as returned by `core_parameters`.
        launcher: its name, for people.
        keys: names of its agent's keys.
    """

    def __init__(self, params: RendezvousParameters, launcher: str, keys: AgentKeys) -> None:
        attempt = _attempt_to_host(params)
        spawned = attempt() if attempt is not None else None
        if spawned is not None:
            params.endpoint = spawned.endpoint
        params.config["is_host"] = False  # the server is a separate process, here or elsewhere
        handler = get_rendezvous_handler(params)
        if not isinstance(handler, DynamicRendezvousHandler):
            raise RendezvousStateError(f"{launcher} needs an elastic backend, got {handler!r}")
        self.handler = handler
        self._label = f"{launcher} on {socket.gethostname()} (pid {os.getpid()})"
        self._keys = keys
        self._round: AgentRound | None = None
        self._hosting: Callable[[], AbstractContextManager[object]] = nullcontext
        if attempt is not None and spawned is None:
            self._hosting = lambda: retry_hosting(handler, attempt, logger.warning)
        # An agent that a signal ends does not shut down; this node leaves nevertheless.
        self._end = weakref.finalize(self, _end_of, handler, os.getpid())

    def join(self) -> tuple[RendezvousInfo, AgentRound]:
        """Join the next round. Raises errors of `rallypoint.errors`."""
        why = ""
        if self._round is not None and not self.waiting():
            why = f"{self._label} asked for a new round: its workers failed"
        run, seconds = self.handler.get_run_id(), self.handler.settings.timeout.join
        asks = itertools.count()
        lines = JoinProgress(  # the first report is skipped: nodes seldom join all at once
            lambda: self.handler.waiting_for() if next(asks) else None,
            seconds.total_seconds(),
            lambda line: logger.warning("run %r: %s", run, line),
        )
        lines.start()
        try:
            with self._hosting():
                info = self.handler.next_rendezvous(why)
        finally:
            lines.stop()
        self._hosting = nullcontext
        self._round = AgentRound(self.handler, info, self._keys)
        return info, self._round

    def waiting(self) -> int:
        """Return the value of `num_nodes_waiting` (see the head of this file)."""
        view = self.handler.view()
        ended = view.closed is not None and not view.closed.finished
        return 1 if ended or view.fenced is not None else self.handler.num_nodes_waiting()

    def shutdown(self) -> bool:
        """Leave the run, and close it if this agent has given up."""
        if not self._end.alive:
            return True
        done = self._round is not None and self._round.finished
        passing = sys.exception()
        gave_up = passing is None or type(passing).__name__ == "ChildFailedError"
        try:
            if gave_up and not done and not self.handler.is_closed():
                self.handler.set_closed(f"{self._label}: {GAVE_UP}")
        except RallypointError as error:
            logger.warning("the others could not be notified of the end: %s", error)
            return False
        finally:
            self._end()
        return True


def _end_of(handler: DynamicRendezvousHandler, pid: int) -> None:
    if os.getpid() == pid:  # a forked child must not leave in its parent's name
        try:
            handler.shutdown()
        except RallypointError as error:
            logger.info("left without notifying the coordinator: %s", error)


class LauncherHandler:
    """The methods that the handlers of all launchers share.

    Args:
        api: the launcher's rendezvous module, whose errors are raised.
        backend: the name that the user gave.
        adapter: of this node.
    """

    def __init__(self, api: ModuleType, backend: object, adapter: LauncherAdapter) -> None:
        self._api = api
        self._backend = backend
        self._adapter = adapter

    def get_backend(self) -> str:
        """Return the backend's name, as the user gave it."""
        return str(self._backend)

    def get_run_id(self) -> str:
        """Return the name of the run."""
        return self._adapter.handler.get_run_id()

    def is_closed(self) -> bool:
        """Return whether the run is known to be closed; sends no request."""
        with errors_of(self._api):
            return self._adapter.handler.is_closed()

    def set_closed(self) -> None:
        """Close the run for all nodes."""
        with errors_of(self._api):
            self._adapter.handler.set_closed()

    def num_nodes_waiting(self) -> int:
        """Return the number of waiting nodes, at least 1 if this node must join again.

        Sends no request.
        """
        with errors_of(self._api):
            return self._adapter.waiting()

    def shutdown(self) -> bool:
        """Leave the run (see `LauncherAdapter.shutdown`)."""
        return self._adapter.shutdown()

    def bootstrap(self, info: RendezvousInfo) -> Any:
        """Return the launcher's RendezvousStoreInfo of a round, None if it has none."""
        found = info.bootstrap_store_info
        if found is None:
            return None
        return self._api.RendezvousStoreInfo(found.master_addr, found.master_port)
