"""A worker on another host as the head sees it: one connection, and a heartbeat towards it."""

import contextlib
import threading

from mcf.dist.control import Channel, Frame
from mcf.dist.lobby import Admitted
from mcf.errors import TransportError

BEAT_S = 0.5


class RemoteWorker:
    """A worker that has joined over the network. The head cannot kill it: cut off, it ends itself."""

    def __init__(self, admitted: Admitted, *, send_timeout_s: float) -> None:
        self.rank = admitted.rank
        self.peer = admitted.peer
        self.host = admitted.peer  # with its name, once it has said hello
        self.pid = 0  # until its hello
        self.channel = Channel(admitted.sock, peer=f"worker {admitted.rank}", send_timeout_s=send_timeout_s)
        self._beat = Heartbeat(self.channel)

    def introduce(self, hello: Frame) -> None:
        """Take its host's name and its process id from its hello."""
        self.pid, self.host = hello["pid"], f"{hello.fields.get('host', '')} ({self.peer})"

    def is_dead(self) -> bool:
        """Return whether its connection has closed."""
        return self.channel.at_end

    def is_stopped(self) -> bool:
        """Return False: from here that cannot be told from silence."""
        return False

    def was_killed(self) -> bool:
        """Return True: a connection that closes unannounced is the end of a process."""
        return True

    def may_be_silent_while_starting(self) -> bool:
        """Return False: it has imported torch before it could find the head."""
        return False

    def why_lost(self) -> str:
        """Return what is known: the connection has closed."""
        return (
            "its connection closed: the process ended or was killed; see what it printed on its own host, then run "
            "again"
        )

    def printed(self) -> str:
        """Return nothing: what it prints stays on its host."""
        return ""

    def has_left(self) -> bool:
        """Return whether the connection has closed; drops the frames that still come."""
        if not self.channel.at_end:
            with contextlib.suppress(TransportError):
                self.channel.read_ready()
        return self.channel.at_end

    def terminate(self) -> None:
        """Do nothing: no signal reaches another host."""

    def cut(self, why: str) -> None:
        """Tell it why, if that does not wait, and close the connection: it ends itself."""
        self._beat.stop()
        if why and not self.channel.at_end:
            self.channel.send_now("abort", why=why)
        self.channel.close()

    def reap(self) -> None:
        """Close the connection."""
        self.cut("")


class Heartbeat(threading.Thread):
    """Sends `beat` frames to one worker until stopped, so that it notices a head that is silent or cut off."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(name="mcf-head-beat", daemon=True)
        self._channel = channel
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        """Beat; a channel that is busy with a frame needs none."""
        while not self._ended.wait(BEAT_S):
            self._channel.send_now("beat")

    def stop(self) -> None:
        """Send no more."""
        self._ended.set()
