"""Rallypoint: nodes that come, go and die agree on who takes part in a distributed job.

Every public name is imported when it is first used, so `import rallypoint` is cheap.
`rallypoint.worker` is the module for training scripts.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rallypoint.hosting import in_process
from rallypoint.version import __version__ as __version__

if TYPE_CHECKING:
    from rallypoint import worker as worker
    from rallypoint.engines.etcd.engine import EtcdStore as EtcdStore
    from rallypoint.engines.redis.engine import RedisStore as RedisStore
    from rallypoint.errors import AuthenticationError as AuthenticationError
    from rallypoint.errors import ParameterError as ParameterError
    from rallypoint.errors import RallypointError as RallypointError
    from rallypoint.errors import StoreConnectionError as StoreConnectionError
    from rallypoint.errors import StoreError as StoreError
    from rallypoint.errors import StoreLimitError as StoreLimitError
    from rallypoint.errors import StoreTimeoutError as StoreTimeoutError
    from rallypoint.errors import StoreValueError as StoreValueError
    from rallypoint.rendezvous import DynamicRendezvousHandler as DynamicRendezvousHandler
    from rallypoint.rendezvous import FileRendezvousBackend as FileRendezvousBackend
    from rallypoint.rendezvous import MemoryRendezvousBackend as MemoryRendezvousBackend
    from rallypoint.rendezvous import RendezvousBackend as RendezvousBackend
    from rallypoint.rendezvous import RendezvousClosedError as RendezvousClosedError
    from rallypoint.rendezvous import RendezvousConnectionError as RendezvousConnectionError
    from rallypoint.rendezvous import RendezvousError as RendezvousError
    from rallypoint.rendezvous import RendezvousGracefulExitError as RendezvousGracefulExitError
    from rallypoint.rendezvous import RendezvousHandler as RendezvousHandler
    from rallypoint.rendezvous import RendezvousHandlerCreator as RendezvousHandlerCreator
    from rallypoint.rendezvous import RendezvousHandlerRegistry as RendezvousHandlerRegistry
    from rallypoint.rendezvous import RendezvousInfo as RendezvousInfo
    from rallypoint.rendezvous import RendezvousParameters as RendezvousParameters
    from rallypoint.rendezvous import RendezvousSettings as RendezvousSettings
    from rallypoint.rendezvous import RendezvousStateError as RendezvousStateError
    from rallypoint.rendezvous import RendezvousStoreInfo as RendezvousStoreInfo
    from rallypoint.rendezvous import RendezvousTimeout as RendezvousTimeout
    from rallypoint.rendezvous import RendezvousTimeoutError as RendezvousTimeoutError
    from rallypoint.rendezvous import StaticTCPRendezvous as StaticTCPRendezvous
    from rallypoint.rendezvous import StoreRendezvousBackend as StoreRendezvousBackend
    from rallypoint.rendezvous import create_handler as create_handler
    from rallypoint.rendezvous import get_registry as get_registry
    from rallypoint.rendezvous import get_rendezvous_handler as get_rendezvous_handler
    from rallypoint.rendezvous import parse_rendezvous_endpoint as parse_rendezvous_endpoint
    from rallypoint.rendezvous import rendezvous_handler_registry as rendezvous_handler_registry
    from rallypoint.store.api import Store as Store
    from rallypoint.store.file import FileStore as FileStore
    from rallypoint.store.memory import HashStore as HashStore
    from rallypoint.store.memory import MemoryStore as MemoryStore
    from rallypoint.store.prefix import PrefixStore as PrefixStore
    from rallypoint.store.tcp import TCPStore as TCPStore

# Listed twice: type checkers follow import statements only, and these must not run (test_init).
_MODULES = {
    "rallypoint.errors": (
        "AuthenticationError ParameterError RallypointError StoreConnectionError StoreError "
        "StoreLimitError StoreTimeoutError StoreValueError"
    ),
    "rallypoint.rendezvous": (
        "DynamicRendezvousHandler FileRendezvousBackend MemoryRendezvousBackend "
        "RendezvousBackend RendezvousClosedError RendezvousConnectionError RendezvousError "
        "RendezvousGracefulExitError RendezvousHandler RendezvousHandlerCreator "
        "RendezvousHandlerRegistry RendezvousInfo RendezvousParameters RendezvousSettings "
        "RendezvousStateError RendezvousStoreInfo RendezvousTimeout RendezvousTimeoutError "
        "StaticTCPRendezvous StoreRendezvousBackend create_handler get_registry "
        "get_rendezvous_handler parse_rendezvous_endpoint rendezvous_handler_registry"
    ),
    "rallypoint.store.api": "Store",
    "rallypoint.engines.etcd.engine": "EtcdStore",
    "rallypoint.store.file": "FileStore",
    "rallypoint.store.memory": "HashStore MemoryStore",
    "rallypoint.store.prefix": "PrefixStore",
    "rallypoint.engines.redis.engine": "RedisStore",
    "rallypoint.store.tcp": "TCPStore",
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names.split()}
_OF_EXTRAS = ("EtcdStore", "RedisStore")  # left out of `import *`, which works without the extras
__all__ = [name for name in _WHERE if name not in _OF_EXTRAS]


def _start_server(*arguments: Any) -> in_process.HostedServer:
    embedded = import_module("rallypoint.server.embedded")
    server: in_process.HostedServer = embedded.start(*arguments)
    return server


in_process.provide(_start_server)  # the one place that gives a lower layer a higher one


def __getattr__(name: str) -> Any:
    if name == "worker":
        return import_module("rallypoint.worker")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_WHERE[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE, "worker"})
