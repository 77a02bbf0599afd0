"""requirements.lock: the tested versions, exactly, without a package index."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = (ROOT / "requirements.lock").read_text("utf-8").splitlines()


def test_lock_file_pins_versions_without_urls() -> None:
    assert [line for line in LOCK if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line)] == []
    assert sorted(LOCK) == LOCK


def test_lock_file_has_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *(d for e in ("etcd", "otel", "redis", "tls", "web") for d in extras[e]),
    ]
    names = {re.split(r"[^A-Za-z0-9_-]", text)[0].lower().replace("_", "-") for text in wanted}
    assert names <= {line.split("==")[0] for line in LOCK}
