"""The state of a run in a file that all nodes share: no server anywhere.

All guarantees are those of `FileStore` (locking, crashed writers, shared file systems); this
module only gives the place its name.
"""

import os

from rallypoint.rendezvous.serverless.backends.store import StoreRendezvousBackend
from rallypoint.store.api import Store
from rallypoint.store.file import FileStore


class FileRendezvousBackend(StoreRendezvousBackend):
    """A run's state in a shared file.

    Args:
        where: path of the file, or a store that is there already.
        run_id: names the run; several runs may share one file.
    """

    def __init__(self, where: str | os.PathLike[str] | Store, run_id: str) -> None:
        store = where if isinstance(where, Store) else FileStore(os.fspath(where))
        super().__init__(store, run_id, name="file")
