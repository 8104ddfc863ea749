"""The console's ASGI application with short intervals, for servers that tests start."""

from __future__ import annotations

from console.asgi import Console

application = Console(heartbeat_s=0.5, frame_s=0.1, recheck_s=0.4)
