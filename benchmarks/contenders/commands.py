"""The other end of `processes.Helper`: reads one JSON command per line, writes one answer each."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

_out = os.fdopen(os.dup(1), "wb", buffering=0)
os.dup2(2, 1)  # what libraries print is not an answer


def answer(**values: Any) -> None:
    """Write one answer."""
    _out.write(json.dumps(values).encode() + b"\n")


def serve(known: dict[str, Callable[..., dict[str, Any] | None]]) -> None:
    """Answer commands until the input ends; then exit at once, even if threads are running."""
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer(**(known[command.pop("do")](**command) or {}))
        except Exception as error:
            traceback.print_exc()
            answer(error=f"{type(error).__name__}: {error}"[:500])
    sys.stderr.flush()
    os._exit(0)
