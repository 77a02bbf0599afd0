"""The scripts are told by their own server what is wrong with them; here: how they are called."""

import re

from rallypoint.engines.redis.scripts import COMMIT, RENEW


def test_scripts_name_their_keys_by_the_table_only() -> None:
    """A key that is not in KEYS would be on another shard of a cluster."""
    for script in (COMMIT, RENEW):
        for key in re.findall(r"redis\.call\('[A-Z]+',\s*([^,)]+)", script):
            assert key.startswith("KEYS["), key


def test_nothing_is_written_before_everything_is_checked() -> None:
    checks, writes = COMMIT.split("local now = redis.call('TIME')")
    assert not re.search(r"'(SET|HSET|DEL|ZADD|PUBLISH)'", checks)
    assert "return found" in checks
    assert "return found" not in writes
