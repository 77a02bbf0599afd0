"""`StaticTCPRendezvous`: ranks and size are fixed, and one address is enough.

Rank 0 serves the store at the given address, the others connect to it. Each call of
`next_rendezvous` is an attempt: all ranks take part in one `all_gather` under the number of the
attempt, with their address and a free port; the workers meet at rank 0's. The number is kept in
the store and raised when an attempt is complete, so that a restarted rank uses the same one.
"""

import os
import threading
from datetime import timedelta

import msgspec

from rallypoint.core.state import Node
from rallypoint.deadline import Deadline, seconds
from rallypoint.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
    StoreConnectionError,
    StoreError,
    StoreTimeoutError,
)
from rallypoint.net.addresses import local_address, propose_port
from rallypoint.net.endpoints import join_endpoint, parse_rendezvous_endpoint
from rallypoint.net.tls import TLS, read_tls
from rallypoint.net.token_sources import read_token
from rallypoint.rendezvous import defaults
from rallypoint.rendezvous.api import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from rallypoint.rendezvous.parameters import as_int, as_seconds, wrong
from rallypoint.store.api import Store
from rallypoint.store.prefix import PrefixStore
from rallypoint.store.tcp import TCPStore

_ATTEMPT, _CLOSED = "attempt", "closed"
_DEFAULT_RUN_ID = "static"


