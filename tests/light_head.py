"""A head process for tests: starts a world, prints the workers' ids, and does what its last argument says.

Arguments: `real` or a program of light_worker, the number of workers, then

    hang      a worker hangs in an exchange, and the head waits for it
    leave     ends without closing the world
    raise     ends by an exception
    drop      forgets the world and goes on
"""

import gc
import signal
import sys
from pathlib import Path

from mcf.dist.world import World

LIGHT = str(Path(__file__).with_name("light_worker.py"))


def command(program: str) -> tuple[str, ...] | None:
    return None if program == "real" else (sys.executable, LIGHT, program)


def main(program: str, num_workers: str, act: str) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests that run under nohup inherit that it is ignored
    world = World.start(int(num_workers), num_threads_per_worker=1, command=command(program))
    print(*world.pids, flush=True)
    world.send(0, "echo_state", num_floats=4)
    if act == "hang":
        world.wait_for("echoed", [0])
    if act == "raise":
        raise ValueError("as asked")
    if act == "drop":
        del world
        gc.collect()
        print("dropped", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
