"""Many requests of random lengths through one world: nothing grows, and every answer is its own prompt's.

    python benchmarks/faults/many_requests.py [--requests 500] [--workers 2] [--seed 1] [--out results.json]

Each request draws one of 40 prompts of 1 to 200 tokens, each with tokens of its own, a policy and a number of new
tokens; one in ten is cancelled midway. Pools are full of NaN at the start of each request, so what was left by another
cannot be used unseen, and *every* answer is compared with that of one process of transformers. Resident memory,
descriptors, threads and pool bytes of head and workers are read after each request; what counts as growth is the
difference of the medians over the last 20 requests and over the 20 before the end of the warm-up. Exit code 1 if an
answer is wrong or anything has grown.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcf.bench.environment import environment
from mcf.dist.usage import usage
from mcf.engine.llm import LLM, load
from mcf.engine.source import resolve
from mcf.testing.toys import Reference, make_toy_model, reference_generate

NUM_PROMPTS, LONGEST, MOST_NEW, CHUNK = 40, 200, 6, 32
CANCELLED = 0.1
LEAST_MARGIN = 1e-3  # of the reference's best two logits: where it is less, an equal id is luck
WINDOW = 20
MOST_RSS_BYTES = 4 << 20  # that the median may grow: an allocator's pieces, less than 1 % of a worker
POLICIES = ("mars-paper", "gather", "ring", "pass-q")
Usage = list[dict[str, int]]


class _CancelledHere(Exception):
    pass


def prompts(model: Path, seed: int, num_prompts: int = NUM_PROMPTS) -> list[tuple[list[int], Reference]]:
    """Return prompts, each with a mark of its own at its start and end, and what one process says to them."""
    draw = random.Random(seed)
    vocab = resolve(str(model)).shape("float32").vocab_size
    found: list[tuple[list[int], Reference]] = []
    while len(found) < num_prompts:
        mark = len(found) % vocab
        middle = [draw.randrange(vocab) for _ in range(draw.randint(1, LONGEST))]
        ids = [mark, *middle, mark][: draw.choice((1, LONGEST, LONGEST, LONGEST))]
        reference = reference_generate(model, ids, MOST_NEW)
        if reference.margins.min() >= LEAST_MARGIN:
            found.append((ids, reference))
    return found


class Requests:
    """Requests on one loaded model, with what they left behind."""

    def __init__(self, llm: LLM, cases: Sequence[tuple[list[int], Reference]], seed: int) -> None:
        self.llm, self.cases, self.random = llm, cases, random.Random(seed)
        self.seen: list[Usage] = []
        self.wrong: list[str] = []
        self.num_cancelled = 0

    def play(self, num_requests: int) -> None:
        """Play so many requests."""
        for _ in range(num_requests):
            self._play_one()
            self.seen.append([usage(), *self.llm.world.inspect()])

    def growth(self, warm_up: int) -> dict[str, list[int]]:
        """Return by how much each number has grown since the warm-up: the head first, then the workers."""
        before, after = self.seen[warm_up - WINDOW : warm_up], self.seen[-WINDOW:]
        return {
            name: [int(_median(after, who, name) - _median(before, who, name)) for who in range(len(after[0]))]
            for name in ("rss_bytes", "num_fds", "num_threads", "pool_bytes")
        }

    def most_pool_bytes(self) -> int:
        """Return the most pool bytes that anybody held between two requests."""
        return max(one["pool_bytes"] for seen in self.seen for one in seen)

    def _play_one(self) -> None:
        ids, reference = self.random.choice(self.cases)
        num_new = self.random.randint(1, MOST_NEW)
        self.llm.policy = self.random.choice(POLICIES)
        stop_at = self.random.randint(0, len(ids)) if self.random.random() < CANCELLED else None

        def on_progress(stage: str, done: float, total: float) -> None:
            if stop_at is not None and done >= stop_at:
                raise _CancelledHere

        try:
            got = self.llm.generate(ids, max_tokens=num_new, ignore_eos=True, on_progress=on_progress).token_ids
        except _CancelledHere:
            self.num_cancelled += 1
            return
        if got != reference.ids[:num_new]:
            self.wrong.append(f"request {len(self.seen)}: got {got}, expected {reference.ids[:num_new]}")


def _median(seen: Sequence[Usage], who: int, name: str) -> float:
    return statistics.median(usage[who][name] for usage in seen)


def broken(growth: dict[str, list[int]], wrong: Sequence[str], most_pool_bytes: int) -> list[str]:
    """Return which rules were broken, in words."""
    told = list(wrong)
    for name, most in (("rss_bytes", MOST_RSS_BYTES), ("num_fds", 0), ("num_threads", 0)):
        told += [f"{name} of {_who(i)} grew by {by}" for i, by in enumerate(growth[name]) if by > most]
    return [*told, *([f"pools held {most_pool_bytes} bytes between requests"] if most_pool_bytes else [])]


def _who(index: int) -> str:
    return f"worker {index - 1}" if index else "the head"


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in (("requests", 500), ("workers", 2), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--out", type=Path, help="write a JSON object here")
    options = parser.parse_args()
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        model = make_toy_model(Path(folder) / "toy", "llama", max_positions=4096, tokenizer=True)
        cases = prompts(model, options.seed)
        with load(model, workers=options.workers, chunk_tokens=CHUNK, poison=True) as llm:
            it = Requests(llm, cases, options.seed)
            it.play(options.requests)
    growth = it.growth(options.requests // 5)
    found: dict[str, Any] = {
        "requests": options.requests,
        "cancelled": it.num_cancelled,
        "workers": options.workers,
        "seed": options.seed,
        "growth_after_warm_up": {"first": "the head", **growth},
        "at_end": it.seen[-1],
        "broken": broken(growth, it.wrong, it.most_pool_bytes()),
        "wall_s": round(time.monotonic() - begin_s, 1),
        "environment": environment(["python", *sys.argv]),
    }
    print(json.dumps(found, indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if found["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
