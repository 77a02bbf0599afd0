"""The state of runs on a Redis or Valkey server (`rallypoint[redis]`).

What an acknowledged write means there: this server has it in memory. Whether it survives
the server depends on how that is set up, and on luck (docs/engines.md).
"""

from rallypoint.engines.redis.engine import RedisEngine, RedisStore
from rallypoint.rendezvous.api import RendezvousHandler, RendezvousParameters
from rallypoint.rendezvous.serverless.backends.engine import EngineRendezvousBackend
from rallypoint.rendezvous.serverless.coordinator import create_engine_handler


class RedisRendezvousBackend(EngineRendezvousBackend):
    """A run's state on a Redis or Valkey server.

    Args:
        where: the server's URL (see `RedisEngine`), or an engine that is there already.
        run_id: names the run.
    """

    def __init__(self, where: str | RedisEngine, run_id: str) -> None:
        super().__init__(RedisEngine(where) if isinstance(where, str) else where, run_id)


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make the handler of backend "redis": `endpoint` is `host:6379`, or a whole URL.

    Raises:
        ParameterError: the endpoint is wrong, or the extra is not installed.
    """
    store = RedisStore(params.endpoint)
    return create_engine_handler(params, RedisRendezvousBackend, store)
