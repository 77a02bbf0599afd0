from importlib.metadata import entry_points

from rallypoint.integrations import torchrun


def test_torch_finds_it_under_its_name_and_registers_what_it_returns() -> None:
    (found,) = entry_points(group="torchrun.handlers", name="rallypoint")
    assert found.load()() is torchrun.create_handler
