"""The state of runs on an etcd cluster (`rallypoint[etcd]`).

What an acknowledged write means there: a majority of the members has it on disk. The token
is etcd's modification revision.
"""

from rallypoint.engines.etcd.engine import EtcdEngine, EtcdStore
from rallypoint.rendezvous.api import RendezvousHandler, RendezvousParameters
from rallypoint.rendezvous.serverless.backends.engine import EngineRendezvousBackend
from rallypoint.rendezvous.serverless.coordinator import create_engine_handler


class EtcdRendezvousBackend(EngineRendezvousBackend):
    """A run's state on an etcd cluster.

    Args:
        where: the cluster's URL (see `EtcdEngine`), or an engine that is there already.
        run_id: names the run.
    """

    def __init__(self, where: str | EtcdEngine, run_id: str) -> None:
        super().__init__(EtcdEngine(where) if isinstance(where, str) else where, run_id)


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make the handler of backend "etcd": `endpoint` is `h1:2379,h2:2379`, or a whole URL.

    Raises:
        ParameterError: the endpoint is wrong, or the extra is not installed.
    """
    store = EtcdStore(params.endpoint)
    return create_engine_handler(params, EtcdRendezvousBackend, store)
