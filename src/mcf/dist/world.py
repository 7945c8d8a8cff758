"""The head's side of the worker processes: start them, talk to them, end them all.

1. A world is used by one thread at a time. It is either whole or gone: any error in here, Ctrl-C too, kills all workers
   before it is raised, because workers that were left halfway cannot be trusted with the next request. What ends a
   request between two frames, and leaves the workers whole, is `mcf.engine.request`'s.
2. Nothing outlives the head: workers end when their control channel closes, and on Linux the system kills them too.

How trouble is noticed and who is blamed: `mcf.dist.watch`.
"""

import os
import socket
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from mcf.dist import faults
from mcf.dist.control import PROTOCOL, ChannelClosedError, ChannelStalledError, Frame
from mcf.dist.ends import WorkerEnd, kill_all, stop_all
from mcf.dist.hosts import Hosts
from mcf.dist.limit import Limit
from mcf.dist.nursery import Nursery, fork_worker
from mcf.dist.process import SEND_TIMEOUT_S, ctrl_c_held_back, default_command, spawn, worker_environment
from mcf.dist.remote import RemoteWorker
from mcf.dist.watch import TICK_S, Watch
from mcf.dist.worker import versions
from mcf.errors import RunError, TransportError, WorkerSilentError

LOOPBACK = "127.0.0.1"
SILENT_S = 3.5  # seven heartbeats: the run has ended within 4 s
LINK_TIMEOUT_S = 1800.0
_LOBBY_S = 0.05
PHASES = ("joining", "idle", "loading", "planning", "prefill", "convergence", "decode", "shutdown")
OnMessage = Callable[[int, Frame], None]


def threads_per_worker(num_workers: int) -> int:
    """Return this process's share of cores for each of `num_workers`, at least 1."""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, num_cores // num_workers)


