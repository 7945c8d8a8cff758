"""Measure partial attention on this machine's CPU and compare it with its bound.

    python benchmarks/kernels/run.py [--threads 1] [--seed 0] [--repeats 9] [--out benchmarks/kernels/results]

Prefill is bound by arithmetic: 4 * T * S * Hq * d FLOPs (half of that for a causal square) over the rate of a float32
or bfloat16 matrix product of 1024 x 1024, measured here. Decode is bound by memory: the bytes of K and V over the rate
of a sum over 256 MiB, measured here; what fits a cache can beat it. Each number is the best of `--repeats` calls.
Prints one line per case and writes a JSON file with versions, machine, seed and command.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from mcf.attn import bf16
from mcf.attn.kernels import TorchState, attend_decode, attend_spans, merge_states
from mcf.bench.environment import environment, load

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
HEADS = [(9, 3, 64), (4, 4, 64), (32, 8, 128)]  # query heads, KV heads, head size
SCALE = 0.125


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measurement: `work` is FLOPs or bytes, `peak_per_s` what the machine does of it in a second."""

    name: str
    dtype: str
    heads: tuple[int, int, int]
    num_rows: int
    num_keys: int
    best_s: float
    work: float
    peak_per_s: float

    @property
    def achieved(self) -> float:
        """Achieved rate over the bound."""
        return self.work / self.best_s / self.peak_per_s

    def line(self) -> str:
        """Return one line for the terminal."""
        heads = "/".join(map(str, self.heads))
        what = f"{self.name:32} {self.dtype:8} heads {heads:9} T {self.num_rows:5} S {self.num_keys:6}"
        rate = f"{self.best_s * 1e6:9.0f} us {self.work / self.best_s / 1e9:7.1f} G/s"
        return f"{what} {rate}  {self.achieved:5.2f} of bound"


def best_s(function: Callable[[], object], repeats: int) -> float:
    """Return the shortest time in seconds of a call, after two calls to warm up."""
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times[2:])


def matmul_peak(dtype: torch.dtype, repeats: int) -> float:
    """Return the FLOP/s of a matrix product."""
    a = torch.randn(1024, 1024).to(dtype)
    return 2 * 1024**3 / best_s(lambda: a @ a, repeats)


def read_peak(repeats: int) -> float:
    """Return the bytes/s of reading memory that no cache holds."""
    a = torch.ones(2**26)
    return a.nbytes / best_s(a.sum, repeats)


