"""The record of admin actions: who did what to which run, from where, and when.

One line each in the log `rallypoint.audit` (which `rallypoint serve` always writes), and in
the run's own state: everyone is told by whom it was closed. Who a client says it is, is its
own claim; its token and its address are what this server has seen.
"""

import datetime
import logging

import msgspec

from rallypoint.rendezvous.core.events import Close

logger = logging.getLogger("rallypoint.audit")


def recorded(event: Close, run_id: str, who: str, peer: str) -> Close:
    """Log a close and return it as it shall be stored, at this server's time.

    Args:
        event: as the client sent it.
        run_id: the run.
        who: the client's token, by its key id; "" where none is asked for.
        peer: the client's address.
    """
    at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    by = f"{event.by} ({who}, {peer})" if who else event.by
    logger.info("close of run %r by %r (%s, %s): %r", run_id, event.by, who or "no token", peer,
                event.why)  # fmt: skip
    return msgspec.structs.replace(event, by=by, at=at)
