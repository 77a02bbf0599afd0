"""Every error that Rallypoint raises, in one tree.

    RallypointError
    ├── ParameterError              a parameter or option is wrong (also a ValueError)
    ├── RendezvousError
    │   ├── RendezvousClosedError         the run was closed: who, when, why
    │   ├── RendezvousTimeoutError        a limit was reached: what was seen, who is missing
    │   ├── RendezvousConnectionError     the coordinator cannot be reached
    │   ├── RendezvousStateError          refused: other settings, a duplicate rank, corrupt state
    │   └── RendezvousGracefulExitError   not needed any more: end with exit code 0
    ├── JournalError                a server's journal cannot be read or written
    │   ├── JournalLostError              another process leads: this one must stop writing
    │   ├── JournalFullError              no room is left; nothing of that commit was kept
    │   └── JournalCorruptError           what is stored is damaged, foreign, or of a newer version
    └── StoreError
        ├── StoreTimeoutError       a wait reached its limit (also a TimeoutError)
        ├── StoreConnectionError    the server cannot be reached (also a ConnectionError)
        │   └── AuthenticationError the other side does not know the token
        ├── StoreValueError         a value or key of the wrong kind (also a ValueError)
        └── StoreLimitError         a limit (frame, key, bytes) was exceeded

Foreign errors (OSError, msgspec's) are mapped to these where they enter, and nowhere else.
"""


class RallypointError(Exception):
    """Base of all errors raised on purpose by this library."""


class ParameterError(RallypointError, ValueError):
    """A parameter is wrong; the message names it, its value and what is allowed."""


class RendezvousError(RallypointError):
    """Base of all rendezvous errors."""


class RendezvousClosedError(RendezvousError):
    """The run is closed; the message says who closed it, when and why."""


class RendezvousTimeoutError(RendezvousError):
    """A rendezvous did not complete within its limit; the message says who is missing."""


class RendezvousConnectionError(RendezvousError):
    """The coordinator could not be reached; the message says what was tried."""


class RendezvousStateError(RendezvousError):
    """The coordinator refused the request, or the stored state cannot be used."""


class RendezvousGracefulExitError(RendezvousError):
    """The run has ended well and this node is not needed: end with exit code 0."""


class JournalError(RallypointError):
    """A server's journal cannot be opened, read or written; the message names it."""


class JournalLostError(JournalError):
    """Another process leads or has the journal: this one must stop answering."""


class JournalFullError(JournalError):
    """The journal's disk or engine has no room left; nothing of the commit was kept."""


class JournalCorruptError(JournalError):
    """The stored data is unusable; the message names the file or entry and what to do."""


class StoreError(RallypointError):
    """Base of all key/value store errors."""


class StoreTimeoutError(StoreError, TimeoutError):
    """A store call has reached its timeout."""


class StoreConnectionError(StoreError, ConnectionError):
    """The store's server could not be reached, or the connection was refused or lost."""


class AuthenticationError(StoreConnectionError):
    """The token was refused, or the server could not prove that it knows it."""


class StoreValueError(StoreError, ValueError):
    """A key or value is of the wrong kind for the call."""


class StoreLimitError(StoreError):
    """A limit (frame size, key length, stored bytes) would be exceeded."""
