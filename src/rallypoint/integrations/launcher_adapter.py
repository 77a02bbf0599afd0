"""One node's part in a run, as the agents of other launchers want it.

The agents of torchrun and TensorPlay know of a rendezvous only what they poll:
`num_nodes_waiting()`. All that a node must hear of is therefore said through that number: a
round that is over, a run that was closed, a node that was shut out make it 1, the agent
stops its workers and asks for the next round, and the answer (a round or an error) says the
rest. What such an agent cannot say, a adapter concludes:

* it comes to its exit barrier: its workers have succeeded, this node is done (rule F1);
* it shuts down without having come there: its workers failed for good, which ends the run
  for all, as with the launcher's own backends;
* it shuts down while another exception passes, or ends without a word (a signal): that
  ends nothing but this node's part (rule L3, case-C9).
"""

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
from rallypoint.rendezvous.coordinator import Report

logger = logging.getLogger("rallypoint")

GIVES_UP = "its workers failed and its restarts are used up, or its agent was shut down"


@contextmanager
def errors_of(api: ModuleType) -> Iterator[None]:
    """Raise our errors as those of the same name of a launcher's rendezvous module.

    ParameterError passes: it is a ValueError, which is what launchers raise there.
    """
    try:
        yield
    except RendezvousError as error:
        kind = getattr(api, type(error).__name__, api.RendezvousError)
        raise kind(str(error)) from error


def core_parameters(
    source: Any, config: Mapping[str, Any], without: Collection[str] = ()
) -> RendezvousParameters:
    """Return our parameters for a launcher's, whose names are the same.

    Args:
        source: the launcher's parameters.
        config: what its user gave as configuration.
        without: names in it that are not for us.
    """
    ours = {name: value for name, value in config.items() if name not in without}
    for name in sorted(set(ours) - defaults.parameters()):
        logger.warning("--rdzv-conf %s: rallypoint has no such setting, and goes on without", name)
    return RendezvousParameters(
        backend="core",
        endpoint=source.endpoint,
        run_id=source.run_id,
        min_nodes=source.min_nodes,
        max_nodes=source.max_nodes,
        local_addr=source.local_addr,
        node_rank=ours.pop("node_rank", None),
        local_world_size=getattr(source, "local_world_size", 1),
        config=ours,
    )


def _attempt_to_host(params: RendezvousParameters) -> Callable[[], ServerProcess | None] | None:
    """Return what starts the server where the endpoint can be had; None: this node never hosts.

    The server is a process of its own, so that it outlives the agent that started it.
    `is_host=true` means this machine: of several agents on it any one may host.
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
    """A handler of ours, driven by another launcher's agent.

    Args:
        params: as made by `core_parameters`.
        launcher: its name, for people.
        keys: what its agent calls its keys.
    """

    def __init__(self, params: RendezvousParameters, launcher: str, keys: AgentKeys) -> None:
        attempt = _attempt_to_host(params)
        spawned = attempt() if attempt is not None else None
        if spawned is not None:
            params.endpoint = spawned.endpoint
        params.config["is_host"] = False  # hosted, here or elsewhere, by a process of its own
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
        # An agent that ends by a signal calls nothing: the others are told all the same.
        self._end = weakref.finalize(self, _end_of, handler, os.getpid())

    def join(self) -> tuple[RendezvousInfo, AgentRound]:
        """Ask for the next round; raises our errors."""
        why = ""
        if self._round is not None and not self.waiting():
            why = f"{self._label} asked for a new round: its workers failed"
        run, seconds = self.handler.get_run_id(), self.handler.settings.timeout.join
        lines = JoinProgress(
            _Reports(self.handler),
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
        """Return what `num_nodes_waiting` shall say (see the head of this file)."""
        view = self.handler.view()
        ended = view.closed is not None and not view.closed.finished
        return 1 if ended or view.fenced is not None else self.handler.num_nodes_waiting()

    def shutdown(self) -> bool:
        """End this node's part, and the run where this agent has given up."""
        if not self._end.alive:
            return True
        done = self._round is not None and self._round.finished
        passing = sys.exception()
        gave_up = passing is None or type(passing).__name__ == "ChildFailedError"
        try:
            if gave_up and not done and not self.handler.is_closed():
                self.handler.set_closed(f"{self._label}: {GIVES_UP}")
        except RallypointError as error:
            logger.warning("the others could not be told of the end: %s", error)
            return False
        finally:
            self._end()
        return True


class _Reports:
    """What a join waits for; silent the first time, as members seldom come at once."""

    def __init__(self, handler: DynamicRendezvousHandler) -> None:
        self._handler = handler
        self._asked = False

    def __call__(self) -> Report | None:
        if not self._asked:
            self._asked = True
            return None
        return self._handler.waiting_for()


def _end_of(handler: DynamicRendezvousHandler, pid: int) -> None:
    if os.getpid() == pid:  # a forked child ends nothing of its parent's
        try:
            handler.shutdown()
        except RallypointError as error:
            logger.info("left without a word to the coordinator: %s", error)
