"""Where tokens come from: an argument, a file, or the environment (what they say: keyring.py)."""

import os
from pathlib import Path

from rallypoint.errors import ParameterError

TOKEN_VARIABLE = "RALLYPOINT_TOKEN"  # noqa: S105 - the name of a variable
FILE_VARIABLE = f"{TOKEN_VARIABLE}_FILE"


class FileToken(bytes):
    """Tokens that were read from a file, which may say something else later.

    `path` names it; whoever connects anew asks `current`, so that a token can be exchanged
    while nodes run.
    """

    path: str = ""


def read_token(token: str | bytes | None = None, token_file: str | None = None) -> bytes:
    """Return the token from the argument, a file or the environment, in that order.

    Args:
        token: the secret itself, or several lines (see keyring.py); "" counts as not given.
        token_file: a file that holds it; else RALLYPOINT_TOKEN_FILE names one.

    Returns b"" when there is none; else RALLYPOINT_TOKEN is the last place looked at.
    Raises ParameterError naming a file that cannot be read or is empty.
    """
    if token:
        return token.encode() if isinstance(token, str) else token
    path = token_file or os.environ.get(FILE_VARIABLE)
    if not path:
        return os.environ.get(TOKEN_VARIABLE, "").encode()
    return _read(path)


def _read(path: str) -> FileToken:
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise ParameterError(f"token_file={path!r} cannot be read: {error}") from error
    if not secret:
        raise ParameterError(f"token_file={path!r} is empty; put a secret into it")
    found = FileToken(secret)
    found.path = path
    return found


def current(token: bytes) -> bytes:
    """Return what the token's file holds now; the same if it has none, or cannot be read now."""
    if not isinstance(token, FileToken):
        return token
    try:
        return _read(token.path)
    except ParameterError:
        return token  # being replaced, or gone: what was read is still the best guess


def token_environment(token: bytes) -> dict[str, str]:
    """Return the variables by which a process of ours gets the same token."""
    if isinstance(token, FileToken):
        return {FILE_VARIABLE: os.path.abspath(token.path)}
    return {TOKEN_VARIABLE: token.decode()} if token else {}
