"""Rendezvous: nodes that come, go and die agree on who takes part, and under which rank.

`api` is the contract that users program against, `handler` and `static` implement it, and
`registry` makes a handler by the name of its backend. `coordinator` is the contract between a
handler and the place where the state machine (`rallypoint.core`) runs: a server (`client`), or
every node in turn (`serverless`). The names below are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rallypoint.errors import RendezvousClosedError as RendezvousClosedError
    from rallypoint.errors import RendezvousConnectionError as RendezvousConnectionError
    from rallypoint.errors import RendezvousError as RendezvousError
    from rallypoint.errors import RendezvousGracefulExitError as RendezvousGracefulExitError
    from rallypoint.errors import RendezvousStateError as RendezvousStateError
    from rallypoint.errors import RendezvousTimeoutError as RendezvousTimeoutError
    from rallypoint.net.endpoints import parse_rendezvous_endpoint as parse_rendezvous_endpoint
    from rallypoint.rendezvous.api import RendezvousHandler as RendezvousHandler
    from rallypoint.rendezvous.api import RendezvousHandlerCreator as RendezvousHandlerCreator
    from rallypoint.rendezvous.api import RendezvousInfo as RendezvousInfo
    from rallypoint.rendezvous.api import RendezvousStoreInfo as RendezvousStoreInfo
    from rallypoint.rendezvous.handler import DynamicRendezvousHandler as DynamicRendezvousHandler
    from rallypoint.rendezvous.parameters import RendezvousParameters as RendezvousParameters
    from rallypoint.rendezvous.parameters import RendezvousTimeout as RendezvousTimeout
    from rallypoint.rendezvous.registry import (
        RendezvousHandlerRegistry as RendezvousHandlerRegistry,
    )
    from rallypoint.rendezvous.registry import create_handler as create_handler
    from rallypoint.rendezvous.registry import get_registry as get_registry
    from rallypoint.rendezvous.registry import get_rendezvous_handler as get_rendezvous_handler
    from rallypoint.rendezvous.registry import (
        rendezvous_handler_registry as rendezvous_handler_registry,
    )
    from rallypoint.rendezvous.serverless.backends.contract import (
        MemoryRendezvousBackend as MemoryRendezvousBackend,
    )
    from rallypoint.rendezvous.serverless.backends.contract import (
        RendezvousBackend as RendezvousBackend,
    )
    from rallypoint.rendezvous.serverless.backends.contract import Token as Token
    from rallypoint.rendezvous.serverless.backends.engine import (
        EngineRendezvousBackend as EngineRendezvousBackend,
    )
    from rallypoint.rendezvous.serverless.backends.engine import (
        EtcdRendezvousBackend as EtcdRendezvousBackend,
    )
    from rallypoint.rendezvous.serverless.backends.engine import (
        RedisRendezvousBackend as RedisRendezvousBackend,
    )
    from rallypoint.rendezvous.serverless.backends.store import (
        FileRendezvousBackend as FileRendezvousBackend,
    )
    from rallypoint.rendezvous.serverless.backends.store import (
        StoreRendezvousBackend as StoreRendezvousBackend,
    )
    from rallypoint.rendezvous.settings import RendezvousSettings as RendezvousSettings
    from rallypoint.rendezvous.static import StaticTCPRendezvous as StaticTCPRendezvous

# Listed twice: type checkers follow import statements only, and these must not run (test_init).
_HERE = "rallypoint.rendezvous."
_MODULES = {
    "rallypoint.errors": (
        "RendezvousClosedError RendezvousConnectionError RendezvousError "
        "RendezvousGracefulExitError RendezvousStateError RendezvousTimeoutError"
    ),
    "rallypoint.net.endpoints": "parse_rendezvous_endpoint",
    _HERE + "api": "RendezvousHandler RendezvousHandlerCreator RendezvousInfo RendezvousStoreInfo",
    _HERE + "serverless.backends.contract": "MemoryRendezvousBackend RendezvousBackend Token",
    _HERE + "serverless.backends.engine": (
        "EngineRendezvousBackend EtcdRendezvousBackend RedisRendezvousBackend"
    ),
    _HERE + "serverless.backends.store": "FileRendezvousBackend StoreRendezvousBackend",
    _HERE + "handler": "DynamicRendezvousHandler",
    _HERE + "parameters": "RendezvousParameters RendezvousTimeout",
    _HERE + "registry": (
        "RendezvousHandlerRegistry create_handler get_registry get_rendezvous_handler "
        "rendezvous_handler_registry"
    ),
    _HERE + "settings": "RendezvousSettings",
    _HERE + "static": "StaticTCPRendezvous",
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_WHERE[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
