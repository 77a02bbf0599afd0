from importlib.metadata import entry_points

from rallypoint.integrations import torchrun


def test_torch_finds_and_registers_the_handler_by_name() -> None:
    (found,) = entry_points(group="torchrun.handlers", name="rallypoint")
    assert found.load()() is torchrun.create_handler
