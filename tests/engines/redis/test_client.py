"""Errors of Redis told apart, with a client that fails as it is told."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from redis import exceptions

from rallypoint.deadline import Deadline
from rallypoint.engines.redis import client
from rallypoint.engines.redis.client import RedisClient
from rallypoint.engines.url import parse_engine_url
from rallypoint.errors import AuthenticationError, StoreConnectionError, StoreError, StoreLimitError


@pytest.fixture
def redis_client() -> Iterator[RedisClient]:
    url = "redis://me:hidden@nowhere:1/x?timeout=1"
    redis_client = RedisClient(
        parse_engine_url(url, "redis", 6379, frozenset(("db", "timeout")), {})
    )
    yield redis_client
    redis_client.close()


def failing(*errors: Exception) -> Any:
    left = list(errors)

    def function(_: Any) -> str:
        if left:
            raise left.pop(0)
        return "done"

    return function


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ConnectionError("reset"),
        exceptions.TimeoutError("slow"),
        exceptions.BusyLoadingError("loading"),
        exceptions.ReadOnlyError("a replica now"),
        exceptions.MasterDownError("down"),
    ],
)
def test_transient_errors_are_retried(redis_client: RedisClient, error: Exception) -> None:
    assert redis_client.call(failing(error, error), Deadline(5)) == "done"
    with pytest.raises(StoreConnectionError, match=f"1 tries in 0.0 s; the last one: {error}"):
        redis_client.call(failing(error), Deadline(0))


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (exceptions.AuthenticationError("WRONGPASS"), AuthenticationError, "user 'me'"),
        (exceptions.AuthorizationError("x"), StoreError, "x"),
        (exceptions.NoPermissionError("this user"), AuthenticationError, "PASSWORD_FILE"),
        (exceptions.OutOfMemoryError("OOM"), StoreLimitError, "full .*maxmemory"),
        (exceptions.ResponseError("WRONGTYPE"), StoreError, "WRONGTYPE"),
    ],
)
def test_permanent_errors_fail_at_once(
    redis_client: RedisClient, error: Exception, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text) as caught:
        redis_client.call(failing(error), Deadline(60))
    assert "hidden" not in str(caught.value)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(("kept", "warnings"), [(0, 2), (1, 1)])
def test_volatile_redis_is_reported(
    redis_client: RedisClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kept: int,
    warnings: int,
) -> None:
    monkeypatch.setattr(client, "_NOTED", set())
    monkeypatch.setattr(redis_client.client, "info", lambda _: {"aof_enabled": kept})
    with caplog.at_level(logging.WARNING):
        redis_client.note()
    assert len(caplog.records) == warnings
    assert ("a restart of Redis forgets all runs" in caplog.text) is not bool(kept)


def test_unknown_memory_policy_is_accepted(
    redis_client: RedisClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "_NOTED", set())
    refused = failing(exceptions.NoPermissionError("info"))
    monkeypatch.setattr(redis_client.client, "info", refused)
    with caplog.at_level(logging.INFO):
        redis_client.note()
        redis_client.note()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "hidden" not in caplog.text
