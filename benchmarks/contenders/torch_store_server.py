"""torch's TCPStore server in its own process; answers `port`."""

import commands
from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
commands.serve({"port": lambda: {"port": store.port}})
