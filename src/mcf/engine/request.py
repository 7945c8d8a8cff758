"""One request's life on the workers: plan, prefill, converge, decode, finish; or an early end that leaves them whole.

1. Between any two frames the caller may end the request: `should_stop`, the time limit, an exception out of `on_text`
   or `on_progress`, Ctrl-C. The workers then stop behind the same chunk or token, give the request's memory back, and
   are ready for the next one. If that takes longer than `patience_s`, or Ctrl-C comes again, they are ended.
2. What a worker reports, its loss and its silence end all workers (`mcf.dist.world`).
"""

import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mcf.dist import faults
from mcf.dist.control import Frame
from mcf.dist.limit import Limit
from mcf.dist.process import ctrl_c_held_back
from mcf.dist.program import parts_of_chunk
from mcf.dist.watch import TICK_S
from mcf.dist.worker import versions
from mcf.engine.planner import Plan
from mcf.engine.result import PURPOSES, Result, certify
from mcf.engine.sampler import Sampler
from mcf.engine.timeline import join_traces
from mcf.errors import RequestCancelledError, RunError, TransportError
from mcf.trace import Trace

if TYPE_CHECKING:
    from mcf.engine.llm import LLM

OnProgress = Callable[[str, float, float], None]
OnText = Callable[[str], None]
ShouldStop = Callable[[], bool]


