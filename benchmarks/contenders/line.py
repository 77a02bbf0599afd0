"""The other end of `processes.Helper`: a command a line in, an answer a line out."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

_out = os.fdopen(os.dup(1), "wb", buffering=0)
os.dup2(2, 1)  # what libraries print must not be taken for an answer


def answer(**values: Any) -> None:
    """Write one answer."""
    _out.write(json.dumps(values).encode() + b"\n")


def serve(commands: dict[str, Callable[..., dict[str, Any] | None]]) -> None:
    """Answer commands until the input ends; then leave at once, whatever threads there are."""
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer(**(commands[command.pop("do")](**command) or {}))
        except Exception as error:
            traceback.print_exc()
            answer(error=f"{type(error).__name__}: {error}"[:500])
    sys.stderr.flush()
    os._exit(0)
