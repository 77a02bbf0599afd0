import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.server.fakes import Bench
from tests.web.fakes import FakeServer

from rallypoint.core.events import Leave
from rallypoint.core.state import Settings
from rallypoint.net.tokens import Keyring
from rallypoint.web import feed as feed_module
from rallypoint.web.feed import Feed, event

LIMIT_SECONDS = 10.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "REST_SECONDS", 0.001)


def parsed(data: bytes) -> tuple[str, Any]:
    name, body = data.decode().rstrip().split("\n")
    return name.removeprefix("event: "), json.loads(body.removeprefix("data: "))


async def told(events: AsyncIterator[bytes], count: int) -> list[tuple[str, Any]]:
    return [parsed(await asyncio.wait_for(anext(events), LIMIT_SECONDS)) for _ in range(count)]


def test_an_event_is_one_line_of_json() -> None:
    assert event("run", {"a": "x\ny"}) == b'event: run\ndata: {"a":"x\\ny"}\n\n'


def test_viewer_gets_the_run_and_then_its_changes() -> None:
    async def main() -> None:
        server = FakeServer(Bench(Settings(2, 2)))
        server.bench.join("n1")
        server.bench.loop.turn()
        feed = Feed(server.server)
        events = feed.events("run")
        first = await told(events, 3)
        assert [name for name, _ in first] == ["server", "run", "rounds"]
        assert first[1][1]["phase"] == "gathering"
        waiting = asyncio.ensure_future(told(events, 3))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        server.bench.join("n2")
        server.bench.loop.turn()
        then = await waiting
        assert then[1][1]["phase"] == "sealed"
        assert then[1][1]["rounds"][0]["nodes"] == []
        assert len(then[2][1][0]["nodes"]) == 2
        assert feed.viewers == 1
        await events.aclose()  # type: ignore[attr-defined] # it is a generator
        assert feed.viewers == 0
        assert not server.watchers

    asyncio.run(main())


def test_names_are_sent_only_when_a_round_begins_or_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "QUIET_SECONDS", 0.01)

    async def main() -> None:
        server = FakeServer(Bench(Settings(1, 3, last_call_seconds=0)))
        server.bench.join("n1")
        server.bench.loop.advance(1)
        events = Feed(server.server).events("run")
        await told(events, 3)
        server.bench.join("n2")  # waits: the round goes on
        server.bench.loop.turn()
        names = [name for name, _ in await told(events, 3)]
        assert names == ["server", "run", "server"]
        server.bench.ask("n1", 0, Leave("n1"))
        server.bench.loop.turn()
        assert "rounds" in [name for name, _ in await told(events, 3)]

    asyncio.run(main())


def test_viewer_without_a_run_gets_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "QUIET_SECONDS", 0.01)

    async def main() -> None:
        for run in (None, "nope"):
            events = Feed(FakeServer().server).events(run)
            assert [name for name, _ in await told(events, 2)] == ["server", "server"]

    asyncio.run(main())


@pytest.mark.parametrize("why", ["the end", "other tokens"])
def test_viewers_are_closed_when_server_ends_or_tokens_change(why: str) -> None:
    async def main() -> None:
        server = FakeServer()
        feed = Feed(server.server)
        events = feed.events("run")
        await told(events, 1)
        rest = asyncio.ensure_future(told(events, 99))
        await asyncio.sleep(0.01)
        if why == "the end":
            feed.end()
        else:
            server.keyring = Keyring(b"another")
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(rest, LIMIT_SECONDS)

    asyncio.run(main())
