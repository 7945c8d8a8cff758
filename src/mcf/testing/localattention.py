"""The real runtime on given tensors, in one process: an executor for `check_executor`, compared with `mcf.ref`.

Every node is a thread with its own pool, directory and transport. There is no model: q, k and v are given, as to `ref`.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mcf.dist.local import LocalTransport, LocalWorld
from mcf.dist.pool import KvPool
from mcf.dist.runtime import NodeRuntime
from mcf.dist.transport import Counters
from mcf.ref import Residency
from mcf.schedule import Report, Schedule, verify
from mcf.schedule.kv import ABSENT
from mcf.testing.oracle import Array
from mcf.trace import Trace, concat

Change = tuple[int, int, int, int, int]
_DTYPES = {4: torch.float32, 2: torch.bfloat16}
_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class LocalOutcome:
    """What the nodes did; lists over nodes are in rank order.

    `out` [L, S+T, Hq, d] float32. `residency` has the states of each node's directory after each chunk's loop and after
    convergence. `counters` are bytes sent per (src, dst, purpose); `peak_bytes` the pools' high-water marks.
    `certificate` holds each node's own directory after convergence.
    """

    out: Array
    trace: Trace
    residency: Residency
    peak_bytes: tuple[int, ...]
    counters: Counters
    certificate: list[list[dict[str, int]]]


def local_attention(
    schedule: Schedule,
    q: Array,
    k: Array,
    v: Array,
    *,
    decode_tokens: int = 0,
    seed: int | None = None,
    hold_s: float = 0.0,
) -> LocalOutcome:
    """Run a legal schedule without multicast on given tensors, as `mcf.ref.run` does, but by the real runtime.

    q [L, S+T, Hq, d], k and v [L, S+T, Hkv, d], T = `decode_tokens`; they are cast to the dtype that the schedule's KV
    bytes stand for. `seed` and `hold_s` delay and reorder transfers (see `LocalWorld`). Pools start as NaN.
    """
    report = verify(schedule)
    dtype = _DTYPES[int(schedule.meta.kv_bytes)]
    tensors = [torch.from_numpy(np.ascontiguousarray(x)).to(dtype) for x in (q, k, v)]
    out = torch.full_like(tensors[0], torch.nan, dtype=torch.float32)
    world = LocalWorld(schedule.meta.num_nodes, seed=seed, timeout_s=_TIMEOUT_S, hold_s=hold_s)

    def run_node(transport: LocalTransport) -> _Worker:
        worker = _Worker(schedule, report, transport, tensors, out)
        try:
            worker.run(decode_tokens)
        finally:
            worker.runtime.close()
        return worker

    return _outcome(schedule, world.run(run_node), out)


def _outcome(schedule: Schedule, workers: "list[_Worker]", out: Tensor) -> LocalOutcome:
    meta = schedule.meta
    counters: Counters = {}
    for worker in workers:
        counters |= {key: n for key, n in worker.transport.counters.items() if key[0] == worker.node}
    return LocalOutcome(
        out=out.numpy(),
        trace=concat([worker.runtime.trace.to_trace({"executor": "local"}) for worker in workers]),
        residency=Residency(
            shape=(meta.num_chunks, meta.num_nodes, meta.num_groups),
            changes=tuple(tuple(worker.changes) for worker in workers),
        ),
        peak_bytes=tuple(worker.runtime.pool.peak_bytes for worker in workers),
        counters=counters,
        certificate=[worker.certificate for worker in workers],
    )


class _Worker:
    """One node: hands its own rows of q, k and v to the runtime, and nothing else."""

    def __init__(
        self, sched: Schedule, report: Report, transport: LocalTransport, tensors: list[Tensor], out: Tensor
    ) -> None:
        self.sched, self.meta, self.node, self.transport = sched, sched.meta, transport.rank, transport
        self.tensors, self.out = tensors, out
        pool = KvPool(
            sched.meta,
            main_bytes=report.page_bytes[self.node],
            slot_bytes=report.slot_bytes[self.node],
            dtype=tensors[0].dtype,
            fill=math.nan,
        )
        self.runtime = NodeRuntime(sched, self.node, pool, transport, dtype=tensors[0].dtype)
        self.changes: list[Change] = []
        self.certificate: list[dict[str, int]] = []
        self._seen: dict[tuple[int, int, int], int] = {}

    def run(self, decode_tokens: int) -> None:
        """Prefill, convergence, decode."""
        for chunk in range(self.meta.num_chunks):
            self._prefill(chunk)
            self._note_changes(chunk)
        self.runtime.converge()
        self.certificate = self.runtime.store.certificate()
        self._note_changes(self.meta.num_chunks)
        for token in range(decode_tokens):
            self._decode(token)

    def _prefill(self, chunk: int) -> None:
        self.runtime.begin_chunk(chunk)
        positions = [i for lo, hi in self.sched.spans(chunk, self.node) for i in range(lo, hi)]
        if positions:
            self._layers(positions, keep=True)
        else:
            self.runtime.walk()
        self.runtime.end_chunk()

    def _decode(self, token: int) -> None:
        self.runtime.begin_token(token)
        self._layers([self.meta.prompt_tokens + token], keep=self.node == self.meta.num_nodes - 1)
        self.runtime.end_token()

    def _layers(self, positions: list[int], *, keep: bool) -> None:
        for layer in range(self.meta.num_layers):
            q, k, v = (x[layer, positions] for x in self.tensors)
            out = self.runtime.attention(layer, q, k, v, self.meta.head_dim**-0.5)
            if keep:
                self.out[layer, positions] = out.float()

    def _note_changes(self, chunk: int) -> None:
        """Compare the directory with that of the chunk before; what changed is noted at the last row of the chunk."""
        steps = self.sched.steps[self.sched.node_rows(self.node).start : self.sched.node_rows(self.node).stop]
        position = int((steps["chunk"] * 3 + steps["stage"] <= chunk * 3 + (chunk == self.meta.num_chunks)).sum()) - 1
        now = dict(self.runtime.store.states)
        for cell in sorted(self._seen.keys() | now.keys()):
            state = now.get(cell, ABSENT)
            if state != self._seen.get(cell, ABSENT):
                self.changes.append((position, *cell, state))
        self._seen = now


__all__ = ["LocalOutcome", "local_attention"]
