"""A worker that says where it is, and whom it has met; with FILE it first waits for it.

worker.py [FILE]
"""

import os
import sys
import time
from pathlib import Path

from rallypoint import worker

place = f"{worker.rank()}/{worker.world_size()} run={os.environ['RALLYPOINT_RUN_ID']}"
print(f"start {place}", flush=True)
while len(sys.argv) > 1 and not Path(sys.argv[1]).exists():
    time.sleep(0.05)
met = b",".join(worker.all_gather(str(worker.rank()).encode())).decode()
print(f"rank {place} met={met}", flush=True)