class StaticTCPRendezvous(RendezvousHandler):
    """A rendezvous of fixed ranks.

    Args:
        params: the parameters, or the address of rank 0 with the arguments that follow.
        master_port: port at which rank 0 serves the store.
        rank: of this node.
        world_size: number of nodes.
        run_id: name of the run.
        timeout: seconds or timedelta for all ranks to join.

    Raises:
        ParameterError: names the parameter, its value and what is allowed.
        RendezvousConnectionError: the address cannot be served, or not be reached in time.
    """

    _local_addr: str | None = None
    _token: bytes = b""
    _tls: TLS | None = None
    _insecure = False

    def __init__(
        self,
        params: RendezvousParameters | str,
        master_port: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        run_id: str = "",
        timeout: float | timedelta | None = None,
    ) -> None:
        if isinstance(params, RendezvousParameters):
            self._read(params)
        else:
            self._host, port = parse_rendezvous_endpoint(params)
            self._port = port if master_port is None else as_int("master_port", master_port, 0)
            self._world_size = as_int("world_size", world_size, 1)
            self._rank = as_int("rank", rank, 0)
            limit = defaults.value("join") if timeout is None else timeout
            self._timeout = as_seconds("timeout", limit)
            self._run_id = run_id or _DEFAULT_RUN_ID
        if self._rank >= self._world_size:
            raise wrong("node_rank", self._rank, f"0 to {self._world_size - 1}")
        self._round = 0
        self._joining = threading.Lock()
        self._is_shut = False
        self._server = self._connect()
        self._store: Store = PrefixStore(f"rallypoint/static/{self._run_id}", self._server)

    def _read(self, params: RendezvousParameters) -> None:
        if not params.endpoint:
            raise wrong("endpoint", params.endpoint, "the HOST:PORT of the node with rank 0")
        self._host, self._port = parse_rendezvous_endpoint(params.endpoint)
        if params.min_nodes != params.max_nodes:
            nodes = f"{params.min_nodes}:{params.max_nodes}"
            raise wrong("nnodes", nodes, "a fixed number of nodes (min_nodes = max_nodes)")
        self._world_size = params.max_nodes
        rank = params.get_as_int("rank") if params.node_rank is None else params.node_rank
        if rank is None:
            raise wrong("node_rank", None, f"0 to {self._world_size - 1}, another for each node")
        self._rank = as_int("node_rank", rank, 0)
        self._timeout = seconds(params.timeout.join)
        self._run_id = params.run_id or _DEFAULT_RUN_ID
        self._local_addr = params.local_addr
        self._token = read_token(params.get("token"), params.get("token_file"))
        self._tls = read_tls(params.config)
        self._insecure = bool(params.get_as_bool("insecure", False))

    def _connect(self) -> TCPStore:
        try:
            return TCPStore(
                self._host,
                self._port,
                is_master=self._rank == 0,
                timeout=self._timeout,
                run=self._run_id,
                token=self._token,
                tls=self._tls,
                insecure=self._insecure,
            )
        except StoreError as error:
            doing = "serving" if self._rank == 0 else "connecting to"
            raise RendezvousConnectionError(
                f"static rendezvous: rank {self._rank}: {doing} {self._where()} failed: {error}"
            ) from error

    # -- joining --------------------------------------------------------------------------

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet all other ranks, within the timeout."""
        deadline = Deadline(self._timeout)
        if not self._joining.acquire(timeout=deadline.remaining()):
            raise RendezvousTimeoutError(
                f"static rendezvous: another thread was joining for {self._timeout:g} s"
            )
        try:
            return self._meet(deadline)
        except StoreTimeoutError as error:
            raise RendezvousTimeoutError(
                f"static rendezvous at {self._where()}, rank {self._rank} of {self._world_size}: "
                f"not all ranks came within {self._timeout:g} s (join_timeout): {error}"
            ) from error
        except StoreConnectionError as error:
            raise RendezvousConnectionError(
                f"static rendezvous: the store of rank 0 at {self._where()} is out of reach: "
                f"{error}"
            ) from error
        except StoreError as error:  # such as two nodes with one rank
            raise RendezvousStateError(
                f"static rendezvous at {self._where()}, rank {self._rank}: {error}"
            ) from error
        finally:
            self._joining.release()

    def _meet(self, deadline: Deadline) -> RendezvousInfo:
        if self.is_closed():
            raise RendezvousClosedError(f"run {self._run_id!r} was closed with set_closed()")
        attempt = self._store.get_nowait(_ATTEMPT)
        number = 1 if attempt is None else int(attempt)
        given = self._store.all_gather(
            f"meet/{number}",
            msgspec.json.encode(self._node()),
            self._rank,
            self._world_size,
            deadline.remaining(),
        )
        # The first rank raises it; for the others nothing is left to do.
        self._store.compare_and_swap(_ATTEMPT, attempt, str(number + 1))
        nodes = [msgspec.json.decode(value, type=Node) for value in given]
        self._round = number
        return RendezvousInfo(
            PrefixStore(f"round/{number}", self._store),
            self._rank,
            self._world_size,
            RendezvousStoreInfo(nodes[0].address, nodes[0].port),
            nodes,
        )

    def _node(self) -> Node:
        address = self._local_addr or self._own_address()
        port = propose_port(address)
        return Node(id=f"rank{self._rank}", address=address, port=port, pid=os.getpid())

    def _own_address(self) -> str:
        # All ranks reach rank 0 at this address already.
        return self._host if self._rank == 0 else local_address(self._host, self._server.port)

    # -- what is known ----------------------------------------------------------------------

    def get_backend(self) -> str:
        """Return "static"."""
        return "static"

    def get_run_id(self) -> str:
        return self._run_id

    @property
    def round(self) -> int:
        """Number of the last complete attempt, 0 before the first."""
        return self._round

    def is_closed(self) -> bool:
        """Return whether some rank has closed the run (one request)."""
        try:
            return self._store.get_nowait(_CLOSED) is not None
        except StoreConnectionError as error:
            raise RendezvousConnectionError(
                f"static rendezvous: the store of rank 0 at {self._where()} is out of reach: "
                f"{error}"
            ) from error

    def set_closed(self) -> None:
        """Refuse further attempts of all ranks."""
        try:
            self._store.set(_CLOSED, b"1")
        except StoreConnectionError as error:
            raise RendezvousConnectionError(
                f"static rendezvous: closing the run at {self._where()} failed: {error}"
            ) from error

    def num_nodes_waiting(self) -> int:
        """Return 0: the ranks are fixed."""
        return 0

    def shutdown(self) -> bool:
        """Close the store; True at rank 0, whose store goes with it."""
        if not self._is_shut:
            self._is_shut = True
            self._server.close()
        return self._rank == 0

    def _where(self) -> str:
        return join_endpoint(self._host, self._port)


def create_handler(params: RendezvousParameters) -> StaticTCPRendezvous:
    """Make the handler of backend "static"."""
    return StaticTCPRendezvous(params)
