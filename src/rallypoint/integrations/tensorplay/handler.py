"""TensorPlay's RendezvousHandler over a Rallypoint run (see `integrations.launcher_adapter`)."""

from typing import Any

from tensorplay.distributed.elastic.rendezvous import api

from rallypoint.integrations.agent_round import AgentKeys
from rallypoint.integrations.launcher_adapter import LauncherAdapter, core_parameters, errors_of
from rallypoint.integrations.tensorplay.store import RoundStore

KEYS = AgentKeys(
    role_info="tp_elastic/role_info/",
    ranks="tp_elastic/assigned_ranks/",
    exit_barrier="tp_elastic/agent/terminal_state",
    arrivals="ARRIVED",
)
NOT_OURS = ("min_nodes", "max_nodes", "rank")  # given as attributes of the parameters too


class TensorPlayHandler(api.RendezvousHandler):  # type: ignore[misc] # it is not installed there
    """What `python -m tensorplay.distributed.run --rdzv-backend rallypoint` drives.

    Args:
        params: TensorPlay's RendezvousParameters; its config takes our names.
    """

    def __init__(self, params: Any) -> None:
        self._backend = params.backend
        ours = core_parameters(params, params.config, without=NOT_OURS)
        self._adapter = LauncherAdapter(ours, "TensorPlay", KEYS)

    def get_backend(self) -> str:
        """Return the name that this handler was asked for under."""
        return str(self._backend)

    @property
    def use_agent_store(self) -> bool:
        """Return False: rank 0 of the workers hosts their store, at the round's address."""
        return False

    def next_rendezvous(self) -> api.RendezvousInfo:
        """Join, or join again, and block until the round is agreed."""
        with errors_of(api):
            info, agent_round = self._adapter.join()
        place = info.bootstrap_store_info
        master = None
        if place is not None:
            master = api.RendezvousStoreInfo(place.master_addr, place.master_port)
        return api.RendezvousInfo(RoundStore(agent_round), info.rank, info.world_size, master)

    def is_closed(self) -> bool:
        """Return whether the run is known to be closed; no request."""
        with errors_of(api):
            return self._adapter.handler.is_closed()

    def set_closed(self) -> None:
        """Close the run for everyone."""
        with errors_of(api):
            self._adapter.handler.set_closed()

    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait; at least 1 when this node must ask again. No request."""
        with errors_of(api):
            return self._adapter.waiting()

    def get_run_id(self) -> str:
        """Return the name of the run."""
        return self._adapter.handler.get_run_id()

    def shutdown(self) -> bool:
        """End this node's part (see `LauncherAdapter.shutdown`)."""
        return self._adapter.shutdown()
