"""Backend name -> creator of handlers.

A name is looked up among the registered ones (the built-ins are registered), then among the entry
points of installed packages (group `rallypoint.handlers`), of which only the named one is loaded.
A plug-in that cannot be loaded is an error of the call that names it.
"""

import threading
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from rallypoint.errors import ParameterError, RendezvousStateError
from rallypoint.rendezvous.api import (
    RendezvousHandler,
    RendezvousHandlerCreator,
    RendezvousParameters,
)
from rallypoint.rendezvous.parameters import is_text, wrong

if TYPE_CHECKING:
    from rallypoint.engines.store import EngineStore
    from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend
    from rallypoint.rendezvous.settings import RendezvousSettings
    from rallypoint.store.api import Store

ENTRY_POINT_GROUP = "rallypoint.handlers"
EXTRAS = {"etcd": "rallypoint[etcd]", "redis": "rallypoint[redis]"}
_FOREIGN = {"c10d": "core", "p10d": "core", "etcd-v2": "etcd"}


def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


class RendezvousHandlerRegistry:
    """Creators by backend name.

    Args:
        plugins: returns the entry points by name; tests give their own.
    """

    def __init__(self, plugins: Callable[[], dict[str, EntryPoint]] = _installed) -> None:
        self._lock = threading.Lock()
        self._creators: dict[str, RendezvousHandlerCreator] = {}
        self._plugins = plugins

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Register a creator; to register the same one again changes nothing.

        Raises:
            ParameterError: the name is empty, or taken by another creator.
        """
        if not is_text(backend):
            raise wrong("backend", backend, "a name that is not empty")
        with self._lock:
            present = self._creators.setdefault(backend, creator)
        if present is not creator and present != creator:
            raise ParameterError(
                f"backend={backend!r}: cannot be registered with {creator!r}, it is registered "
                f"with {present!r}; allowed is another name"
            )

    def names(self) -> list[str]:
        """Return all known names, sorted; loads no plug-in."""
        with self._lock:
            return sorted({*self._creators, *self._plugins()})

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Return a new handler of the backend that `params` name.

        Raises:
            ParameterError: the name is unknown, or its plug-in cannot be loaded.
            RendezvousStateError: the creator made a handler of another backend.
        """
        handler = self._creator(params.backend)(params)
        if handler.get_backend() != params.backend:
            made = handler.get_backend()
            handler.shutdown()
            raise RendezvousStateError(
                f"backend={params.backend!r}: its creator made a handler of backend {made!r}; "
                "get_backend() must return the name it was registered under"
            )
        return handler

    def _creator(self, backend: str) -> RendezvousHandlerCreator:
        with self._lock:
            creator = self._creators.get(backend)
        if creator is not None:
            return creator
        plugin = self._plugins().get(backend)
        if plugin is None:
            raise self._unknown(backend)
        try:
            loaded: RendezvousHandlerCreator = plugin.load()
        except Exception as error:  # a plug-in may fail in any way at all
            raise ParameterError(
                f"backend={backend!r}: its plug-in {plugin.value!r} (entry point group "
                f"{ENTRY_POINT_GROUP}) failed to load: {type(error).__name__}: {error}"
            ) from error
        if not callable(loaded):
            raise ParameterError(
                f"backend={backend!r}: its plug-in {plugin.value!r} is no function: {loaded!r}"
            )
        self.register(backend, loaded)
        return loaded

    def _unknown(self, backend: str) -> ParameterError:
        if backend in EXTRAS:
            return ParameterError(
                f"backend={backend!r}: not installed; it comes with the extra {EXTRAS[backend]} "
                f"(pip install '{EXTRAS[backend]}'); installed are {', '.join(self.names())}"
            )
        ours = _FOREIGN.get(backend)
        hint = f"; what others call {backend!r} is {ours!r} here" if ours else ""
        return ParameterError(
            f"backend={backend!r}: unknown{hint}; allowed are {', '.join(self.names())}, and "
            f"what is registered with register() or the entry point group {ENTRY_POINT_GROUP}"
        )


# Built-ins are imported when they are used: a worker that uses none should not pay for them.
def _core(params: RendezvousParameters) -> RendezvousHandler:
    from rallypoint.rendezvous.client import coordinator

    return coordinator.create_handler(params)


def _static(params: RendezvousParameters) -> RendezvousHandler:
    from rallypoint.rendezvous import static

    return static.create_handler(params)


def _file(params: RendezvousParameters) -> RendezvousHandler:
    """`endpoint` (or `path`, `store_path`) is the path of a shared file, or its file:// URL."""
    from rallypoint.rendezvous.serverless.backends.store import FileRendezvousBackend
    from rallypoint.rendezvous.settings import RendezvousSettings
    from rallypoint.store.file import FileStore

    path = params.endpoint or params.get("path") or params.get("store_path") or ""
    path = str(path).removeprefix("file://")
    if not path:
        raise ParameterError(
            f"endpoint={params.endpoint!r}: backend 'file' needs a path; allowed is a file in a "
            "directory that all nodes share, such as /shared/job.rallypoint"
        )
    settings = RendezvousSettings.from_params(params)
    store = FileStore(path)
    return _serverless(params, settings, FileRendezvousBackend(store, settings.run_id), store)


def _engine(params: RendezvousParameters) -> RendezvousHandler:
    """`endpoint` is `host:port`, several with commas, or a whole URL."""
    from rallypoint.engines.url import engine_url, open_engine_store
    from rallypoint.rendezvous.serverless.backends.engine import EngineRendezvousBackend

    store = open_engine_store(engine_url(params.backend, params.endpoint))
    return create_engine_handler(params, EngineRendezvousBackend, store)


def create_engine_handler(
    params: RendezvousParameters,
    backend: Callable[[Any, str], "RendezvousBackend"],
    store: "EngineStore",
) -> RendezvousHandler:
    """Make a handler whose run is kept in a database; for plug-ins, too.

    Args:
        params: what the caller asks for.
        backend: makes the backend, given an engine and a run id.
        store: on that engine; the handler closes it at `shutdown`.

    Raises:
        ParameterError: a parameter is wrong.
    """
    from rallypoint.rendezvous.settings import RendezvousSettings

    settings = RendezvousSettings.from_params(params)
    return _serverless(params, settings, backend(store.engine, settings.run_id), store)


def _serverless(
    params: RendezvousParameters,
    settings: "RendezvousSettings",
    backend: "RendezvousBackend",
    store: "Store",
) -> RendezvousHandler:
    from rallypoint.rendezvous.handler import DynamicRendezvousHandler
    from rallypoint.rendezvous.serverless.coordinator import ServerlessCoordinator

    coordinator = ServerlessCoordinator(backend, store, settings, owns_store=True)
    return DynamicRendezvousHandler.from_coordinator(coordinator, settings, params, backend.name)


_BUILTINS: dict[str, RendezvousHandlerCreator] = {
    "core": _core,
    "static": _static,
    "file": _file,
    "etcd": _engine,
    "redis": _engine,
}


def register_builtins(registry: RendezvousHandlerRegistry) -> RendezvousHandlerRegistry:
    """Register the backends of this package; returns the registry."""
    for backend, creator in _BUILTINS.items():
        registry.register(backend, creator)
    return registry


rendezvous_handler_registry = register_builtins(RendezvousHandlerRegistry())


def get_registry() -> RendezvousHandlerRegistry:
    """Return the registry of this process."""
    return rendezvous_handler_registry


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Return a new handler of the backend that `params` name; raises as `create_handler`."""
    return rendezvous_handler_registry.create_handler(params)


create_handler = get_rendezvous_handler