class Request:
    """Runs one planned prompt on the workers of an LLM."""

    def __init__(
        self,
        llm: "LLM",
        ids: list[int],
        plan: Plan,
        sampler: Sampler,
        stop_ids: frozenset[int],
        *,
        start_s: float,
        limit: Limit | None,
        should_stop: ShouldStop | None,
    ) -> None:
        self.llm, self.world, self.ids, self.plan = llm, llm.world, ids, plan
        self.sampler, self.stop_ids = sampler, stop_ids
        self.start_s, self.limit, self.should_stop = start_s, limit, should_stop
        self.num_workers = llm.world.num_workers
        self.held = np.zeros((plan.schedule.meta.num_chunks, self.num_workers), dtype=np.int64)
        self.new_ids: list[int] = []
        self.texts: list[str] = []
        self.token_s: list[float] = []

    def run(self, on_text: OnText, on_progress: OnProgress) -> Result:
        """Run to the end. Raises what the callbacks raise, RequestCancelledError, and RunError kinds."""
        try:
            self._ship()
            logits = self._prefill(on_progress)
            first = self.sampler.pick(logits)
            ttft_s = time.monotonic() - self.start_s
            certificate = self._converge()
            reason = self._decode(first, on_text)
            decode_s = time.monotonic() - self.start_s - ttft_s
            return self._finish(reason, ttft_s, decode_s, certificate)
        except BaseException as exc:
            self._leave_in_step(exc)
            raise

    # -- phases ---------------------------------------------------------------------------------------------------

    def _ship(self) -> None:
        self.world.phase = "planning"
        report = self.plan.report
        poison = {"poison": True} if self.llm._poison else {}
        with self._shielded():
            for rank in range(self.num_workers):
                sizes = {"page_bytes": report.page_bytes[rank], "slot_bytes": report.slot_bytes[rank]}
                self.world.send(rank, "plan", self.plan.data, sha256=self.plan.sha256, **sizes, **poison)
        self._collect("planned")

    def _prefill(self, on_progress: OnProgress) -> NDArray[np.float32]:
        self.world.phase = "prefill"
        chunks_done = [0] * self.num_workers
        tokens = np.concatenate([[0], self.plan.schedule.tokens.sum(1).cumsum()]).tolist()

        def on_frame(rank: int, frame: Frame) -> None:
            self._mark_parts(frame["chunk"])
            chunks_done[rank] = frame["chunk"] + 1
            self.held[frame["chunk"], rank] = frame["held_tokens"]
            on_progress("prefill", tokens[min(chunks_done)], tokens[-1])

        on_progress("prefill", 0, tokens[-1])
        self._send_all("prefill", np.array(self.ids, dtype="<i4").tobytes())
        done = self._collect("prefilled", other="progress", on_other=on_frame)
        found = [frame.payload for frame in done.values() if frame.payload]
        if len(found) != 1:
            raise RunError(f"{len(found)} workers sent first logits: expected one")
        return np.frombuffer(found[0], dtype=np.float32)

    def _converge(self) -> dict[str, Any]:
        self.world.phase = "convergence"
        self._send_all("converge")
        frames = self._collect("converged")
        meta = self.plan.schedule.meta
        blocks = [frames[rank]["blocks"] for rank in range(self.num_workers)]
        return certify(blocks, num_tokens=len(self.ids), head_cuts=meta.head_cuts, page_tokens=meta.page_tokens)

    def _decode(self, first: int, on_text: OnText) -> str:
        self.world.phase = "decode"
        stream = self.llm.tokenizer.decode_stream()
        ids, token = self.new_ids, first
        limit = self.plan.schedule.meta.max_new_tokens
        while True:
            ids.append(token)
            if token in self.stop_ids:
                reason = "stop"
                break
            self._say(stream.push(token), on_text)
            if len(ids) >= limit:
                reason = "length"
                break
            begin_s = time.monotonic()
            token = self.sampler.pick(self._step(token, len(ids) - 1))
            self.token_s.append(time.monotonic() - begin_s)
        self._say(stream.finish(), on_text)
        return reason

    def _say(self, piece: str, on_text: OnText) -> None:
        if piece:
            self.texts.append(piece)
            on_text(piece)

    def _step(self, token: int, index: int) -> NDArray[np.float32]:
        with self._shielded():
            for rank in range(self.num_workers):
                self.world.send(rank, "decode", token=token, index=index, want_logits=rank == 0)
        return np.frombuffer(self._collect("logits", ranks=(0,))[0].payload, dtype=np.float32)

    def _finish(self, reason: str, ttft_s: float, decode_s: float, certificate: dict[str, Any]) -> Result:
        self._send_all("finish")
        frames = self._collect("finished")
        self.world.phase = "idle"
        trace = join_traces([Trace.from_bytes(frames[r].payload) for r in range(self.num_workers)], self.plan.schedule)
        totals = dict.fromkeys(PURPOSES, 0)
        for rank, frame in frames.items():
            for src, _, purpose, num_bytes in frame["counters"]:
                if src == rank:
                    totals[PURPOSES[purpose - 1]] += num_bytes
        seen = self.plan.schedule.tokens.sum(1).cumsum() * self.plan.schedule.meta.num_groups
        parts = trace.breakdown(trace.last_node(), self.start_s, self.start_s + ttft_s)
        return Result(
            text="".join(self.texts),
            token_ids=self.new_ids,
            prompt_tokens=len(self.ids),
            ttft_s=ttft_s,
            decode_s=decode_s,
            token_s=self.token_s,
            breakdown=parts,
            bytes=totals,
            peak_kv_bytes=[frames[rank]["peak_bytes"] for rank in range(self.num_workers)],
            kv_budget_bytes=self.llm.kv_memory_bytes,
            replica_factor=(self.held.sum(1) / seen).round(6).tolist(),
            certificate=certificate,
            policy=self.llm.policy,
            workers=self.num_workers,
            chunk_tokens=self.plan.chunk_tokens,
            finish_reason=reason,
            versions=versions(),
            trace=trace,
            schedule=self.plan.schedule,
        )

    # -- frames: between two of them the caller may end the request -------------------------------------------------

    def _shielded(self) -> AbstractContextManager[None]:
        """Let Ctrl-C wait a moment, unless it ends the workers anyway."""
        return ctrl_c_held_back() if self.llm.patience_s > 0 else nullcontext()

    def _send_all(self, type: str, payload: bytes = b"", /, **fields: Any) -> None:
        with self._shielded():  # never half a frame, and never to one worker alone
            self.world.broadcast(type, payload, **fields)

    def _receive(self, timeout_s: float = TICK_S) -> tuple[int, Frame] | None:
        with self._shielded():
            return self.world.recv_any(timeout_s)

    def _collect(
        self,
        type: str,
        *,
        ranks: Collection[int] | None = None,
        other: str = "",
        on_other: Callable[[int, Frame], None] | None = None,
    ) -> dict[int, Frame]:
        """Wait for one frame `type` from each of `ranks` (all by default); frames `other` go to `on_other`."""
        wanted = self.num_workers if ranks is None else len(ranks)
        found: dict[int, Frame] = {}
        while len(found) < wanted:
            self._check()
            if (got := self._receive()) is None:
                continue
            rank, frame = got
            if frame.type == type:
                found[rank] = frame
            elif frame.type == other and on_other is not None:
                on_other(rank, frame)
            else:
                self._refuse(rank, frame, type)
        return found

    def _refuse(self, rank: int, frame: Frame, expected: str) -> None:
        why = f"worker {rank} sent {frame.type!r} during {self.world.phase}; expected {expected!r}"
        self.world.kill(why)
        raise TransportError(why)

    def _check(self) -> None:
        if self.limit is not None:
            self.limit.check(self.world.phase)
        if self.should_stop is not None and self.should_stop():
            text, ids = "".join(self.texts), list(self.new_ids)
            raise RequestCancelledError(self.world.phase, text=text, token_ids=ids)

    def _mark_parts(self, chunk: int) -> None:
        if faults.is_armed():
            for part in parts_of_chunk(self.plan.schedule, chunk):
                faults.point(part)

    # -- the early end --------------------------------------------------------------------------------------------

    def _leave_in_step(self, why: BaseException) -> None:
        """Have all workers give the request up at one place; end them where that takes too long. Raises nothing new."""
        if self.world.is_closed:
            return
        if self.llm.patience_s <= 0:
            self.world.kill(_in_words(why))
            return
        try:
            until_s = time.monotonic() + self.llm.patience_s
            in_step = self._brake(until_s) and self._drop(until_s)
        except RunError:
            return  # a worker was lost meanwhile, and with it the world
        except BaseException:
            self.world.kill("Ctrl-C came while a request was given up")
            raise
        if in_step:
            self.world.phase = "idle"
        else:
            self.world.kill(f"a request that had ended early ({_in_words(why)}) did not leave them in time")

    def _brake(self, until_s: float) -> bool:
        """Stop prefill behind the same chunk everywhere (`mcf.dist.brake`)."""
        if self.world.phase != "prefill":
            return True
        self._send_all("hold")
        held = self._await("held", until_s)
        if held is not None:
            self._send_all("stop_after", chunk=max(frame["chunk"] for frame in held.values()))
        return held is not None

    def _drop(self, until_s: float) -> bool:
        self._send_all("drop")
        return self._await("dropped", until_s) is not None

    def _await(self, type: str, until_s: float) -> dict[int, Frame] | None:
        """Wait for a frame `type` of every worker and forget all others; None when it takes too long."""
        found: dict[int, Frame] = {}
        while len(found) < self.num_workers:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return None
            if (got := self._receive(min(left_s, TICK_S))) is not None and got[1].type == type:
                found[got[0]] = got[1]
        return found


def _in_words(exc: BaseException) -> str:
    return " ".join(str(exc).split()) or type(exc).__name__
