"""A Mooncake node: gives memory to the pool and waits.  mooncake_node.py BYTES MASTER"""

import signal
import sys

from mooncake.store import MooncakeDistributedStore

store = MooncakeDistributedStore()
if (
    store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[1]), 16 << 20, "tcp", "", sys.argv[2])
    != 0
):
    sys.exit("setup failed")
print("node ready", flush=True)
signal.pause()
