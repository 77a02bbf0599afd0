from importlib.metadata import entry_points

from rallypoint.integrations import tensorplay


def test_tensorplay_finds_the_handler_by_name() -> None:
    (found,) = entry_points(group="tp.elastic.handlers", name="rallypoint")
    assert found.load() is tensorplay.create_handler
