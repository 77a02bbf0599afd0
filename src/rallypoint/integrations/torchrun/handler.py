"""torch's RendezvousHandler over a Rallypoint run (see `integrations.launcher_adapter`)."""

import os
import sys
from typing import Any

from torch.distributed.elastic.rendezvous import api

from rallypoint.integrations.agent_round import AgentKeys
from rallypoint.integrations.launcher_adapter import LauncherAdapter, core_parameters, errors_of
from rallypoint.integrations.torchrun.store import RoundStore, WorkersStore
from rallypoint.rendezvous.parameters import RendezvousParameters

KEYS = AgentKeys(
    role_info="torchelastic/role_info/",
    ranks="torchelastic/assigned_ranks/",
    exit_barrier="torchelastic/agent/terminal_state",
    arrivals="/num_members",
)
# `timeout` is given by torchrun to every backend and read by static alone; `join` is ours.
NOT_OURS = ("timeout", "use_agent_store", "rank")


class TorchrunHandler(api.RendezvousHandler):  # type: ignore[misc] # torch is not installed there
    """What `torchrun --rdzv-backend rallypoint` drives.

    Args:
        params: torch's RendezvousParameters; its config takes our names (token, last_call,
            lease, node_rank, slot, ...) and `use_agent_store`.
    """

    def __init__(self, params: Any) -> None:
        self._backend = params.backend
        ours = core_parameters(params, params.config, without=NOT_OURS)
        shared = RendezvousParameters("core", "", "", config=dict(params.config))
        self._use_agent_store = shared.get_as_bool("use_agent_store")
        self._adapter = LauncherAdapter(ours, "torchrun", KEYS)
        self._workers_store = WorkersStore()
        if self.use_agent_store:
            self._adapter.handler.propose_port = self._workers_store.propose
        self._store: RoundStore | None = None

    def get_backend(self) -> str:
        """Return the name that this handler was asked for under."""
        return str(self._backend)

    @property
    def use_agent_store(self) -> bool:
        """Whether the first agent hosts the workers' TCPStore, or their rank 0 does.

        As with c10d, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 says no; so does the
        configuration `use_agent_store=false`.
        """
        if self._use_agent_store is not None:
            return self._use_agent_store
        return os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"

    def next_rendezvous(self) -> api.RendezvousInfo:
        """Join, or join again, and block until the round is agreed."""
        try:
            with errors_of(api):
                info, agent_round = self._adapter.join()
        except api.RendezvousGracefulExitError:
            # torch's agent returns None then, over which its launcher stumbles (2.13).
            if _is_torchrun():
                raise SystemExit(0) from None
            raise
        self._workers_store.settle(info.rank == 0)
        # Kept: torch's C++ side holds no reference to the Python half of a store.
        self._store = RoundStore(agent_round)
        place = info.bootstrap_store_info
        master = None
        if place is not None:
            master = api.RendezvousStoreInfo(place.master_addr, place.master_port)
        return api.RendezvousInfo(self._store, info.rank, info.world_size, master)

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
        self._workers_store.close()
        return self._adapter.shutdown()


def _is_torchrun() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = "torch.distributed.run"
    return name in sys.modules or getattr(spec, "name", "") == name
