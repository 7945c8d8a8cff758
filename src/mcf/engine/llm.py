"""The composition root: a loaded model on a world of workers that stays up between calls."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mcf.dist.worker import versions
from mcf.dist.world import World, threads_per_worker
from mcf.engine.planner import AUTO, DEFAULT_POLICY, Plan, check_policy, check_window, check_workers, make_plan
from mcf.engine.result import PURPOSES, Result, certify
from mcf.engine.sampler import Sampler
from mcf.engine.source import ModelSource, resolve
from mcf.engine.timeline import join_traces
from mcf.engine.tokens import Tokenizer, load_tokenizer
from mcf.errors import PromptError, RunError, UserError
from mcf.model import DTYPE_BYTES, ModelShape
from mcf.trace import Trace
from mcf.units import parse_bytes, parse_tokens

OnProgress = Callable[[str, float, float], None]
OnText = Callable[[str], None]


def load(
    model: str | Path,
    *,
    workers: int = 2,
    policy: str = DEFAULT_POLICY,
    kv_memory: str | int | None = None,
    chunk_tokens: str | int = AUTO,
    dtype: str = "float32",
    on_progress: OnProgress | None = None,
    before_weights: Callable[["LLM"], object] | None = None,
    fault: str | None = None,
    poison: bool = False,
) -> "LLM":
    """Load a model on `workers` local worker processes and keep them until `close`.

    `model`: a Hugging Face folder, a GGUF file, a hub id, or "demo". `kv_memory`: KV budget per worker, bytes or text
    such as "256MiB" (None: no limit). `chunk_tokens`: prompt tokens per chunk over all workers, or "auto".
    `on_progress(stage, done, total)` reports `hash`, `tokenizer`, `convert`, `download`, `load`. `before_weights(llm)`
    is called when prompts can be encoded and planned but no weight has moved: what it raises ends the loading. `fault`
    and `poison` are for tests. Raises UserError and RunError kinds.
    """
    check_policy(policy)
    check_workers(workers)
    if dtype not in DTYPE_BYTES:
        raise UserError(f"got dtype {dtype!r}: expected one of {', '.join(sorted(DTYPE_BYTES))}")
    budget = None if kv_memory is None else parse_bytes(kv_memory)
    chunk: str | int = AUTO if chunk_tokens == AUTO else parse_tokens(chunk_tokens)
    source = resolve(str(model), progress=on_progress)
    shape = source.shape(dtype)
    report = on_progress or _silent
    report("load", 0, workers)
    with ThreadPoolExecutor(1) as pool:  # the tokenizer's imports take seconds: meanwhile the workers start
        tokenizer = pool.submit(load_tokenizer, source)
        world = World.start(workers, num_threads_per_worker=threads_per_worker(workers), fault=fault)
        try:
            llm = LLM(
                world,
                source,
                shape,
                tokenizer.result(),
                policy=policy,
                kv_memory_bytes=budget,
                chunk_tokens=chunk,
                poison=poison,
            )
            if before_weights is not None:
                before_weights(llm)
            _load_workers(world, source, dtype, report)
            return llm
        except BaseException:
            world.close()
            raise


def _load_workers(world: World, source: ModelSource, dtype: str, report: OnProgress) -> None:
    world.phase = "loading"
    threads = threads_per_worker(world.num_workers)
    world.broadcast("load", folder=str(source.folder.resolve()), dtype=dtype, num_threads=threads)
    for rank in range(world.num_workers):
        world.wait_for("loaded", [rank])
        report("load", rank + 1, world.num_workers)
    world.phase = "idle"


class LLM:
    """A model on running workers. Use as a context manager or call `close`; one request at a time."""

    def __init__(
        self,
        world: World,
        source: ModelSource,
        shape: ModelShape,
        tokenizer: Tokenizer,
        *,
        policy: str,
        kv_memory_bytes: int | None,
        chunk_tokens: int | str,
        poison: bool = False,
    ) -> None:
        self.world, self.source, self.shape, self.tokenizer = world, source, shape, tokenizer
        self.policy, self.kv_memory_bytes, self.chunk_tokens = policy, kv_memory_bytes, chunk_tokens
        self._poison = poison

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; harmless when called again."""
        self.world.close()

    def encode(self, prompt: str, *, raw: bool = False) -> list[int]:
        """Token ids of a prompt: through the chat template where there is one, else (or with `raw`) as it stands."""
        if raw or not self.tokenizer.has_chat_template:
            return self.tokenizer.encode_raw(prompt)
        return self.tokenizer.encode_chat(prompt)

    def plan(self, prompt_tokens: int, max_tokens: int = 64) -> Plan:
        """The verified plan that `generate` would ship for a prompt of that many tokens."""
        return make_plan(
            self.shape,
            prompt_tokens=prompt_tokens,
            num_workers=self.world.num_workers,
            policy=self.policy,
            chunk_tokens=self.chunk_tokens,
            kv_memory_bytes=self.kv_memory_bytes,
            max_tokens=min(max_tokens, self.shape.max_positions - prompt_tokens),
        )

    def generate(
        self,
        prompt: str | list[int],
        *,
        max_tokens: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        raw: bool = False,
        ignore_eos: bool = False,
        on_text: OnText | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result:
        """Run one prompt (text, or token ids as they are) and return the finished Result.

        `max_tokens` is cut to what the model's window leaves. `on_text` gets text as it becomes certain;
        `on_progress("prefill", done, total)` counts prompt tokens. Raises PromptError, InfeasibleError, or a RunError
        after which the workers are gone.
        """
        start = time.monotonic()
        sampler = Sampler(temperature=temperature, top_p=top_p, seed=seed)
        ids, plan = self.prepare(prompt, max_tokens=max_tokens, raw=raw)
        stop_ids = frozenset() if ignore_eos else self.tokenizer.eos_ids
        return _Request(self, ids, plan, sampler, stop_ids, start).run(on_text or _ignore, on_progress or _silent)

    def prepare(self, prompt: str | list[int], *, max_tokens: int = 64, raw: bool = False) -> tuple[list[int], Plan]:
        """Check a request: its token ids and verified plan, without running anything. Raises as `generate`."""
        if max_tokens < 1:
            raise UserError(f"got max_tokens {max_tokens}: expected at least 1")
        ids = self._ids(prompt, raw)
        return ids, self.plan(len(ids), max_tokens)

    def _ids(self, prompt: str | list[int], raw: bool) -> list[int]:
        if isinstance(prompt, str) and not prompt.strip():
            raise PromptError("got an empty prompt: expected some text")
        ids = self.encode(prompt, raw=raw) if isinstance(prompt, str) else list(prompt)
        check_window(self.shape, len(ids))
        if min(ids) < 0 or max(ids) >= self.shape.vocab_size:
            raise PromptError(f"got a token id outside 0..{self.shape.vocab_size - 1}: expected ids of this model")
        return ids


class _Request:
    """One request's life on the workers: plan, prefill, converge, decode, finish."""

    def __init__(
        self, llm: LLM, ids: list[int], plan: Plan, sampler: Sampler, stop_ids: frozenset[int], start: float
    ) -> None:
        self.llm, self.world, self.ids, self.plan, self.sampler, self.stop_ids = (
            llm,
            llm.world,
            ids,
            plan,
            sampler,
            stop_ids,
        )
        self.start = start
        self.num_workers = llm.world.num_workers
        self.held = np.zeros((plan.schedule.meta.num_chunks, self.num_workers), dtype=np.int64)

    def run(self, on_text: OnText, on_progress: OnProgress) -> Result:
        self._ship()
        logits = self._prefill(on_progress)
        first = self.sampler.pick(logits)
        ttft_s = time.monotonic() - self.start
        certificate = self._converge()
        ids, reason, text = self._decode(first, on_text)
        decode_s = time.monotonic() - self.start - ttft_s
        return self._finish(text, ids, reason, ttft_s, decode_s, certificate)

    def _ship(self) -> None:
        report = self.plan.report
        for rank in range(self.num_workers):
            sizes = {"page_bytes": report.page_bytes[rank], "slot_bytes": report.slot_bytes[rank]}
            poison = {"poison": True} if self.llm._poison else {}
            self.world.send(rank, "plan", self.plan.data, sha256=self.plan.sha256, **sizes, **poison)
        self.world.wait_for("planned")

    def _prefill(self, on_progress: OnProgress) -> NDArray[np.float32]:
        self.world.phase = "prefill"
        chunks_done = [0] * self.num_workers
        tokens = np.concatenate([[0], self.plan.schedule.tokens.sum(1).cumsum()]).tolist()

        def on_message(rank: int, frame: Any) -> None:
            chunks_done[rank] = frame["chunk"] + 1
            self.held[frame["chunk"], rank] = frame["held_tokens"]
            on_progress("prefill", tokens[min(chunks_done)], tokens[-1])

        on_progress("prefill", 0, tokens[-1])
        self.world.broadcast("prefill", np.array(self.ids, dtype="<i4").tobytes())
        done = self.world.wait_for("prefilled", on_message=on_message)
        found = [frame.payload for frame in done.values() if frame.payload]
        if len(found) != 1:
            raise RunError(f"{len(found)} workers sent first logits: expected one")
        return np.frombuffer(found[0], dtype=np.float32)

    def _converge(self) -> dict[str, Any]:
        self.world.phase = "convergence"
        self.world.broadcast("converge")
        frames = self.world.wait_for("converged")
        meta = self.plan.schedule.meta
        blocks = [frames[rank]["blocks"] for rank in range(self.num_workers)]
        return certify(blocks, num_tokens=len(self.ids), head_cuts=meta.head_cuts, page_tokens=meta.page_tokens)

    def _decode(self, first: int, on_text: OnText) -> tuple[list[int], str, str]:
        self.world.phase = "decode"
        stream = self.llm.tokenizer.decode_stream()
        ids: list[int] = []
        parts: list[str] = []
        token = first
        limit = self.plan.schedule.meta.max_new_tokens
        while True:
            ids.append(token)
            if token in self.stop_ids:
                reason = "stop"
                break
            self._say(stream.push(token), parts, on_text)
            if len(ids) >= limit:
                reason = "length"
                break
            token = self.sampler.pick(self._step(token, len(ids) - 1))
        self._say(stream.finish(), parts, on_text)
        return ids, reason, "".join(parts)

    def _say(self, piece: str, parts: list[str], on_text: OnText) -> None:
        if piece:
            parts.append(piece)
            on_text(piece)

    def _step(self, token: int, index: int) -> NDArray[np.float32]:
        for rank in range(self.num_workers):
            self.world.send(rank, "decode", token=token, index=index, want_logits=rank == 0)
        return np.frombuffer(self.world.wait_for("logits", [0])[0].payload, dtype=np.float32)

    def _finish(
        self, text: str, ids: list[int], reason: str, ttft_s: float, decode_s: float, certificate: dict[str, Any]
    ) -> Result:
        self.world.broadcast("finish")
        frames = self.world.wait_for("finished")
        self.world.phase = "idle"
        trace = join_traces([Trace.from_bytes(frames[r].payload) for r in range(self.num_workers)], self.plan.schedule)
        totals = dict.fromkeys(PURPOSES, 0)
        for rank, frame in frames.items():
            for src, _, purpose, num_bytes in frame["counters"]:
                if src == rank:
                    totals[PURPOSES[purpose - 1]] += num_bytes
        seen = self.plan.schedule.tokens.sum(1).cumsum() * self.plan.schedule.meta.num_groups
        parts = trace.breakdown(trace.last_node(), self.start, self.start + ttft_s)
        return Result(
            text=text,
            token_ids=ids,
            prompt_tokens=len(self.ids),
            ttft_s=ttft_s,
            decode_s=decode_s,
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


def _silent(stage: str, done: float, total: float) -> None:
    pass


def _ignore(text: str) -> None:
    pass
