"""The claims about speed, measured in one interleaved run.

    python benchmarks/scaling/run.py [--models smollm,qwen] [--lengths 2048,4096,8000] [--dtypes float32,bfloat16]
        [--rows a,b,...] [--rounds 3] [--out benchmarks/scaling/results]

One thread per worker. In each round every contestant answers the same random prompt once, one after the other; the
order is turned by one from round to round. A ratio is that of the medians. Rows:

    a  TTFT: one MCF worker / transformers (fused attention, one process)    at most 1.05
    b  TTFT: two MCF workers / one                                           at most 0.60
    c  TTFT: two workers over 1 Gbit/s / the same without a limit            at most 1.10; 100 Mbit/s is told
    d  TTFT: two MCF workers / transformers' tensor parallelism on two       at most 0.95
    e  TTFT: two MCF workers / llama.cpp's RPC servers, where installed      at most 0.85
    f  decode: one worker / transformers; two workers / one                  at most 1.05; 1.15
    g  exposed communication / TTFT, two workers                             at most 0.10
    h  state exchange per layer of decode / the transport's own exchange     at most 2
    i  KV per worker off S / N, in pages per chunk; peak size / stated       at most 1; 1.10
    j  half of the TTFT of two workers that share nothing but the machine,
       each with the whole prompt / one: the floor of row b here             told

f, g, h and i are taken at the longest of the lengths. Needs a quiet machine: the load is written beside the numbers.
"""

import argparse
import json
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import links
from contestants import Field
from models import NAMES, folder_of

from mcf.bench.bound import decode_bound_s, prefill_bound_s
from mcf.bench.environment import environment, load
from mcf.bench.run import random_prompt
from mcf.bench.spread import spread

ROWS = "abcdefghij"
NEEDS = {"a": ("mcf1", "hf"), "b": ("mcf1", "mcf2"), "d": ("mcf2", "tp"), "f": ("mcf1", "mcf2", "hf"), "g": ("mcf2",)}
NEEDS |= {"h": ("mcf2",), "i": ("mcf2",), "j": ("mcf1", "apart")}
NEW_TOKENS = 17  # at the longest length, for decode; one elsewhere
Rounds = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One claim on one configuration. `ratio` is None where it could not be measured; `note` says why, or more."""

    row: str
    what: str
    config: str
    target: float | None
    ratio: float | None
    bound: str = ""
    note: str = ""

    def line(self) -> str:
        """Return one line for the terminal."""
        target = "told" if self.target is None else f"<= {self.target:.2f}"
        if self.ratio is None:
            return f"{self.row}  {self.config:34} {self.what:44} {target:8} -      {self.note}"
        verdict = "" if self.target is None else ("pass" if self.ratio <= self.target else "MISS")
        more = "; ".join(text for text in (self.bound, self.note) if text)
        return f"{self.row}  {self.config:34} {self.what:44} {target:8} {self.ratio:.3f}  {verdict:4}  {more}"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One model, dtype and length, and what its rounds gave."""

    model: str
    dtype: str
    num_tokens: int
    rounds: Rounds
    shape: Any
    rates: dict[str, list[dict[str, float]]]

    @property
    def config(self) -> str:
        """Return the configuration in words."""
        return f"{self.model} {self.dtype} {self.num_tokens:,}"

    def median(self, name: str, key: str = "ttft_s") -> float:
        """Return a contestant's median."""
        return statistics.median(found[key] for found in self.rounds[name])

    def ratio(self, row: str, what: str, a: str, b: str, target: float, key: str = "ttft_s") -> Row:
        """Return the ratio of two contestants' medians as a row."""
        a_s, b_s = self.median(a, key), self.median(b, key)
        each = ", ".join(f"{x[key] / y[key]:.2f}" for x, y in zip(self.rounds[a], self.rounds[b], strict=True))
        note = f"{a_s:.3f} s / {b_s:.3f} s; rounds {each}"
        return self.row(row, what, a_s / b_s, target, bound=self.bound(a, a_s, key), note=note)

    def bound(self, name: str, seconds: float, key: str) -> str:
        """Say how near a contestant of MCF comes to what the machine can do."""
        if name not in self.rates:
            return ""
        flops_s, read_bytes_s = ([worker[k] for worker in self.rates[name]] for k in ("flops_s", "read_bytes_s"))
        if key == "ttft_s":
            bound_s = prefill_bound_s(self.shape, self.num_tokens, flops_s)
        else:
            bound_s = decode_bound_s(self.shape, self.num_tokens, read_bytes_s)
        return f"bound {bound_s:.3f} s, {bound_s / seconds:.2f} of it"

    def row(self, row: str, what: str, ratio: float, target: float | None, *, bound: str = "", note: str = "") -> Row:
        """Return a row of this configuration."""
        return Row(row=row, what=what, config=self.config, target=target, ratio=ratio, bound=bound, note=note)