def pool_views(num_tokens: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return k and v as views of a pool [tokens, 2, Hkv, d]."""
    pool = torch.randn(num_tokens, 2, num_kv_heads, head_dim).to(dtype)
    return pool[:, 0], pool[:, 1]


def raw_call(q: Tensor, k: Tensor, v: Tensor, folded: bool) -> Callable[[], object]:
    """Return the bare fused call on q [T, Hq, d], with the query heads of a group folded into the rows or not."""
    num_rows, _, head_dim = q.shape
    num_kv_heads = k.shape[1]

    def call() -> object:
        x = q.transpose(0, 1)
        if folded:
            x = q.view(num_rows, num_kv_heads, -1, head_dim).transpose(0, 1).reshape(num_kv_heads, -1, head_dim)
        keys, values = k.transpose(0, 1).unsqueeze(0), v.transpose(0, 1).unsqueeze(0)
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return flash(x.unsqueeze(0), keys, values, 0.0, False, scale=SCALE)

    return call


def grouped_products(q: Tensor, k: Tensor, v: Tensor) -> Callable[[], object]:
    """Return one-token attention as two batched matrix products, the usual rival of the fused call."""
    grouped = q.view(k.shape[1], -1, q.shape[2])

    def call() -> object:
        scores = torch.bmm(grouped, k.permute(1, 2, 0)).float().mul_(SCALE)
        return torch.bmm(torch.softmax(scores, -1).to(q.dtype), v.transpose(0, 1))

    return call


def prefill_calls(q: Tensor, k: Tensor, v: Tensor) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the ways to attend a history: T rows that see all S keys."""
    num_rows, num_keys = len(q), len(k)
    packed = (k.contiguous(), v.contiguous())
    yield "fused, pool views", raw_call(q, k, v, folded=False)
    yield "fused, packed", raw_call(q, *packed, folded=False)
    yield "fused folded, pool views", raw_call(q, k, v, folded=True)
    yield "fused folded, packed", raw_call(q, *packed, folded=True)
    span = [(num_keys, num_keys + num_rows)]
    if q.dtype is torch.bfloat16:
        heads_first = q.view(num_rows, k.shape[1], -1, q.shape[2]).transpose(0, 1).reshape(k.shape[1], -1, q.shape[2])
        yield "products, exponential inside", lambda: bf16.attend(heads_first, k, v, SCALE)
    yield "attend_spans, one run", lambda: attend_spans(q, span, [(k, v, 0)], SCALE)
    spread = torch.stack([k, v], 1).view(-1, 64, 2, *k.shape[1:]).repeat_interleave(2, 0)[::2]
    runs = [(page[:, 0], page[:, 1], 64 * i) for i, page in enumerate(spread)]
    yield "attend_spans, scattered pages", lambda: attend_spans(q, span, runs, SCALE)


def cases(repeats: int) -> Iterator[Case]:
    """Measure everything."""
    read = read_peak(repeats)
    for name, dtype in DTYPES.items():
        peak = matmul_peak(dtype, repeats)
        for heads in HEADS:
            common = {"dtype": name, "heads": heads}
            yield from prefill_cases(heads, dtype, common, peak, repeats)
            yield from decode_cases(heads, dtype, common, read, repeats)
    yield merge_case(read, repeats)


def prefill_cases(
    heads: tuple[int, int, int], dtype: torch.dtype, common: dict[str, object], peak: float, repeats: int
) -> Iterator[Case]:
    """Measure a history and a causal square."""
    num_q_heads, num_kv_heads, head_dim = heads
    num_rows, num_keys = 512, 4096
    q = torch.randn(num_rows, num_q_heads, head_dim).to(dtype)
    k, v = pool_views(num_keys, num_kv_heads, head_dim, dtype)
    flops = 4 * num_rows * num_keys * num_q_heads * head_dim
    sizes = {"num_rows": num_rows, "num_keys": num_keys, "work": flops, "peak_per_s": peak}
    for label, call in prefill_calls(q, k, v):
        yield Case(name=label, best_s=best_s(call, repeats), **common, **sizes)
    own = (k[:num_rows], v[:num_rows], 0)
    square = best_s(lambda: attend_spans(q, [(0, num_rows)], [own], SCALE), repeats)
    sizes |= {"num_keys": num_rows, "work": 2 * num_rows * (num_rows + 1) * num_q_heads * head_dim}
    yield Case(name="attend_spans, causal square", best_s=square, **common, **sizes)


def decode_cases(
    heads: tuple[int, int, int], dtype: torch.dtype, common: dict[str, object], peak: float, repeats: int
) -> Iterator[Case]:
    """Measure one token over short and long memories."""
    num_q_heads, num_kv_heads, head_dim = heads
    for num_keys in (256, 2048, 16384):
        q = torch.randn(1, num_q_heads, head_dim).to(dtype)
        k, v = pool_views(num_keys, num_kv_heads, head_dim, dtype)
        sizes = {"num_rows": 1, "num_keys": num_keys, "work": 2 * k.nbytes, "peak_per_s": peak}
        calls = {
            "decode: fused": raw_call(q, k, v, folded=False),
            "decode: two matrix products": grouped_products(q, k, v),
            "decode: attend_decode": lambda q=q, k=k, v=v: attend_decode(q, [(k, v)], SCALE),
        }
        for label, call in calls.items():
            yield Case(name=label, best_s=best_s(call, repeats), **common, **sizes)


def merge_case(peak: float, repeats: int) -> Case:
    """Measure the merge of four states: each is read once, and the result written."""
    states = [TorchState(lse=torch.randn(512, 9), out=torch.randn(512, 9, 64)) for _ in range(4)]
    taken = best_s(lambda: merge_states(states), repeats)
    sizes = {"num_rows": 512, "num_keys": 4, "work": 5 * states[0].out.nbytes, "peak_per_s": peak}
    return Case(name="merge_states, four", dtype="float32", heads=(9, 9, 64), best_s=taken, **sizes)


def main() -> None:
    """Run all cases, print them and write the results."""
    parser = argparse.ArgumentParser(description="Measure partial attention on this machine's CPU.")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    measured = []
    where = environment(["python", *sys.argv])
    with torch.inference_mode():
        for case in cases(options.repeats):
            print(case.line(), flush=True)
            measured.append({**asdict(case), "achieved_of_bound": round(case.achieved, 4)})
    result = {
        **where,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": options.threads,
        "seed": options.seed,
        "repeats": options.repeats,
        "load_after": load(),  # numbers of a busy machine mean little
        "cases": measured,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"threads{options.threads}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: {path}")


if __name__ == "__main__":
    main()
