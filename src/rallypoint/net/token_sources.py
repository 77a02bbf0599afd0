"""Where tokens come from: an argument, a file, or the environment (what they say: keyring.py).

A file is read again whenever somebody connects, and by a server when it changes. What it holds
is taken only if it can be read and every line of it is a token; otherwise the last that were
good stay, however old the process, so that a token which was taken back does not return.
"""

import logging
import os
from pathlib import Path

from rallypoint.errors import ParameterError
from rallypoint.net.tokens import parse

TOKEN_VARIABLE = "RALLYPOINT_TOKEN"  # noqa: S105 - the name of a variable
FILE_VARIABLE = f"{TOKEN_VARIABLE}_FILE"
SHORT_BYTES = 16  # a secret of fewer may be guessed by whoever has seen a proof
_OTHERS = 0o077
logger = logging.getLogger("rallypoint")


class FileToken(bytes):
    """Tokens that were read from a file, which may say something else later.

    `path` names it; whoever connects anew asks `current`, so that a token can be exchanged
    while nodes run. `last` is what it held when it was last good, `trouble` what is wrong now.
    """

    path: str = ""
    last: bytes = b""
    trouble: str = ""


def read_token(token: str | bytes | None = None, token_file: str | None = None) -> bytes:
    """Return the token from the argument, a file or the environment, in that order.

    Args:
        token: the secret itself, or several lines (see keyring.py); "" counts as not given.
        token_file: a file that holds it; else RALLYPOINT_TOKEN_FILE names one.

    Returns b"" when there is none; else RALLYPOINT_TOKEN is the last place looked at.
    Raises ParameterError naming a file that cannot be read or is empty, or a line of any of
    them that is no token.
    """
    if token_file is not None and not token_file.strip():
        raise ParameterError(f"token_file={token_file!r} names no file; give one, or leave it out")
    if token:
        return _checked(token.encode() if isinstance(token, str) else token, "token")
    path = token_file or os.environ.get(FILE_VARIABLE)
    if not path:
        return _checked(os.environ.get(TOKEN_VARIABLE, "").encode(), TOKEN_VARIABLE)
    return _read(path)


def _checked(secret: bytes, where: str) -> bytes:
    if not parse(secret, where) and secret:
        raise ParameterError(f"{where} is given and holds no token")
    return secret


def _read(path: str) -> FileToken:
    try:
        secret = Path(path).read_bytes()
    except OSError as error:
        raise ParameterError(f"token_file={path!r} cannot be read: {error}") from error
    if not parse(secret, f"token_file={path!r}"):
        raise ParameterError(f"token_file={path!r} is empty; put a secret into it")
    found = FileToken(secret.strip())
    found.path, found.last = path, bytes(found)
    return found


def current(token: bytes) -> bytes:
    """Return what the token's file holds now; what it held last while it is of no use."""
    if not isinstance(token, FileToken):
        return token
    try:
        token.last, token.trouble = _read(token.path).last, ""
    except ParameterError as error:  # being replaced, gone, or mistyped
        if str(error) != token.trouble:
            token.trouble = str(error)
            logger.warning("%s; going on with the tokens that it held before", error)
    return token.last


def weaknesses(token: bytes, exposed: bool) -> list[str]:
    """Return what makes tokens easy to come by, for people.

    Args:
        token: as `read_token` returns it.
        exposed: other machines reach the server.
    """
    found = []
    if isinstance(token, FileToken):
        mode = os.stat(token.path).st_mode & 0o777 if os.path.exists(token.path) else 0
        if mode & _OTHERS:
            found.append(
                f"the token file {token.path} (mode {mode:o}) is open to other users of this "
                f"machine: chmod 600 {token.path}"
            )
    short = sum(len(key.secret) < SHORT_BYTES for key in parse(token) if key.scope != "worker")
    if exposed and short:
        found.append(
            f"{short} of the tokens have fewer than {SHORT_BYTES} characters and can be guessed "
            "by whoever reaches the server: make them with `openssl rand -hex 16`"
        )
    return found


def token_environment(token: bytes) -> dict[str, str]:
    """Return the variables by which a process of ours gets the same token."""
    if isinstance(token, FileToken):
        return {FILE_VARIABLE: os.path.abspath(token.path)}
    return {TOKEN_VARIABLE: token.decode()} if token else {}
