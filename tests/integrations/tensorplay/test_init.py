from importlib.metadata import entry_points

from rallypoint.integrations import tensorplay


def test_tensorplay_would_find_it_under_its_name() -> None:
    (found,) = entry_points(group="tp.elastic.handlers", name="rallypoint")
    assert found.load() is tensorplay.create_handler
