"""Worker programs without torch, to test what the head does. The first argument picks one; the rest are a worker's.

light       a real worker's threads and loop; after joining it answers pings, and hangs in `echo_state`
mute        says nothing at all
garbage     sends bytes that are no frame
stranger    says hello with another protocol
impostor    says hello as another rank
early       exits before it says hello
deaf        joins, then is deaf to everything: it ignores SIGTERM and the end of its channel
"""

import argparse
import os
import signal
import socket
import sys
import threading

from mcf.dist import worker
from mcf.dist.control import PROTOCOL, Channel, Frame

ORPHAN_S = 60.0  # if a test fails, what it leaves behind ends by itself


class LightSession:
    """Answers pings; hangs in `echo_state`; raises in anything else."""

    def handle(self, frame: Frame, reply) -> None:
        if frame.type == "ping":
            reply("pong", token=frame["token"], num_threads=0)
        elif frame.type == "echo_state":
            threading.Event().wait()
        else:
            raise ValueError(f"no\nway to {frame.type}")


def channel_of(argv: list[str]) -> Channel:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int)
    return Channel(socket.socket(fileno=parser.parse_known_args(argv)[0].fd), peer="the head")


def hello(channel: Channel, rank: int, protocol: int = PROTOCOL) -> None:
    channel.send("hello", rank=rank, pid=os.getpid(), protocol=protocol, versions=worker.versions())


def main(program: str, argv: list[str]) -> None:
    if program == "light":
        worker.main(argv, join=lambda frame, options, brake: LightSession())
    if program == "early":
        print("some advice\nthe reason\n", file=sys.stderr)
        sys.exit(7)
    channel = channel_of(argv)
    if program == "garbage":
        socket.socket(fileno=os.dup(channel.fileno())).sendall(b"HTTP/1.1 400 Bad Request\r\n")
    if program == "stranger":
        hello(channel, 0, PROTOCOL + 1)
    if program == "impostor":
        hello(channel, 5)
    if program == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        hello(channel, 0)
        channel.send("joined")
    threading.Event().wait(ORPHAN_S)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
