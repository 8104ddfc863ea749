"""Dynamo's own side of the planner handshake, for tests: run by a Python that has Dynamo.

Reads a line `P D` on its standard input and decides so many workers, or `ready` and answers whether
its last decision counts as carried out. Writes one line for each.
"""

import asyncio
import sys

from dynamo._core import VirtualConnectorCoordinator
from dynamo.runtime import DistributedRuntime


async def main(namespace: str) -> None:
    loop = asyncio.get_running_loop()
    runtime = DistributedRuntime(loop, "etcd", "tcp", event_plane="zmq")
    planner = VirtualConnectorCoordinator(runtime, namespace, 1, 1800, 1800)
    await planner.async_init()
    print("started", flush=True)
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).split():
        if line == ["ready"]:
            print(await planner.is_scaling_ready(), flush=True)
        else:
            await planner.update_scaling_decision(int(line[0]), int(line[1]))
            print("decided", flush=True)
    runtime.shutdown()


asyncio.run(main(sys.argv[1]))
