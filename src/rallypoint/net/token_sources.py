"""The sources of tokens: an argument, a file, or the environment (tokens.py has their meaning).

A client reads the file again for each connection, a server when it changes. Its new content
counts only if every line is a token; until then the last valid tokens stay in use, however old
the process, so that a revoked token does not return.
"""

import logging
import os
from pathlib import Path

from rallypoint.errors import ParameterError
from rallypoint.net.tokens import parse

TOKEN_VARIABLE = "RALLYPOINT_TOKEN"  # noqa: S105 - the name of a variable
FILE_VARIABLE = f"{TOKEN_VARIABLE}_FILE"
SHORT_BYTES = 16  # a shorter secret can be guessed from a proof
_OTHERS = 0o077
logger = logging.getLogger("rallypoint")


class FileToken(bytes):
    """Tokens of a file, which may change later.

    `path` is the file. Each new connection calls `current`, so that a token can be replaced while
    nodes run. `last` is its last valid content, `trouble` the present error.
    """

    path: str = ""
    last: bytes = b""
    trouble: str = ""


def read_token(token: str | bytes | None = None, token_file: str | None = None) -> bytes:
    """Return the token from the argument, a file or the environment, in that order.

    Args:
        token: the secret, or several lines (see tokens.py); "" counts as not given.
        token_file: a file with tokens; by default RALLYPOINT_TOKEN_FILE. Without a file,
            RALLYPOINT_TOKEN has the token.

    Returns b"" without a token. Raises ParameterError for a file that is unreadable or empty,
    and for an invalid line.
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
    """Return the tokens of the token's file; while that is unusable, its last valid ones."""
    if not isinstance(token, FileToken):
        return token
    try:
        token.last, token.trouble = _read(token.path).last, ""
    except ParameterError as error:  # being replaced, missing or mistyped
        if str(error) != token.trouble:
            token.trouble = str(error)
            logger.warning("%s; going on with the tokens that it held before", error)
    return token.last


def weaknesses(token: bytes, exposed: bool) -> list[str]:
    """Return what makes tokens easy to read or guess, for people.

    Args:
        token: as `read_token` returns it.
        exposed: whether other machines reach the server.
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
        have = "has" if short == 1 else "have"
        found.append(
            f"{short} of the tokens {have} fewer than {SHORT_BYTES} characters and can be guessed "
            "by whoever reaches the server: make them with `openssl rand -hex 16`"
        )
    return found


def token_environment(token: bytes) -> dict[str, str]:
    """Return the environment variables with which a child process has the same token."""
    if isinstance(token, FileToken):
        return {FILE_VARIABLE: os.path.abspath(token.path)}
    return {TOKEN_VARIABLE: token.decode()} if token else {}
