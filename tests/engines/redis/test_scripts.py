"""The scripts are told by their own server what is wrong with them; here: how they are called."""

import re

from rallypoint.engines.redis.scripts import COMMIT, RENEW


def test_scripts_take_keys_as_arguments_only() -> None:
    """A key that is not in KEYS would be on another shard of a cluster."""
    for script in (COMMIT, RENEW):
        for key in re.findall(r"redis\.call\('[A-Z]+',\s*([^,)]+)", script):
            assert key.startswith("KEYS["), key


def test_checks_come_before_the_first_write() -> None:
    checks, writes = COMMIT.split("local now = redis.call('TIME')")
    assert not re.search(r"'(SET|HSET|DEL|ZADD|PUBLISH)'", checks)
    assert "return found" in checks
    assert "return found" not in writes
