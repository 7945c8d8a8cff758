"""One node's transfers: what is posted, what has arrived, which buffer it lands in. KV travels pool to pool where it
lies together.
"""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mcf.attn import kernels
from mcf.dist.arrivals import Arrivals
from mcf.dist.store import KvStore
from mcf.dist.transport import Handle, Transport
from mcf.schedule import Schedule
from mcf.schedule.steps import (
    COMPUTE,
    DECODE,
    FETCHED_KV,
    KEEP,
    KV,
    NEW_KV,
    NIC,
    QUERY,
    QUERY_BYTES,
    RECV,
    SEND,
    STATE,
    STATE_BYTES,
    Step,
)
from mcf.trace import TraceBuilder

Key = tuple[int, int, int]  # row, layer, head group


class Transfers:
    """Posts sends and receives of one node and knows which have ended.

    In decode, where no receive is forwarded, the calling thread itself waits (`direct`): no thread hand-over per layer.
    """

    def __init__(
        self,
        sched: Schedule,
        node: int,
        store: KvStore,
        transport: Transport,
        *,
        dtype: torch.dtype,
        trace: TraceBuilder,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sched, self.node, self.store, self.transport = sched, node, store, transport
        self.dtype, self.trace, self.clock = dtype, trace, clock
        self.steps = {row: sched.step(row) for row in sched.node_rows(node)}
        self.keys = {row: self._groups(step) for row, step in self.steps.items()}
        self.arrivals = Arrivals(clock)
        self.direct = False
        self._posted: dict[Key, float] = {}
        self._handles: dict[Key, Handle] = {}
        self._arrived: set[Key] = set()
        self._staged: dict[Key, tuple[Tensor, list[Tensor]]] = {}  # buffer, and where a receive's payload belongs
        self._buffers: dict[tuple[int, int], Tensor] = {}

    # -- posting --------------------------------------------------------------------------------------------------

    def post_recv(self, row: int, step: Step, layer: int) -> None:
        """Post one layer of a receive; takes its memory when it is the first."""
        if step.payload == KV:
            self._take(row, step, layer)
            targets = self._kv_targets(row, step, layer)
        else:
            targets = [(0, [self.buffer(row, layer)])]
        for group, views in targets:
            tensor = views[0]
            if len(views) > 1:
                tensor = self._stage((row, layer, group), views, is_target=True)
            tag = self._tag(step.ref, layer, group)
            self._post((row, layer, group), self.transport.irecv(tensor, step.dst, tag, purpose(step)))

    def post_send(self, row: int, step: Step, layer: int, payload: Tensor | None) -> None:
        """Post one layer of a send: KV from where it lies, or `payload` (queries or a packed state)."""
        parts: Sequence[tuple[int, Sequence[Tensor]]] = [(0, [payload])] if payload is not None else []
        for group, views in parts or list(self.store.wire_parts(step, layer)):
            tensor = views[0] if len(views) == 1 else self._stage((row, layer, group), views, is_target=False)
            start = self.clock()
            handle = self.transport.isend(tensor, step.dst, self._tag(row, layer, group), purpose(step))
            self._post((row, layer, group), handle)
            self.trace.event(
                kind=SEND, lane=NIC, stage=step.stage, node=self.node, t_start=start, t_end=start, row=row,
                peer=step.dst, chunk=step.chunk, layer=layer, purpose=purpose(step),
                payload_bytes=tensor.numel() * tensor.itemsize,
            )  # fmt: skip

    def buffer(self, row: int, layer: int) -> Tensor:
        """The buffer of a query or state receive, made once per row and parity of the layer."""
        slot = row, layer % 2
        if slot not in self._buffers:
            step = self.steps[row]
            tokens = 1 if step.stage == DECODE else int(self.sched.tokens[step.chunk, step.q])
            heads = (step.h_hi - step.h_lo) * self.sched.meta.group_heads
            width = self.sched.meta.head_dim + (kernels.STATE_EXTRA if step.payload == STATE else 0)
            dtype = torch.float32 if step.payload == STATE else self.dtype
            self._buffers[slot] = torch.empty(tokens, heads, width, dtype=dtype)
        return self._buffers[slot]

    # -- asking ---------------------------------------------------------------------------------------------------

    def is_here(self, recv: int, layer: int) -> bool:
        """Say whether one layer of a receive has arrived (`direct`: block until it has)."""
        keys = [(recv, layer, g) for g in self.keys[recv]]
        missing = [key for key in keys if key not in self._arrived]
        if self.direct:
            self._wait_for(missing)
            return True
        if not all(key in self._posted and self.arrivals.has(key) for key in missing):
            return False
        for key in missing:
            self._end(key, self.arrivals.pop(key))
        return True

    def is_sent(self, row: int, layer: int) -> bool:
        """Say whether one layer of a started send has left its memory (`direct`: block until it has)."""
        keys = [(row, layer, g) for g in self.keys[row]]
        if self.direct:
            self._wait_for([key for key in keys if key in self._handles])
            return True
        return all(key not in self._posted or self.arrivals.has(key) for key in keys)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Block until `ready()`; asked again after each transfer's end."""
        self.arrivals.wait_until(ready)

    def finish(self) -> bool:
        """Wait for everything posted, then forget it; says whether there was anything to wait for."""
        waited = bool(self._posted)
        if self.direct:
            self._wait_for(list(self._handles))
        else:
            self.arrivals.wait_until(lambda: all(self.arrivals.has(key) for key in self._posted))
            for key in list(self._posted):
                self._end(key, self.arrivals.pop(key))
        self._arrived.clear()
        return waited

    def close(self) -> None:
        """Let the waiter threads go."""
        self.arrivals.close()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _groups(self, step: Step) -> range:
        if step.payload != KV:
            return range(1)
        groups = self.sched.groups(step.h_lo, step.h_hi)
        if step.kind in (SEND, RECV):
            return range(groups.start, groups.stop)
        return range(1)

    def _take(self, row: int, step: Step, layer: int) -> None:
        if step.hold == KEEP:
            if layer == 0:
                self.store.take_keep(step)
        elif row not in self.store.slots:
            self.store.take_stream(row, step)

    def _kv_targets(self, row: int, step: Step, layer: int) -> list[tuple[int, list[Tensor]]]:
        if step.hold == KEEP:
            return list(self.store.wire_parts(step, layer))
        slots = self.store.slots[row]
        return [(g, [slots.rows(g, layer, self.store.row_shape(g))]) for g in slots.tokens]

    def _post(self, key: Key, handle: Handle) -> None:
        self._posted[key] = self.clock()
        if self.direct:
            self._handles[key] = handle
        else:
            self.arrivals.post(key, handle)

    def _wait_for(self, keys: Sequence[Key]) -> None:
        """Block the calling thread until these have ended; that is exposed communication."""
        for key in keys:
            step, start = self.steps[key[0]], self.clock()
            self._handles.pop(key).wait()
            end = self.clock()
            self._end(key, end)
            self.trace.event(
                kind=step.kind, lane=COMPUTE, stage=step.stage, node=self.node, t_start=start, t_end=end, row=key[0],
                chunk=step.chunk, layer=key[1], wait=True,
            )  # fmt: skip

    def _end(self, key: Key, end: float) -> None:
        """Take note of an ended transfer; scatter what was staged."""
        posted, step = self._posted.pop(key), self.steps[key[0]]
        if key in self._staged:
            buffer, views = self._staged.pop(key)
            at = 0
            for view in views:
                view.copy_(buffer[at : at + view.numel()].view(view.shape))
                at += view.numel()
            self.store.pool.spare.give(buffer)
        if step.kind == RECV:
            self._arrived.add(key)
            self.trace.event(
                kind=RECV, lane=NIC, stage=step.stage, node=self.node, t_start=posted, t_end=end, row=key[0],
                peer=step.dst, chunk=step.chunk, layer=key[1], purpose=purpose(step),
            )  # fmt: skip

    def _stage(self, key: Key, views: Sequence[Tensor], *, is_target: bool) -> Tensor:
        """A contiguous stand-in of scattered memory until its transfer ends, filled unless it is a receive's target."""
        self._end_staged()
        buffer = self.store.pool.spare.take(sum(view.numel() for view in views))
        self._staged[key] = buffer, list(views) if is_target else []
        tensor = buffer.view(-1, *views[0].shape[1:])
        if not is_target:
            torch.cat(list(views), out=tensor)
        return tensor

    def _end_staged(self) -> None:
        """Give back the buffers of sends that have left."""
        for key in [k for k in self._staged if self.steps[k[0]].kind == SEND and self.arrivals.has(k)]:
            self._end(key, self.arrivals.pop(key))

    def _tag(self, send_row: int, layer: int, group: int) -> int:
        """One tag per send, layer and head group: both ends know all three."""
        meta = self.sched.meta
        return ((send_row * meta.num_layers + layer) * meta.num_groups + group) % (1 << 31)


def purpose(step: Step) -> int:
    """The purpose code of a send or receive."""
    if step.payload == KV:
        return NEW_KV if step.c_lo >= step.chunk else FETCHED_KV
    return QUERY_BYTES if step.payload == QUERY else STATE_BYTES
