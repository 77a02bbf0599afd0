"""How often a client sends heartbeats and tries to reconnect, and when a peer is gone. PURE."""

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
STANDBY_PAUSE_SECONDS = 0.8
JITTER = 1.5  # the most by which a pause is stretched
ATTEMPT_SECONDS = 5.0  # of one attempt to connect
LONGEST_HEARTBEAT_SECONDS = 5.0  # the run may have been opened with a shorter lease than ours
HEARTBEAT_OF_SEVERAL_SECONDS = 3.0
ANSWER_SECONDS = 2.0  # to a heartbeat, of one of several servers
HEARTBEATS_PER_LEASE = 3


def heartbeat_seconds(lease_seconds: float, several: bool = False) -> float:
    """Return the time between two heartbeats, to a lone server or to one of several."""
    longest = HEARTBEAT_OF_SEVERAL_SECONDS if several else LONGEST_HEARTBEAT_SECONDS
    return min(lease_seconds / HEARTBEATS_PER_LEASE, longest)


def silence_seconds(lease_seconds: float, several: bool) -> float:
    """Return how long a server may be silent: a lease; less for one of several servers.

    Another server may lead by now, and a node that asks it in vain loses nothing.
    """
    if not several:
        return lease_seconds
    return min(lease_seconds, HEARTBEAT_OF_SEVERAL_SECONDS + ANSWER_SECONDS)


def is_gone(silent_seconds: float, late_seconds: float, limit_seconds: float) -> bool:
    """Return whether a server that was silent for so long counts as gone.

    Args:
        silent_seconds: since the last bytes from it.
        late_seconds: by how much this check is late; a process that was paused has not listened.
        limit_seconds: see `silence_seconds`.
    """
    return silent_seconds > max(limit_seconds, 2 * late_seconds)


def absence_seconds(lease_seconds: float) -> float:
    """Return the time within which a node returns to a server, if it can.

    The node notices a silent server after a lease and a heartbeat. It may then have just begun
    an attempt to connect that fails, and waits the longest pause after it.
    """
    attempt = ATTEMPT_SECONDS + JITTER * LONGEST_PAUSE_SECONDS
    return lease_seconds + heartbeat_seconds(lease_seconds) + attempt


def next_pause(pause_seconds: float, standby: bool = False) -> float:
    """Return the pause after the next failed attempt to connect, without jitter.

    Args:
        pause_seconds: the pause after this one.
        standby: whether a standby server answered, so that one leads within its lease.
    """
    longest = STANDBY_PAUSE_SECONDS if standby else LONGEST_PAUSE_SECONDS
    return min(2 * pause_seconds, longest)
