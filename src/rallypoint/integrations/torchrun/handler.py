"""torch's RendezvousHandler over a Rallypoint run (see `integrations.launcher_adapter`)."""

import os
import sys
from typing import Any

from torch.distributed.elastic.rendezvous import api

from rallypoint.integrations.agent_round import AgentKeys
from rallypoint.integrations.launcher_adapter import (
    LauncherAdapter,
    LauncherHandler,
    core_parameters,
    errors_of,
)
from rallypoint.integrations.torchrun.store import RoundStore, WorkersStore
from rallypoint.rendezvous.parameters import RendezvousParameters

KEYS = AgentKeys(
    role_info="torchelastic/role_info/",
    ranks="torchelastic/assigned_ranks/",
    exit_barrier="torchelastic/agent/terminal_state",
    arrivals="/num_members",
)
# torchrun gives `timeout` to every backend, but only static reads it; `join` is ours.
NOT_OURS = ("timeout", "use_agent_store", "rank")


class TorchrunHandler(LauncherHandler, api.RendezvousHandler):  # type: ignore[misc] # not installed there
    """The handler of `torchrun --rdzv-backend rallypoint`.

    Args:
        params: torch's RendezvousParameters; its config takes Rallypoint's names (token,
            last_call, lease, node_rank, slot, ...) and `use_agent_store`.
    """

    def __init__(self, params: Any) -> None:
        ours = core_parameters(params, params.config, without=NOT_OURS)
        shared = RendezvousParameters("core", "", "", config=dict(params.config))
        self._use_agent_store = shared.get_as_bool("use_agent_store")
        super().__init__(api, params.backend, LauncherAdapter(ours, "torchrun", KEYS))
        self._workers_store = WorkersStore()
        if self.use_agent_store:
            self._adapter.handler.propose_port = self._workers_store.propose
        self._store: RoundStore | None = None

    @property
    def use_agent_store(self) -> bool:
        """Whether the first agent runs the workers' TCPStore, and not their rank 0.

        As with c10d, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 turns this off; so does the
        configuration `use_agent_store=false`.
        """
        if self._use_agent_store is not None:
            return self._use_agent_store
        return os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"

    def next_rendezvous(self) -> api.RendezvousInfo:
        """Join the next round, and wait until it is sealed."""
        try:
            with errors_of(api):
                info, agent_round = self._adapter.join()
        except api.RendezvousGracefulExitError:
            # torch's agent then returns None, which torchrun cannot handle (2.13).
            if _is_torchrun():
                raise SystemExit(0) from None
            raise
        self._workers_store.settle(info.rank == 0)
        # Kept, since torch's C++ side holds no reference to the Python part of a store.
        self._store = RoundStore(agent_round)
        return api.RendezvousInfo(self._store, info.rank, info.world_size, self.bootstrap(info))

    def shutdown(self) -> bool:
        """Leave the run (see `LauncherAdapter.shutdown`)."""
        self._workers_store.close()
        return super().shutdown()


def _is_torchrun() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = "torch.distributed.run"
    return name in sys.modules or getattr(spec, "name", "") == name
