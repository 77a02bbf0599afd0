"""Tokens and what they may do: lines of text, their names, and the rights they give. PURE.

A token file (or RALLYPOINT_TOKEN) holds one token a line, so that several are valid while one
is exchanged for another. A line is a secret, or a scope and a secret:

    SECRET              everything; what a single shared token always meant
    admin SECRET        the same, said
    all SECRET          take part in any run and use its store; not close or exclude
    run:ID SECRET       the same for one run (an id with spaces: percent-encoded)
    read SECRET         look at any run; change nothing
    worker:KEY SECRET   one run's store, nothing else: made by the agent for its workers

A line that is neither is refused, since a mistyped scope would otherwise be a secret with all
rights. A secret with spaces needs its scope.

A client says which token it will prove by its *key id*, a hash that tells nothing of a random
secret; the server looks that one up and both prove it (`protocol.proof`). A worker's token is
derived from the agent's and the run id, so that the server, which knows the agent's, needs to
keep nothing: `worker:KEY` names the token that it was derived from.
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
        who: the token by its key id, for records; "" where none is asked for.
        run: the only run that it reaches; None for any.
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
        """Return whether a run may be reached at all."""
        return self.run is None or self.run == run


EVERYTHING = Rights()


@dataclass(frozen=True)
class Key:
    """One token.

    Args:
        secret: what is proved, and never shown.
        scope: admin, all, run, read or worker.
        run: with scope run, its id.
        id: names the token in a Hello.
    """

    secret: bytes = field(repr=False)
    scope: str
    run: str | None
    id: bytes

    def rights(self) -> Rights:
        """Return what it allows."""
        looks_only = self.scope == "read"
        return Rights(
            who=f"token {self.id.hex()}",
            run=self.run,
            join=not looks_only,
            store=not looks_only,
            admin=self.scope == "admin",
        )


def key_id(secret: bytes) -> bytes:
    """Return the name of a secret."""
    return hashlib.sha256(b"rallypoint key id\0" + secret).digest()[:KEY_ID_BYTES]


def parse(text: bytes, where: str = "token") -> tuple[Key, ...]:
    """Return the tokens of a text, in its order; empty lines and `# comments` are skipped.

    Args:
        text: one a line.
        where: it is from, for people.

    Raises ParameterError naming a line that is no token; it shows nothing of the line.
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
                f"{where}: several words, of which the first is no scope; write SCOPE SECRET, "
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
    """Return the secret of a run's workers, derived from an agent's."""
    return hmac.digest(secret, b"rallypoint worker 1\0" + run.encode(), "sha256")


def worker_token(text: bytes, run: str) -> str:
    """Return the token line to give to the workers of a run, "" where there is no token."""
    for key in parse(text):
        if key.scope == "worker":
            return f"worker:{key.id.hex()} {key.secret.hex()}"
        if key.scope != "read" and key.rights().reaches(run):
            return f"worker:{key.id.hex()} {worker_secret(key.secret, run).hex()}"
    return ""


def for_run(keys: Iterable[Key], run: str) -> list[Key]:
    """Return the tokens that a client may try for a run, in order."""
    return [key for key in keys if key.rights().reaches(run)]


def run_line(run: str, secret: str) -> str:
    """Return the line of a token for one run."""
    return f"run:{quote(run, safe='')} {secret}"


class Keyring:
    """The tokens that a server accepts.

    Args:
        text: one a line.

    Raises ParameterError as `parse`.
    """

    def __init__(self, text: bytes) -> None:
        self.keys = tuple(key for key in parse(text) if key.scope != "worker")
        self._by_id = {key.id: key for key in self.keys}

    def __bool__(self) -> bool:
        return bool(self.keys)

    def find(self, name: bytes, run: str, worker: bool) -> tuple[bytes, Rights] | None:
        """Return the secret that a client must prove, and its rights; None: unknown here."""
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
        """Return whether a text is a token that may look at all runs; in constant time."""
        found = False
        for key in self.keys:
            found |= hmac.compare_digest(key.secret, shown) and key.run is None
        return found
