"""What a worker does once it has joined: one method for each message of the head."""

import os
from typing import Any, Protocol

import torch

from mcf.dist import faults
from mcf.dist.control import Frame
from mcf.dist.transport import Transport
from mcf.errors import TransportError
from mcf.schedule.steps import STATE_BYTES


class Reply(Protocol):
    """Sends one frame to the head."""

    def __call__(self, type: str, payload: bytes = b"", /, **fields: Any) -> None:
        """Send; see `Channel.send`."""


class Session:
    """A worker's state between messages. `handle` obeys one frame; what it raises becomes an `error` frame."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._handlers = {"ping": self._ping, "echo_state": self._echo_state}

    def handle(self, frame: Frame, reply: Reply) -> None:
        """Obey one frame, answering through `reply`."""
        handler = self._handlers.get(frame.type)
        if handler is None:
            raise TransportError(f"a worker cannot obey {frame.type!r}; it knows {', '.join(sorted(self._handlers))}")
        handler(frame, reply)

    def _ping(self, frame: Frame, reply: Reply) -> None:
        reply("pong", token=frame["token"], num_threads=torch.get_num_threads())

    def _echo_state(self, frame: Frame, reply: Reply) -> None:
        """Exchange one state of `num_floats` with every other worker and check what has come."""
        rank, peers = self._transport.rank, [p for p in range(self._transport.world_size) if p != self._transport.rank]
        mine = torch.full((frame["num_floats"],), float(rank))
        theirs = {peer: torch.empty_like(mine) for peer in peers}
        handles = [self._transport.irecv(theirs[peer], peer, 1, STATE_BYTES) for peer in peers]
        faults.point("exchange")
        handles += [self._transport.isend(mine, peer, 1, STATE_BYTES) for peer in peers]
        for handle in handles:
            handle.wait()
        wrong = [peer for peer in peers if not bool((theirs[peer] == peer).all())]
        if wrong:
            raise TransportError(f"worker {rank} (process {os.getpid()}) got wrong states from workers {wrong}")
        reply("echoed", counters=[[*key, num_bytes] for key, num_bytes in sorted(self._transport.counters.items())])