class World:
    """`num_workers` joined worker processes. Use as a context manager, or call `close`.

    `phase` (one of `PHASES`) says what the workers are doing; errors name it.
    """

    def __init__(self, processes: list[WorkerEnd], *, silent_s: float, clock: Callable[[], float]) -> None:
        self.limit: Limit | None = None  # what a wait may not outlast
        self.phase = "joining"
        self.num_threads_per_worker = threads_per_worker(len(processes))
        self.hellos: dict[int, Frame] = {}
        self._port = 0
        self._hosts: Hosts | None = None
        self._models: dict[int, Frame] = {}
        self._clock = clock
        self._silent_s = silent_s
        self._gone_because = ""
        self._processes = processes
        self._finalizer = weakref.finalize(self, kill_all, self._processes)  # at exit too
        self._watch = Watch(processes, silent_s=silent_s, clock=clock)

    @classmethod
    def start(
        cls,
        num_workers: int,
        *,
        num_threads_per_worker: int,
        env: Mapping[str, str] | None = None,
        fault: str | None = None,
        silent_s: float = SILENT_S,
        command: Sequence[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        limit: Limit | None = None,
        nursery: Nursery | None = None,
        is_joined: bool = True,
        hosts: Hosts | None = None,
    ) -> Self:
        """Start the workers and wait until all have joined, or with `is_joined` False until all have said hello.

        With `hosts`, start worker 0 alone and let the others in from other hosts. No longer than `limit`, which holds
        for later waits too until it is taken away.
        `env` adds to their environment, `fault` is a text for `mcf.dist.faults`, `command` runs another worker program,
        `nursery` forks them (`mcf.dist.nursery`).
        Raises WorkerLostError, WorkerSilentError, WorkerFailedError, TransportError or RequestTimeoutError; no process
        is left then.
        """
        extra = {**(env or {}), **({} if fault is None else {faults.VARIABLE: fault})}
        full_env = worker_environment(num_threads_per_worker, extra)
        faults.arm(faults.HEAD, full_env.get(faults.VARIABLE, ""))
        processes: list[WorkerEnd] = []
        run = command or default_command()
        if nursery is not None and not nursery.is_ready(limit):
            nursery = None
        try:
            if hosts is not None:
                with ctrl_c_held_back():
                    if nursery is not None:
                        own = fork_worker(nursery, 0, num_workers, full_env, None, hosts.worker_options)
                    else:
                        own = spawn(0, num_workers, run, full_env, None, hosts.worker_options)
                    processes.append(own)
                world = cls(processes, silent_s=silent_s, clock=clock)
                world.num_threads_per_worker = num_threads_per_worker
                world.limit, world._hosts, world._port = limit, hosts, hosts.place.master_port
                world._gather(hosts)
                world._greet()
                if is_joined:
                    world.join()
                return world
            with socket.create_server((LOOPBACK, 0)) as meeting:
                for rank in range(num_workers):
                    with ctrl_c_held_back():
                        if nursery is not None:
                            processes.append(fork_worker(nursery, rank, num_workers, full_env, meeting))
                        else:
                            processes.append(spawn(rank, num_workers, run, full_env, meeting))
                world = cls(processes, silent_s=silent_s, clock=clock)
                world.num_threads_per_worker = num_threads_per_worker
                world.limit = limit
                world._port = meeting.getsockname()[1]
                world._greet()
                if is_joined:
                    world.join()
        except BaseException as exc:
            kill_all(processes, _in_words(exc))
            raise
        return world

    @property
    def phase(self) -> str:
        """What the workers are doing."""
        return self._phase

    @phase.setter
    def phase(self, phase: str) -> None:
        self._phase = phase
        faults.point(phase)

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return len(self._processes)

    @property
    def pids(self) -> tuple[int, ...]:
        """The workers' process ids, in rank order."""
        return tuple(process.pid for process in self._processes)

    @property
    def is_closed(self) -> bool:
        """Whether the workers are gone."""
        return bool(self._gone_because)

    @property
    def is_over_hosts(self) -> bool:
        """Whether another launcher has started the workers, so that they cannot be started again from here."""
        return self._hosts is not None

    @property
    def addresses(self) -> list[str]:
        """Where the workers reach each other, by rank: on loopback, or where connections to the head came from."""
        own = LOOPBACK if self._hosts is None else self._hosts.address
        return [worker.peer if isinstance(worker, RemoteWorker) else own for worker in self._processes]

    @property
    def fingerprints(self) -> dict[int, str]:
        """What workers on other hosts say of their model, by rank."""
        return {rank: frame["fingerprint"] for rank, frame in self._models.items()}

    def log(self, rank: int) -> str:
        """Return the tail of what worker `rank` has printed, for diagnosis."""
        return self._processes[rank].printed()

    def send(self, rank: int, type: str, payload: bytes = b"", /, **fields: Any) -> None:
        """Send one frame to worker `rank`. Raises WorkerLostError or WorkerSilentError if it cannot take it."""
        with self._all_or_nothing():
            try:
                self._processes[rank].channel.send(type, payload, **fields)
            except ChannelClosedError:
                raise self._watch.blame_closed(rank, self.phase) from None
            except ChannelStalledError:
                raise WorkerSilentError(rank, self.phase, self._silent_s) from None

    def broadcast(self, type: str, payload: bytes = b"", /, **fields: Any) -> None:
        """Send the same frame to every worker."""
        for rank in range(self.num_workers):
            self.send(rank, type, payload, **fields)

    def join(self) -> None:
        """Have the workers meet, once each fits this head. Raises TransportError for one that does not."""
        with self._all_or_nothing():
            for rank, hello in self.hellos.items():
                check_hello(hello, rank, "" if self._hosts is None else self._hosts.dtype)
            if self._hosts is not None:
                self._compare_models(self._hosts)
        prefix = {} if self._hosts is None else {"prefix": self._hosts.tensor_prefix}
        self.broadcast("join", port=self._port, timeout_s=LINK_TIMEOUT_S, **prefix)
        self.wait_for("joined")
        for worker in self._watch.workers:
            worker.has_joined = True
        self.phase = "idle"

    def check(self) -> None:
        """Raise WorkerLostError, WorkerFailedError or WorkerSilentError if something has gone wrong; do not wait."""
        with self._all_or_nothing():
            self._watch.pump(0.0, self.phase)

    def recv_any(self, timeout_s: float | None = None) -> tuple[int, Frame] | None:
        """Wait for one frame of any worker; None after `timeout_s`. Raises as `check`."""
        deadline_s = None if timeout_s is None else self._clock() + timeout_s
        with self._all_or_nothing():
            while (found := self._next()) is None:
                left_s = TICK_S if deadline_s is None else deadline_s - self._clock()
                self._pump(min(max(left_s, 0.0), TICK_S))
                if left_s <= 0:
                    return self._next()
            return found

    def wait_for(
        self, type: str, ranks: Sequence[int] | None = None, *, on_message: OnMessage | None = None
    ) -> dict[int, Frame]:
        """Wait for one frame `type` from each of `ranks` (all by default); return them by rank.

        Other frames of these workers that come first go to `on_message(rank, frame)`; without it they are an error.
        Later frames stay for the next call. Raises as `check`.
        """
        found: dict[int, Frame] = {}
        wanted = set(range(self.num_workers) if ranks is None else ranks)
        with self._all_or_nothing():
            while True:
                for rank in sorted(wanted):
                    self._take(rank, type, found, on_message)
                if len(found) == len(wanted):
                    return found
                self._pump(TICK_S)

    def inspect(self) -> list[dict[str, int]]:
        """Ask idle workers what they hold: see `mcf.dist.usage`."""
        self.broadcast("inspect")
        return [dict(frame.fields) for _, frame in sorted(self.wait_for("inspected").items())]

    def close(self) -> None:
        """End all workers politely, by force after about a second; reaps them. Harmless when called again."""
        self.phase = "shutdown"
        try:
            if not self.is_closed:
                stop_all(self._processes)
        finally:
            self.kill()

    def kill(self, why: str = "they were closed") -> None:
        """Kill and reap all workers at once. Harmless when called again."""
        self._gone_because = self._gone_because or why
        kill_all(self._processes, why)
        self._finalizer.detach()
        self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is None:
            self.close()
        else:
            self.kill(_in_words(exc))

    def require_open(self) -> None:
        """Raise RunError, saying why, if the workers are gone."""
        if self.is_closed:
            raise RunError(f"the workers are gone: {self._gone_because}; llm.restart() brings them back")

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        self.require_open()
        try:
            yield
        except BaseException as exc:
            self.kill(_in_words(exc))
            raise

    def _gather(self, hosts: Hosts) -> None:
        """Let the workers of other hosts in."""
        while hosts.is_waiting():
            for admitted in hosts.lobby.poll(_LOBBY_S):
                worker = RemoteWorker(admitted, send_timeout_s=SEND_TIMEOUT_S)
                self._processes.append(worker)
                self._watch.add(worker)
            self._pump(0.0)
        hosts.close()
        self._processes.sort(key=lambda worker: worker.rank)

    def _greet(self) -> None:
        self.hellos = self.wait_for("hello")
        for rank, worker in enumerate(self._processes):
            if isinstance(worker, RemoteWorker):
                worker.introduce(self.hellos[rank])
        if self._hosts is not None:
            self._models = self.wait_for("model", range(1, self.num_workers))

    def _compare_models(self, hosts: Hosts) -> None:
        """Refuse a worker whose host has another model; the head may still be reading its own."""
        while not hosts.fingerprint.done():
            self._pump(TICK_S)
        mine = hosts.fingerprint.result()
        for rank, frame in sorted(self._models.items()):
            if frame["fingerprint"] != mine:
                raise TransportError(
                    f"worker {rank} on {self._processes[rank].host} cannot join: its model has the fingerprint "
                    f"{frame['fingerprint'][:12]}, the head's {mine[:12]}; put the same model files on every host"
                )

    def _pump(self, timeout_s: float) -> None:
        self._watch.pump(timeout_s, self.phase)
        if self.limit is not None:
            self.limit.check(self.phase)

    def _next(self) -> tuple[int, Frame] | None:
        waiting = (worker for worker in self._watch.workers if worker.inbox)
        return next(((worker.rank, worker.inbox.popleft()) for worker in waiting), None)

    def _take(self, rank: int, type: str, found: dict[int, Frame], on_message: OnMessage | None) -> None:
        inbox = self._watch.workers[rank].inbox
        while inbox and rank not in found:
            frame = inbox.popleft()
            if frame.type == type:
                found[rank] = frame
            elif on_message is not None:
                on_message(rank, frame)
            else:
                raise TransportError(f"worker {rank} sent {frame.type!r} during {self.phase}; expected {type!r}")


def check_hello(hello: Frame, rank: int, dtype: str = "") -> None:
    """Raise TransportError unless a worker's `hello` fits this head: its rank, the protocol and all versions.

    A worker on another host also says its `dtype`, which must be this one.
    """
    expected: dict[str, object] = {"rank": rank, "protocol": PROTOCOL, **versions()}
    got = {"rank": hello["rank"], "protocol": hello["protocol"], **hello["versions"]}
    host = hello.fields.get("host", "")
    if host:
        expected, got = {**expected, "dtype": dtype}, {**got, "dtype": hello.fields.get("dtype", "")}
    cure = "install the same versions and give the same options on every host"
    wrong = [name for name in expected.keys() | got.keys() if expected.get(name) != got.get(name)]
    for name in sorted(wrong):
        raise TransportError(
            f"worker {rank}{f' on {host}' if host else ''} cannot join: its {name} is {got.get(name)}, the head's is "
            f"{expected.get(name)}; {cure if host else 'run head and workers from one installation'}"
        )


def _in_words(exc: BaseException) -> str:
    return str(exc).strip() or type(exc).__name__
