"""What a worker does once it has joined: one method for each message of the head."""

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from mcf.dist import faults, gauge, linkgauge
from mcf.dist.brake import Brake
from mcf.dist.control import Frame
from mcf.dist.heap import keep_freed_memory
from mcf.dist.hf import LoadedModel, load_model
from mcf.dist.measure import measure
from mcf.dist.node import Node
from mcf.dist.transport import Transport
from mcf.dist.usage import usage
from mcf.errors import TransportError
from mcf.schedule import digest, from_bytes
from mcf.schedule.steps import STATE_BYTES


class Reply(Protocol):
    """Sends one frame to the head."""

    def __call__(self, type: str, payload: bytes = b"", /, **fields: Any) -> None:
        """Send; see `Channel.send`."""


class Session:
    """A worker's state between messages. `handle` obeys one frame; what it raises becomes an `error` frame.

    A request is plan, prefill, converge, any number of decode, finish, in this order; `drop` ends it at any place
    between two frames, and between two chunks (`mcf.dist.brake`). The loaded model stays for the next one.
    """

    def __init__(
        self,
        transport: Transport,
        brake: Brake | None = None,
        *,
        folder: Path | None = None,
        num_threads: int | None = None,
    ) -> None:
        """`folder` and `num_threads` are this host's own, in place of those that the head names."""
        self._transport = transport
        self._brake = brake or Brake()
        self._folder, self._num_threads = folder, num_threads
        self._model: LoadedModel | None = None
        self._node: Node | None = None
        self._handlers = {
            "ping": self._ping,
            "echo_state": self._echo_state,
            "measure": self._measure,
            "measure_compute": self._measure_compute,
            "measure_link": self._measure_link,
            "load": self._load,
            "plan": self._plan,
            "prefill": self._prefill,
            "converge": self._converge,
            "decode": self._decode,
            "finish": self._finish,
            "drop": self._drop,
            "inspect": self._inspect,
        }

    def handle(self, frame: Frame, reply: Reply) -> None:
        """Obey one frame, answering through `reply`."""
        handler = self._handlers.get(frame.type)
        if handler is None:
            raise TransportError(f"a worker cannot obey {frame.type!r}; it knows {', '.join(sorted(self._handlers))}")
        handler(frame, reply)

    def _ping(self, frame: Frame, reply: Reply) -> None:
        reply("pong", token=frame["token"], num_threads=torch.get_num_threads())

    def _measure(self, frame: Frame, reply: Reply) -> None:
        """Measure this machine, this link or this process."""
        found = measure(frame["what"], self._transport, dtype=frame["dtype"], num_bytes=frame["num_bytes"])
        reply("measured", numbers=found)

    def _load(self, frame: Frame, reply: Reply) -> None:
        """Load the model; everything it needs lies in one local folder."""
        faults.point("loading")
        folder = self._folder or Path(frame["folder"])
        keep_freed_memory()
        self._model = load_model(folder, frame["dtype"], num_threads=self._num_threads or frame["num_threads"])
        weights = sum(p.numel() * p.element_size() for p in self._model.model.parameters())
        reply("loaded", num_layers=self._model.num_layers, vocab_size=self._model.vocab_size, weight_bytes=weights)

    def _plan(self, frame: Frame, reply: Reply) -> None:
        """Take a verified schedule, proven by its hash, and take its memory."""
        if digest(frame.payload) != frame["sha256"]:
            raise TransportError("the schedule's bytes do not have the announced sha256: damaged on the way")
        if self._model is None:
            raise TransportError("a plan came before the model")
        self._let_go()
        faults.point("planning")
        self._transport.counters.clear()
        self._node = Node(
            self._model,
            from_bytes(frame.payload),
            self._transport,
            page_bytes=frame["page_bytes"],
            slot_bytes=frame["slot_bytes"],
            fill=math.nan if frame.fields.get("poison") else None,
        )
        reply("planned", pool_bytes=frame["page_bytes"] + frame["slot_bytes"])

    def _prefill(self, frame: Frame, reply: Reply) -> None:
        node = self._current()
        token_ids = np.frombuffer(frame.payload, dtype="<i4").tolist()
        start = node.runtime.clock()
        held = node.runtime.store.held_tokens
        done = partial(_tell_progress, reply, held)
        logits = node.prefill(token_ids, done, self._brake.may_run)
        payload = b"" if logits is None else _bytes(logits)
        reply("prefilled", payload, t_start=start, t_end=node.runtime.clock())

    def _converge(self, frame: Frame, reply: Reply) -> None:
        node = self._current()
        blocks = node.converge()
        rows = [[b["chunk"], b["maker"], b["group"], b["state"], b["tokens"]] for b in blocks]
        reply("converged", blocks=rows, peak_bytes=node.pool.peak_bytes, in_use_bytes=node.pool.in_use_bytes)

    def _decode(self, frame: Frame, reply: Reply) -> None:
        logits = self._current().decode(frame["token"], frame["index"])
        if frame["want_logits"]:
            reply("logits", _bytes(logits))

    def _finish(self, frame: Frame, reply: Reply) -> None:
        """Give the request's memory back; tell what was counted."""
        node = self._current()
        counters = [[*key, num_bytes] for key, num_bytes in sorted(self._transport.counters.items())]
        reply("finished", node.trace().to_bytes(), counters=counters, peak_bytes=node.pool.peak_bytes)
        del node
        self._let_go()

    def _drop(self, frame: Frame, reply: Reply) -> None:
        """Give the memory of a request back that ends early; harmless when there is none."""
        self._let_go()
        reply("dropped")

    def _inspect(self, frame: Frame, reply: Reply) -> None:
        reply("inspected", **usage())

    def _let_go(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            node.close()

    def _measure_compute(self, frame: Frame, reply: Reply) -> None:
        reply("measured_compute", rates=gauge.measure(frame["sizes"], lambda: linkgauge.meet(self._transport)))

    def _measure_link(self, frame: Frame, reply: Reply) -> None:
        found = linkgauge.measure_links(self._transport, **frame.fields)
        links = [[peer, found.bytes_s[peer], found.latency_s[peer]] for peer in sorted(found.bytes_s)]
        reply("measured_link", links=links, port_bytes_s=found.port_bytes_s)

    def _current(self) -> Node:
        if self._node is None:
            raise TransportError("a request's message came without a plan")
        return self._node

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


def _tell_progress(reply: Reply, held: Callable[[], int], chunk: int) -> None:
    reply("progress", chunk=chunk, held_tokens=held())


def _bytes(logits: torch.Tensor) -> bytes:
    return logits.to(torch.float32).contiguous().numpy().tobytes()
