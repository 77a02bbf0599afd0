"""torch's TCPStore server in a process of its own; prints the port as its first answer."""

import line
from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
line.serve({"port": lambda: {"port": store.port}})
