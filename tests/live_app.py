"""The console's ASGI application with short intervals, for servers that tests start.

A socket that does not answer for two heartbeats is closed. `HEARTBEAT_S` is for those whose other
end may be busy for longer than one of the usual.
"""

from __future__ import annotations

import os

from console.asgi import Console

application = Console(
    heartbeat_s=float(os.environ.get("HEARTBEAT_S", "0.5")), frame_s=0.1, recheck_s=0.4
)