def ttft_rows(cell: Cell, rows: str) -> Iterator[Row]:
    """Yield what every length tells."""
    if "a" in rows:
        yield cell.ratio("a", "TTFT, one worker / transformers", "mcf1", "hf", 1.05)
    if "b" in rows:
        yield cell.ratio("b", "TTFT, two workers / one", "mcf2", "mcf1", 0.60)
    if "j" in rows:
        apart_s, one_s = cell.median("apart"), cell.median("mcf1")
        note = f"{apart_s:.3f} s, two at once / {one_s:.3f} s, one alone"
        yield cell.row("j", "floor of row b: half of two apart / one", apart_s / one_s / 2, None, note=note)
    if "d" in rows:
        yield cell.ratio("d", "TTFT, two workers / tensor parallelism", "mcf2", "tp", 0.95)


def longest_rows(cell: Cell, rows: str) -> Iterator[Row]:
    """Yield what the longest length alone tells."""
    if "f" in rows:
        yield cell.ratio("f", "decode, one worker / transformers", "mcf1", "hf", 1.05, "token_s")
        yield cell.ratio("f", "decode, two workers / one", "mcf2", "mcf1", 1.15, "token_s")
    if "g" in rows:
        yield cell.row("g", "exposed communication / TTFT", cell.median("mcf2", "exposed_share"), 0.10)
    if "h" in rows:
        exchange_s, own_s = cell.median("mcf2", "state_exchange_s"), cell.median("mcf2", "exchange_s")
        note = f"{exchange_s * 1e6:.0f} us / {own_s * 1e6:.0f} us"
        yield cell.row("h", "state exchange per layer / transport's own", exchange_s / own_s, 2.0, note=note)
    if "i" in rows:
        yield from memory_rows(cell)


def memory_rows(cell: Cell) -> Iterator[Row]:
    """Yield the two rows about memory, from the last round."""
    found = cell.rounds["mcf2"][-1]
    share = cell.num_tokens / len(found["tokens_per_worker"])
    off = max(abs(tokens - share) for tokens in found["tokens_per_worker"]) / found["slack_tokens"]
    yield cell.row("i", "KV off S / N, in pages per chunk", off, 1.0, note=f"tokens {found['tokens_per_worker']}")
    worst = max(found["memory"], key=lambda worker: worker["ratio"])
    sizes = {name.removesuffix("_bytes"): f"{size / 2**20:.0f}" for name, size in worst.items() if name != "ratio"}
    yield cell.row("i", "peak size / stated", worst["ratio"], 1.10, note=f"MiB {sizes}")


def link_rows(model: str, dtype: str, num_tokens: int, rounds: int) -> Iterator[Row]:
    """Yield the rows over links of a given rate."""
    common = {"row": "c", "config": f"{model} {dtype} {num_tokens:,}"}
    if why := links.why_not():
        yield Row(**common, what="TTFT over links", target=1.10, ratio=None, note=why)
        return
    times: dict[str, list[float]] = defaultdict(list)
    moved = 0
    for _ in range(rounds):
        for rate in links.RATES:
            found = links.measure(folder_of(model), dtype, num_tokens, rate, 1)
            times[rate].append(found["seconds"]["median"])
            moved = sum(found["bytes"].values()) // 2  # each way
    medians = {rate: statistics.median(values) for rate, values in times.items()}
    for rate, target, bits_s in (("1gbit", 1.10, 1e9), ("100mbit", None, 1e8)):
        note = f"{medians[rate]:.3f} s / {medians['veth']:.3f} s; the link needs {8 * moved / bits_s:.2f} s each way"
        yield Row(
            **common, what=f"TTFT, {rate} / no limit", target=target, ratio=medians[rate] / medians["veth"], note=note
        )


def missing_row(row: str, what: str, model: str, dtype: str, num_tokens: int, why: str) -> Row:
    """Return a row that could not be measured."""
    config = f"{model} {dtype} {num_tokens:,}"
    return Row(row=row, what=what, config=config, target=0.95, ratio=None, note=f"the peer {why}")


