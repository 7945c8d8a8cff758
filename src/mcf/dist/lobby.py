"""Where workers of other hosts come in: the head's listening socket, and who is let through it.

1. It listens on one chosen address only, and only until all workers have come.
2. A caller that does not prove within `LIMIT_S` that it is a worker of this run is dropped and counted. It gets no more
   than `ANSWER_BYTES` of memory, and there are at most `MOST_CALLERS` of them: the oldest goes first.
3. No caller can disturb the run: nothing here waits for one.
"""

import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from mcf.dist import handshake

LIMIT_S = 5.0
MOST_CALLERS = 64
_BACKLOG = 128
_MOST_NAMED = 3


@dataclass(kw_only=True)
class _Caller:
    """A connection that has not proved anything yet."""

    sock: socket.socket
    peer: str
    challenge: bytes
    deadline_s: float
    data: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """A worker that has proved itself: its rank, its connection, the address it came from."""

    rank: int
    sock: socket.socket
    peer: str


class Lobby:
    """Listens on `address` for the workers `ranks`. `dropped` names the callers that were no workers of this run."""

    def __init__(self, address: str, ranks: range, *, clock: Callable[[], float] = time.monotonic) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        self.address, self.port = self._listener.getsockname()[:2]
        self.token = handshake.new_token()
        self.missing = set(ranks)
        self.dropped: list[str] = []
        self.num_dropped = 0
        self._clock = clock
        self._callers: dict[int, _Caller] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def poll(self, timeout_s: float) -> list[Admitted]:
        """Wait up to `timeout_s` for something to happen; return the workers that have just come in."""
        admitted = []
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            elif (one := self._hear(self._callers[key.fd])) is not None:
                admitted.append(one)
        now_s = self._clock()
        for caller in [caller for caller in self._callers.values() if now_s > caller.deadline_s]:
            self._drop(caller)
        return admitted

    def close(self) -> None:
        """Stop listening and hang up on those that have proved nothing. Harmless when called again."""
        for caller in list(self._callers.values()):
            self._drop(caller)
        self._selector.close()
        self._listener.close()

    def dropped_in_words(self) -> str:
        """Return one line on the callers that were dropped, empty where there were none."""
        if not self.num_dropped:
            return ""
        more = f" and {self.num_dropped - len(self.dropped)} more" if self.num_dropped > len(self.dropped) else ""
        what = "connection" if self.num_dropped == 1 else "connections"
        return (
            f"dropped {self.num_dropped} {what} to the control port {self.port} that came from no worker of this run "
            f"({', '.join(self.dropped)}{more})"
        )

    def _accept(self) -> None:
        try:
            sock, peer = self._listener.accept()
        except OSError:
            return  # it has hung up already
        if len(self._callers) >= MOST_CALLERS:
            self._drop(next(iter(self._callers.values())))
        sock.setblocking(False)
        caller = _Caller(
            sock=sock, peer=peer[0], challenge=handshake.new_challenge(), deadline_s=self._clock() + LIMIT_S
        )
        self._callers[sock.fileno()] = caller
        self._selector.register(sock, selectors.EVENT_READ)
        self._say(caller, caller.challenge)

    def _hear(self, caller: _Caller) -> Admitted | None:
        try:
            data = caller.sock.recv(handshake.ANSWER_BYTES - len(caller.data))
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        caller.data += data
        if not data or not handshake.may_become_an_answer(caller.data):
            self._drop(caller)
            return None
        return self._judge(caller) if len(caller.data) == handshake.ANSWER_BYTES else None

    def _judge(self, caller: _Caller) -> Admitted | None:
        rank = handshake.rank_of(self.token, caller.challenge, caller.data)
        if rank not in self.missing or not self._say(
            caller, handshake.proof(self.token, caller.challenge, caller.data)
        ):
            self._drop(caller)
            return None
        assert rank is not None
        self.missing.remove(rank)
        self._forget(caller)
        caller.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Admitted(rank=rank, sock=caller.sock, peer=caller.peer)

    def _say(self, caller: _Caller, data: bytes) -> bool:
        try:
            return caller.sock.send(data) == len(data)
        except OSError:
            return False  # the next read tells

    def _drop(self, caller: _Caller) -> None:
        self.num_dropped += 1
        if len(self.dropped) < _MOST_NAMED:
            self.dropped.append(caller.peer)
        self._forget(caller)
        caller.sock.close()

    def _forget(self, caller: _Caller) -> None:
        self._selector.unregister(caller.sock)
        del self._callers[caller.sock.fileno()]
