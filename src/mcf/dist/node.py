"""One node of one request: the model, the runtime and the pool together, driven chunk by chunk and token by token."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mcf.dist import faults
from mcf.dist.hf import LoadedModel
from mcf.dist.pool import KvPool
from mcf.dist.runtime import NodeRuntime
from mcf.dist.transport import Transport
from mcf.schedule import Schedule
from mcf.trace import Trace

OnChunk = Callable[[int], None]
MayRun = Callable[[int], bool]


class Node:
    """Runs one request on one node, in a process of its own or as a thread among others.

    `page_bytes` and `slot_bytes` are the pool's capacities; `fill` pre-fills its memory (tests use NaN).
    """

    def __init__(
        self,
        model: LoadedModel,
        sched: Schedule,
        transport: Transport,
        *,
        page_bytes: int,
        slot_bytes: int,
        fill: float | None = None,
    ) -> None:
        self.model, self.sched, self.rank = model, sched, transport.rank
        self.pool = KvPool(sched.meta, main_bytes=page_bytes, slot_bytes=slot_bytes, dtype=model.dtype, fill=fill)
        self.runtime = NodeRuntime(sched, self.rank, self.pool, transport, dtype=model.dtype, scale=model.scale)

    def prefill(
        self, token_ids: Sequence[int], on_chunk: OnChunk | None = None, may_run: MayRun | None = None
    ) -> Tensor | None:
        """Run all chunks of the prompt; returns the first logits [V] on the node that holds the last prompt token.

        `on_chunk` is told each chunk that has run; `may_run` is asked before each, and ends the prefill by a no.
        """
        ids = torch.as_tensor(list(token_ids), dtype=torch.int64)
        logits = None
        for chunk in range(self.sched.meta.num_chunks):
            if may_run is not None and not may_run(chunk):
                return None
            faults.point("prefill")
            logits = self._chunk(chunk, ids)
            if on_chunk is not None:
                on_chunk(chunk)
        return logits

    def converge(self) -> list[dict[str, int]]:
        """Retire every replica; returns the blocks that this node's own directory holds then."""
        faults.point("convergence")
        self.runtime.converge()
        return self.runtime.store.certificate()

    def decode(self, token_id: int, index: int) -> Tensor:
        """Compute the generated token at position S + index; returns the logits [V] that follow it."""
        faults.point("decode")
        self.runtime.begin_token(index)
        position = torch.tensor([self.sched.meta.prompt_tokens + index])
        logits = self.model.forward(torch.tensor([token_id]), position, self.runtime, logits_row=0)
        self.runtime.end_token()
        assert logits is not None
        return logits

    def trace(self) -> Trace:
        """What happened on this node so far."""
        return self.runtime.trace.to_trace({"node": self.rank})

    def close(self) -> None:
        """Let the runtime's threads go."""
        self.runtime.close()

    def _chunk(self, chunk: int, ids: Tensor) -> Tensor | None:
        self.runtime.begin_chunk(chunk)
        for part in self.runtime.loop.parts:
            faults.point(part)
        spans = self.sched.spans(chunk, self.rank)
        logits = None
        if spans:
            positions = torch.cat([torch.arange(lo, hi) for lo, hi in spans])
            is_last = spans[-1][1] == self.sched.meta.prompt_tokens
            row = len(positions) - 1 if is_last else None
            logits = self.model.forward(ids[positions], positions, self.runtime, logits_row=row)
        else:
            self.runtime.walk()
        self.runtime.end_chunk()
        return logits
