"""The console's ASGI application with short plan socket intervals, for servers tests start."""

from __future__ import annotations

from console.asgi import Console
from routing import cache_relay, sockets

cache_relay.CHECK_S = 0.2
sockets.REREAD_S = 0.3
sockets.RECHECK_S = 0.2
sockets.SILENT_S = 2.0

application = Console()
