"""The registry: names, plug-ins, and errors of whoever asks for what is not there."""

from importlib.metadata import EntryPoint

import pytest
from tests.rendezvous.test_api import Handler

from rallypoint.errors import ParameterError, RendezvousStateError
from rallypoint.rendezvous import registry as module
from rallypoint.rendezvous.api import RendezvousHandler
from rallypoint.rendezvous.parameters import RendezvousParameters
from rallypoint.rendezvous.registry import RendezvousHandlerRegistry


def params(backend: str) -> RendezvousParameters:
    return RendezvousParameters(backend, "h:1", "run")


def create(_: RendezvousParameters) -> RendezvousHandler:
    return Handler()


def plugin(name: str, value: str) -> dict[str, EntryPoint]:
    return {name: EntryPoint(name, value, module.ENTRY_POINT_GROUP)}


def test_registers_and_creates() -> None:
    registry = RendezvousHandlerRegistry(dict)
    registry.register("x", create)
    registry.register("x", create)
    assert isinstance(registry.create_handler(params("x")), Handler)
    assert registry.names() == ["x"]


def test_used_name_is_refused() -> None:
    registry = RendezvousHandlerRegistry(dict)
    registry.register("x", create)
    with pytest.raises(ParameterError, match="backend='x'"):
        registry.register("x", lambda _: Handler())
    with pytest.raises(ParameterError, match="backend=''"):
        registry.register("", create)


def test_handler_of_another_backend_is_refused() -> None:
    registry = RendezvousHandlerRegistry(dict)
    registry.register("y", create)
    with pytest.raises(RendezvousStateError, match="'x'"):
        registry.create_handler(params("y"))


def test_unknown_name_error_lists_the_known_ones() -> None:
    registry = RendezvousHandlerRegistry(lambda: plugin("z", "nothing:here"))
    registry.register("x", create)
    with pytest.raises(ParameterError, match=r"'nonsense': unknown; allowed are x, z") as caught:
        registry.create_handler(params("nonsense"))
    assert module.ENTRY_POINT_GROUP in str(caught.value)


def test_foreign_names_get_a_hint() -> None:
    with pytest.raises(ParameterError, match="'core' here"):
        module.create_handler(params("c10d"))


@pytest.mark.parametrize("backend", ["etcd", "redis"])
def test_missing_extra_is_named(backend: str) -> None:
    registry = RendezvousHandlerRegistry(dict)
    with pytest.raises(ParameterError, match=rf"rallypoint\[{backend}\]"):
        registry.create_handler(params(backend))


def test_plugin_is_loaded_on_demand() -> None:
    registry = RendezvousHandlerRegistry(
        lambda: plugin("x", "tests.rendezvous.test_registry:create")
    )
    assert registry.create_handler(params("x")).get_backend() == "x"


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("no_such_module_anywhere:create", "ModuleNotFoundError"),
        ("math:nothing", "AttributeError"),
        ("math:pi", "is no function"),
    ],
)
def test_broken_plugin_affects_only_its_users(value: str, what: str) -> None:
    registry = RendezvousHandlerRegistry(lambda: plugin("bad", value))
    registry.register("x", create)
    assert registry.create_handler(params("x")).get_backend() == "x"
    with pytest.raises(ParameterError, match=what) as caught:
        registry.create_handler(params("bad"))
    assert "'bad'" in str(caught.value)
    assert value in str(caught.value)


def test_builtins() -> None:
    assert {"core", "static", "file"} <= set(module.get_registry().names())
    assert module.get_registry() is module.rendezvous_handler_registry
    assert module.create_handler is module.get_rendezvous_handler
    with pytest.raises(ParameterError, match="backend 'file' needs a path"):
        module.get_rendezvous_handler(RendezvousParameters("file", "", "run"))
