"""The composition root: a loaded model on a world of workers that stays up between calls."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mcf.dist.hosts import refuse_another_run
from mcf.dist.limit import Limit
from mcf.dist.nursery import Nursery, obtain
from mcf.dist.torchrun import here, settle_workers
from mcf.dist.world import World, threads_per_worker
from mcf.engine.clusters import speeds_of
from mcf.engine.hosts import check_interface, serve, start_over_hosts
from mcf.engine.planner import (
    AUTO,
    DEFAULT_POLICY,
    Plan,
    check_least,
    check_policy,
    check_window,
    check_workers,
    make_plan,
)
from mcf.engine.request import OnProgress, OnText, Request, ShouldStop
from mcf.engine.result import Result
from mcf.engine.sampler import Sampler
from mcf.engine.source import ModelSource, resolve
from mcf.engine.tokens import Tokenizer, load_tokenizer
from mcf.errors import PromptError, UserError
from mcf.mars import Rates
from mcf.model import DTYPE_BYTES, ModelShape
from mcf.sim import load_profile
from mcf.units import parse_bytes, parse_tokens


def load(
    model: str | Path,
    *,
    workers: int | None = None,
    policy: str = DEFAULT_POLICY,
    kv_memory: str | int | None = None,
    chunk_tokens: str | int = AUTO,
    dtype: str = "float32",
    cluster: str | Path | None = None,
    interface: str | None = None,
    threads: int | None = None,
    timeout_s: float | Limit | None = None,
    on_progress: OnProgress | None = None,
    before_weights: Callable[["LLM"], object] | None = None,
    fault: str | None = None,
    poison: bool = False,
) -> "LLM":
    """Load a model on `workers` local worker processes (2 by default) and keep them until `close`.

    In a torchrun world its processes are the workers, and `workers` may be left out. Rank 0 gets the LLM; in the others
    this call obeys until rank 0 closes, then raises SystemExit(0). `interface` names the network interface to use.

    `model`: a Hugging Face folder, a GGUF file, a hub id, or "demo". `kv_memory`: KV budget per worker, bytes or text
    such as "256MiB" (None: no limit). `chunk_tokens`: prompt tokens per chunk over all workers, or "auto". `cluster`: a
    cluster profile, by name or file, with the speeds that policy `mars` decides by; without it `mars` counts bytes.
    `threads`: compute threads of each worker (None: its share of this process's cores). `timeout_s` limits how long the
    workers may take to start and load. `on_progress(stage, done, total)` reports `hash`,
    `tokenizer`, `convert`, `download`, `load`. `before_weights(llm)` is called when prompts can be encoded and planned
    but no weight has moved: what it raises ends the loading. `fault` and `poison` are for tests. Raises UserError and
    RunError kinds.
    """
    place = here()
    num_workers = settle_workers(workers, place)
    check_policy(policy)
    check_workers(num_workers)
    check_interface(interface, place)
    if dtype not in DTYPE_BYTES:
        raise UserError(f"got dtype {dtype!r}: expected one of {', '.join(sorted(DTYPE_BYTES))}")
    budget = None if kv_memory is None else parse_bytes(kv_memory)
    chunk: str | int = AUTO if chunk_tokens == AUTO else parse_tokens(chunk_tokens)
    rates = None if cluster is None else speeds_of(load_profile(cluster).for_dtype(dtype), num_workers)
    if threads is not None and threads < 1:
        raise UserError(f"got {threads} threads: expected at least 1 per worker")
    Limit.start(timeout_s)
    report = on_progress or _silent
    if place is not None and place.is_guest:
        serve(place, str(model), interface=interface, dtype=dtype, threads=threads, fault=fault, progress=report)
    nursery: Nursery | None = None
    with ThreadPoolExecutor(3) as pool:  # the tokenizer's imports take seconds: meanwhile the workers start
        if place is not None and place.world_size > 1:
            source, tokenizer, world = start_over_hosts(
                *(place, str(model), pool),
                interface=interface,
                dtype=dtype,
                threads=threads,
                fault=fault,
                limit=Limit.start(timeout_s),
                progress=report,
            )
        else:
            source = resolve(str(model), progress=on_progress)
            shape = source.shape(dtype)  # refuses what it cannot run
            check_least(shape, num_workers=num_workers, policy=policy, kv_memory_bytes=budget)
            limit = Limit.start(timeout_s)
            report("load", 0, num_workers)
            tokenizer = pool.submit(load_tokenizer, source)
            nursery = obtain()
            try:
                world = _start_world(num_workers, fault, limit, nursery, threads)
            except BaseException:
                _close(nursery)
                raise
        try:
            llm = LLM(
                world,
                source,
                source.shape(dtype),
                tokenizer.result(),
                dtype=dtype,
                policy=policy,
                kv_memory_bytes=budget,
                chunk_tokens=chunk,
                rates=rates,
                poison=poison,
                nursery=nursery,
            )
            if before_weights is not None:
                before_weights(llm)
            llm.weight_bytes = _load_workers(world, source, dtype, report)
            return llm
        except BaseException:
            world.close()
            _close(nursery)
            raise


def _close(nursery: Nursery | None) -> None:
    if nursery is not None:
        nursery.close()


def _start_world(
    num_workers: int, fault: str | None, limit: Limit | None, nursery: Nursery | None, threads: int | None
) -> World:
    num_threads = threads or threads_per_worker(num_workers)
    return World.start(num_workers, num_threads_per_worker=num_threads, fault=fault, limit=limit, nursery=nursery)


def _load_workers(world: World, source: ModelSource, dtype: str, report: OnProgress) -> list[int]:
    """Load the model on all workers; returns the bytes of weights on each."""
    world.phase = "loading"
    threads = world.num_threads_per_worker
    world.broadcast("load", folder=str(source.folder.resolve()), dtype=dtype, num_threads=threads)
    sizes = []
    for rank in range(world.num_workers):
        sizes.append(int(world.wait_for("loaded", [rank])[rank]["weight_bytes"]))
        report("load", rank + 1, world.num_workers)
    world.limit = None
    world.phase = "idle"
    return sizes


class LLM:
    """A model on running workers. Use as a context manager or call `close`; one request at a time.

    After a RunError that ended the workers (`is_alive` says so) `restart` brings them back. `patience_s` is how long a
    request that ends early may take to leave the workers in step; those that take longer are ended.
    """

    patience_s = 10.0

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
        rates: Rates | None = None,
        dtype: str = "float32",
        poison: bool = False,
        nursery: Nursery | None = None,
    ) -> None:
        self.world, self.source, self.shape, self.tokenizer = world, source, shape, tokenizer
        self.policy, self.kv_memory_bytes, self.chunk_tokens = policy, kv_memory_bytes, chunk_tokens
        self.rates = rates
        self._dtype, self._poison, self._nursery = dtype, poison, nursery
        self.weight_bytes: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; harmless when called again."""
        self.world.close()
        _close(self._nursery)

    @property
    def is_alive(self) -> bool:
        """Whether the workers are there, as far as is known: a loss is noticed by the next call that needs them."""
        return not self.world.is_closed

    def restart(self, *, timeout_s: float | Limit | None = None, fault: str | None = None) -> None:
        """End the workers, if there are any, start new ones and load the model on them; all settings stay.

        `timeout_s` limits how long that may take; `fault` is for tests. Raises RunError kinds; no worker is left then.
        """
        limit = Limit.start(timeout_s)
        if self.world.is_over_hosts:
            refuse_another_run()
        self.world.close()
        if self._nursery is None or self._nursery.is_gone():
            self._nursery = obtain()
        threads = self.world.num_threads_per_worker
        self.world = _start_world(self.world.num_workers, fault, limit, self._nursery, threads)
        try:
            _load_workers(self.world, self.source, self._dtype, _silent)
        except BaseException:
            self.world.close()
            raise

    def measure(self, what: str, *, dtype: str = "float32", num_bytes: int = 0) -> list[dict[str, Any]]:
        """What all workers measure at once, in rank order: `rates`, `exchange`, `memory` (`mcf.dist.measure`)."""
        self.world.broadcast("measure", what=what, dtype=dtype, num_bytes=num_bytes)
        frames = self.world.wait_for("measured")
        return [frames[rank]["numbers"] for rank in range(self.world.num_workers)]

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
            rates=self.rates,
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
        timeout_s: float | Limit | None = None,
        should_stop: ShouldStop | None = None,
        on_text: OnText | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result:
        """Run one prompt (text, or token ids as they are) and return the finished Result.

        `max_tokens` is cut to what the model's window leaves. `on_text` gets text as it becomes certain;
        `on_progress("prefill", done, total)` counts prompt tokens.

        The request ends early when `timeout_s` is over (RequestTimeoutError), when `should_stop()`, asked between
        chunks and tokens, says so (RequestCancelledError, which carries the text so far), when a callback raises, and
        by Ctrl-C. It then leaves the workers ready for the next request, or, after `patience_s`, ended.

        Raises PromptError and InfeasibleError, which cost the workers nothing; and the other RunError kinds, after
        which the workers are gone until `restart`.
        """
        start = time.monotonic()
        limit = Limit.start(timeout_s)
        self.world.require_open()
        sampler = Sampler(temperature=temperature, top_p=top_p, seed=seed)
        ids, plan = self.prepare(prompt, max_tokens=max_tokens, raw=raw)
        stop_ids = frozenset() if ignore_eos else self.tokenizer.eos_ids
        request = Request(self, ids, plan, sampler, stop_ids, start_s=start, limit=limit, should_stop=should_stop)
        return request.run(on_text or _ignore, on_progress or _silent)

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


def _silent(stage: str, done: float, total: float) -> None:
    pass


def _ignore(text: str) -> None:
    pass
