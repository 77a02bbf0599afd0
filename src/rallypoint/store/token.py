"""Where the shared token comes from."""

import os
from pathlib import Path

from rallypoint.errors import ParameterError

TOKEN_VARIABLE = "RALLYPOINT_TOKEN"  # noqa: S105 - the name of a variable


def read_token(token: str | bytes | None = None, token_file: str | None = None) -> bytes:
    """Return the token from the argument, a file or the environment, in that order.

    Args:
        token: the secret itself; "" counts as not given.
        token_file: a file that holds it; else RALLYPOINT_TOKEN_FILE names one.

    Returns b"" when there is none; else RALLYPOINT_TOKEN is the last place looked at.
    Raises ParameterError naming a file that cannot be read or is empty.
    """
    if token:
        return token.encode() if isinstance(token, str) else token
    path = token_file or os.environ.get(f"{TOKEN_VARIABLE}_FILE")
    if not path:
        return os.environ.get(TOKEN_VARIABLE, "").encode()
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise ParameterError(f"token_file={path!r} cannot be read: {error}") from error
    if not secret:
        raise ParameterError(f"token_file={path!r} is empty; put a secret into it")
    return secret