def llama_row(config: str) -> Row:
    """Return the row about llama.cpp; measured by hand where it is installed, since its models are files of its own."""
    missing = [name for name in ("llama-bench", "rpc-server") if shutil.which(name) is None]
    note = f"not installed: {', '.join(missing)}" if missing else "installed: give it the same model as GGUF by hand"
    return Row(row="e", what="TTFT, two workers / llama.cpp RPC", config=config, target=0.85, ratio=None, note=note)


def measure(field: Field, model: str, num_tokens: int, names: list[str], num_new: int, rounds: int) -> Cell:
    """Run the rounds of one configuration."""
    made = {name: field[name] for name in names}
    some = next(each for each in made.values() if hasattr(each, "llm"))
    ids = random_prompt(some.llm.shape.vocab_size, num_tokens, 0)
    found: Rounds = defaultdict(list)
    for index in range(rounds):
        order = names[index % len(names) :] + names[: index % len(names)]
        for name in order:
            found[name].append(made[name].run(ids, num_new))
            ttft_s, token_s = found[name][-1]["ttft_s"], found[name][-1]["token_s"]
            token = f", token {token_s * 1e3:.1f} ms" if token_s else ""
            print(f"  round {index + 1} {name}: TTFT {ttft_s:.3f} s{token}", flush=True)
    rates = {name: each.facts["rates"] for name, each in made.items() if hasattr(each, "facts")}
    return Cell(model=model, dtype=field.dtype, num_tokens=num_tokens, rounds=found, shape=some.llm.shape, rates=rates)


def all_rows(options: argparse.Namespace, keep: Callable[[Cell], None]) -> Iterator[Row]:
    """Measure everything asked for."""
    longest = max(options.lengths)
    for model in options.models:
        for dtype in options.dtypes:
            with Field(folder_of(model), dtype) as field:
                for num_tokens in options.lengths:
                    is_longest = num_tokens == longest
                    rows = options.rows if is_longest else "".join(r for r in options.rows if r in "abdj")
                    needed = {name for row in rows for name in NEEDS.get(row, ())}
                    if not needed:
                        continue
                    if "tp" in needed and (why := field.why_not("tp")):
                        yield missing_row("d", "TTFT, two workers / tensor parallelism", model, dtype, num_tokens, why)
                        rows, needed = rows.replace("d", ""), needed - {"tp"}
                    names = [name for name in Field.MAKERS if name in needed]
                    print(f"{NAMES[model]} {dtype} {num_tokens:,} tokens", flush=True)
                    num_new = NEW_TOKENS if is_longest and set(rows) & set("fh") else 1
                    cell = measure(field, model, num_tokens, names, num_new, options.rounds)
                    keep(cell)
                    yield from ttft_rows(cell, rows)
                    if is_longest:
                        yield from longest_rows(cell, rows)
            if "c" in options.rows:
                yield from link_rows(model, dtype, min(options.lengths), options.rounds)
    if "e" in options.rows:
        yield llama_row("all")


def texts(value: str) -> list[str]:
    """Return comma-separated words."""
    return [word.strip() for word in value.split(",") if word.strip()]


def parse() -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description="The claims about speed, measured in one interleaved run.")
    parser.add_argument("--models", type=texts, default=list(NAMES))
    parser.add_argument("--lengths", type=lambda value: [int(n) for n in texts(value)], default=[2048, 4096, 8000])
    parser.add_argument("--dtypes", type=texts, default=["float32", "bfloat16"])
    parser.add_argument("--rows", type=lambda value: "".join(texts(value)), default=ROWS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    for given, known in ((options.models, NAMES), (options.dtypes, ("float32", "bfloat16")), (options.rows, ROWS)):
        wrong = [name for name in given if name not in known]
        if wrong:
            parser.error(f"got {wrong[0]!r}: expected some of {', '.join(known)}")
    return options


def main() -> None:
    """Measure, print, write."""
    options = parse()
    where, cells, rows = environment(["python", *sys.argv]), [], []
    for row in all_rows(options, cells.append):
        rows.append(row)
        print(row.line(), flush=True)
    print("\n" + "\n".join(row.line() for row in rows))
    measured = [
        {
            "config": cell.config,
            "rates": cell.rates,
            "ttft_s": {name: spread([each["ttft_s"] for each in found]) for name, found in cell.rounds.items()},
            "rounds": cell.rounds,
        }
        for cell in cells
    ]
    result = {**where, "load_after": load(), "rows": [asdict(row) for row in rows], "cells": measured}
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "latest.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")


if __name__ == "__main__":
    main()
