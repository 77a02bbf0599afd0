"""Tokens and their rights: lines of text, their ids, and what they allow. PURE.

A token file (or RALLYPOINT_TOKEN) holds one token a line, so that several are valid while one
replaces another. A line is a secret, or a scope and a secret:

    SECRET              everything, as `admin`
    admin SECRET        everything
    all SECRET          take part in any run and use its store; not close runs or exclude nodes
    run:ID SECRET       the same for one run (percent-encode an id with spaces)
    read SECRET         read the state of any run; change nothing
    worker:KEY SECRET   one run's store only: the agent makes it for its workers

Any other line is an error, since a mistyped scope would otherwise be a secret with all rights. A
secret with spaces needs its scope.

A client names the token that it will prove by its *key id*, a hash that reveals nothing of a
random secret; the server looks that up, and both sides prove the token (`protocol.proof`). A
worker's token is derived from the agent's and the run id, so a server that knows the agent's
needs to keep nothing: `worker:KEY` names the token from which it is derived.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import quote, unquote_to_bytes

from rallypoint.errors import ParameterError

KEY_ID_BYTES = 8
_LINE = re.compile(rb"(admin|all|read|run:\S+|worker:[0-9a-f]{16})[ \t]+(\S.*)")
_SCOPE = re.compile(rb"admin|all|read|(?:run|worker):\S*")


@dataclass(frozen=True)
class Rights:
    """What a connection may do.

    Args:
        who: the token's key id, for the audit log; "" without a token.
        run: the only accessible run; None for any.
        join: take part in rendezvous.
        store: use the run's store.
        admin: close runs and exclude nodes.
    """

    who: str = ""
    run: str | None = None
    join: bool = True
    store: bool = True
    admin: bool = True

    def reaches(self, run: str) -> bool:
        """Return whether a run is accessible."""
        return self.run is None or self.run == run


EVERYTHING = Rights()


@dataclass(frozen=True)
class Key:
    """One token.

    Args:
        secret: never shown or sent.
        scope: admin, all, run, read or worker.
        run: with scope run, its id.
        id: name of the token in a Hello.
    """

    secret: bytes = field(repr=False)
    scope: str
    run: str | None
    id: bytes

    def rights(self) -> Rights:
        """Return the rights of the token."""
        looks_only = self.scope == "read"
        return Rights(
            who=f"token {self.id.hex()}",
            run=self.run,
            join=not looks_only,
            store=not looks_only,
            admin=self.scope == "admin",
        )


def key_id(secret: bytes) -> bytes:
    """Return the id of a secret."""
    return hashlib.sha256(b"rallypoint key id\0" + secret).digest()[:KEY_ID_BYTES]


def parse(text: bytes, where: str = "token") -> tuple[Key, ...]:
    """Return the tokens of a text in order, without empty lines and `# comments`.

    Args:
        text: one token a line.
        where: source of the text, for people.

    Raises ParameterError with the number of an invalid line, but nothing of its content.
    """
    keys = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line and not (line + b" ").startswith(b"# "):
            keys.append(_key(line, f"{where}, line {number}"))
    return tuple(keys)


def _key(line: bytes, where: str) -> Key:
    found = _LINE.fullmatch(line)
    if found is None:
        if _SCOPE.fullmatch(line):
            raise ParameterError(f"{where}: a scope without its secret; write SCOPE SECRET")
        if len(line.split()) > 1:
            raise ParameterError(
                f"{where}: the first of several words is not a scope; write SCOPE SECRET, "
                "where SCOPE is admin, all, read or run:ID, or one secret without spaces"
            )
        return Key(line, "admin", None, key_id(line))
    scope, _, name = found[1].partition(b":")
    secret = found[2]
    if scope == b"worker":
        return Key(bytes.fromhex(_hex(secret)), "worker", None, bytes.fromhex(name.decode()))
    run = unquote_to_bytes(name).decode("utf-8", "replace") if scope == b"run" else None
    return Key(secret, scope.decode(), run, key_id(secret))


def _hex(secret: bytes) -> str:
    text = secret.decode("ascii", "replace")
    return text if re.fullmatch(r"(?:[0-9a-f]{2})+", text) else ""


def worker_secret(secret: bytes, run: str) -> bytes:
    """Return the secret of a run's workers, derived from that of an agent."""
    return hmac.digest(secret, b"rallypoint worker 1\0" + run.encode(), "sha256")


def worker_token(text: bytes, run: str) -> str:
    """Return the token line for the workers of a run, "" without a token."""
    for key in parse(text):
        if key.scope == "worker":
            return f"worker:{key.id.hex()} {key.secret.hex()}"
        if key.scope != "read" and key.rights().reaches(run):
            return f"worker:{key.id.hex()} {worker_secret(key.secret, run).hex()}"
    return ""


def for_run(keys: Iterable[Key], run: str) -> list[Key]:
    """Return the tokens that a client may use for a run, in order."""
    return [key for key in keys if key.rights().reaches(run)]


def run_line(run: str, secret: str) -> str:
    """Return the token line for one run."""
    return f"run:{quote(run, safe='')} {secret}"


class Keyring:
    """The tokens that a server accepts.

    Args:
        text: see `parse`, which raises ParameterError.
    """

    def __init__(self, text: bytes) -> None:
        self.keys = tuple(key for key in parse(text) if key.scope != "worker")
        self._by_id = {key.id: key for key in self.keys}

    def __bool__(self) -> bool:
        return bool(self.keys)

    def find(self, name: bytes, run: str, worker: bool) -> tuple[bytes, Rights] | None:
        """Return the secret that a client must prove, and its rights; None: unknown."""
        key = self._by_id.get(name)
        if key is None:
            return None
        if not worker:
            return key.secret, key.rights()
        if key.scope == "read" or not key.rights().reaches(run):
            return None
        who = f"a worker's token derived from {key.rights().who}"
        rights = Rights(who, run, join=False, store=True, admin=False)
        return worker_secret(key.secret, run), rights

    def may_view(self, shown: bytes) -> bool:
        """Return, in constant time, whether a text is a token that may read all runs."""
        found = False
        for key in self.keys:
            found |= hmac.compare_digest(key.secret, shown) and key.run is None
        return found
