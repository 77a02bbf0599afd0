from tests.testing.simulator.test_world import a_hosted_world

from rallypoint.core.events import Close
from rallypoint.core.state import Closed


def test_an_order_reaches_the_run_through_a_client_that_takes_no_part() -> None:
    world = a_hosted_world()
    with world.watched():
        world.start()
        world.clockwork.run_until(2.0)
        world.order(Close("a user", "enough"))
        world.clockwork.run_until(6.0)
    state = world.state()
    assert state is not None
    assert isinstance(state.phase, Closed)
    assert world.live() == []
