"""Who is measured: MCF on one and two workers, transformers alone, transformers' tensor parallelism. One thread each.

Each stays loaded and answers `run(ids, num_new)` with times and what else is known; they take turns.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

import mcf
from mcf.bench.memory import base_bytes, stated
from mcf.engine.result import Result
from mcf.schedule.steps import DECODE, RECV, STATE_BYTES

HERE = Path(__file__).parent
START_S = 300.0


class Contestant(Protocol):
    """One who is measured."""

    def run(self, ids: list[int], num_new: int) -> dict[str, Any]:
        """Return `ttft_s`, `token_s` (the median of the tokens after the first), and more."""

    def close(self) -> None:
        """End its processes."""


class Mcf:
    """MCF on local workers; `facts` are the rates of all workers at once, and an exchange of a decode state."""

    def __init__(self, folder: Path, dtype: str, num_workers: int) -> None:
        self.dtype = dtype
        self.llm = mcf.load(folder, workers=num_workers, threads=1, dtype=dtype)
        self.base = base_bytes(self.llm)
        shape = self.llm.shape
        self.facts = {
            "rates": self.llm.measure("rates", dtype=dtype),
            "exchange": self.llm.measure("exchange", num_bytes=shape.num_q_heads * (shape.head_dim + 2) * 4),
        }

    def run(self, ids: list[int], num_new: int) -> dict[str, Any]:
        """Measure one request; see `Contestant`."""
        self.llm.measure("new_peak")
        result = self.llm.generate(ids, max_tokens=num_new, ignore_eos=True)
        plan = self.llm.plan(len(ids), num_new)
        exposed_s = result.breakdown["exposed_communication_s"]
        return {
            "ttft_s": result.ttft_s,
            "token_s": statistics.median(result.token_s) if result.token_s else None,
            "exposed_share": exposed_s / result.ttft_s,
            "breakdown": result.breakdown,
            "state_exchange_s": _state_exchange_s(result),
            "exchange_s": max(
                worker["exchange_s"] for worker in self.llm.measure("exchange", num_bytes=_state_bytes(self.llm))
            ),
            "tokens_per_worker": result.certificate["tokens_per_worker"],
            "slack_tokens": result.certificate["page_tokens"] * plan.schedule.meta.num_chunks,
            "memory": stated(self.llm, plan, self.base, self.llm.measure("memory")),
        }

    def close(self) -> None:
        """End the workers."""
        self.llm.close()


class Apart:
    """Two worlds of one worker, which answer the same prompt at the same time and know nothing of each other.

    What they lose against one alone is what the cores take from each other (memory bandwidth, caches, clock rate): a
    bound on what two workers can gain on this machine, whatever the schedule and the transport.
    """

    def __init__(self, folder: Path, dtype: str, num_workers: int) -> None:
        self._worlds = [Mcf(folder, dtype, 1) for _ in range(num_workers)]

    def run(self, ids: list[int], num_new: int) -> dict[str, Any]:
        """Measure one request on each; see `Contestant`. The slower one counts."""
        with ThreadPoolExecutor(len(self._worlds)) as pool:
            found = list(pool.map(lambda world: world.run(ids, num_new), self._worlds))
        return max(found, key=lambda each: each["ttft_s"])

    def close(self) -> None:
        """End both."""
        for world in self._worlds:
            world.close()


class Peer:
    """transformers in processes of its own (peer.py), asked over a unix socket."""

    def __init__(self, folder: Path, dtype: str, num_workers: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mcf-bench-")
        path = str(Path(self._folder.name) / "peer")
        runner = [sys.executable]
        if num_workers > 1:
            runner = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_workers}"]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(path)
            door.listen(1)
            door.settimeout(START_S)
            command = [*runner, str(HERE / "peer.py"), path, str(folder), dtype]
            self._log = (Path(self._folder.name) / "log").open("w+")
            self._process = subprocess.Popen(command, env=env, stdout=self._log, stderr=self._log)
            try:
                self._socket, _ = door.accept()
            except BaseException:
                self._end()
                raise
        self._lines = self._socket.makefile("rw", encoding="utf-8")

    def run(self, ids: list[int], num_new: int) -> dict[str, Any]:
        """Measure one request; see `Contestant`."""
        self._lines.write(json.dumps({"ids": ids, "new_tokens": num_new}) + "\n")
        self._lines.flush()
        answer = self._lines.readline()
        if not answer:
            raise RuntimeError(f"cannot run ({self._last_error()})")
        found = json.loads(answer)
        return {"ttft_s": found["ttft_s"], "token_s": statistics.median(found["token_s"]) if found["token_s"] else None}

    def _last_error(self) -> str:
        """Return the last line of the peer's output that names an error."""
        self._process.wait(20)
        self._log.seek(0)
        lines = [line.rpartition("]:")[2].strip() for line in self._log if "Error: " in line]
        return lines[0][:120] if lines else f"exit code {self._process.returncode}"

    def close(self) -> None:
        """Hang up; it ends by itself, or is ended."""
        self._lines.close()
        self._socket.close()
        self._end()

    def _end(self) -> None:
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._folder.cleanup()


class Field:
    """The contestants of one model and dtype, started when first asked for; ended together."""

    MAKERS: Mapping[str, tuple[type[Mcf] | type[Apart] | type[Peer], int]] = {
        "mcf1": (Mcf, 1),
        "mcf2": (Mcf, 2),
        "apart": (Apart, 2),
        "hf": (Peer, 1),
        "tp": (Peer, 2),
    }

    def __init__(self, folder: Path, dtype: str) -> None:
        self.folder, self.dtype = folder, dtype
        self._made: dict[str, Mcf | Apart | Peer] = {}

    def __getitem__(self, name: str) -> Mcf | Apart | Peer:
        if name not in self._made:
            maker, num_workers = self.MAKERS[name]
            made = maker(self.folder, self.dtype, num_workers)
            try:
                made.run(list(range(10, 300)), 3)  # warm up
            except BaseException:
                made.close()
                raise
            self._made[name] = made
        return self._made[name]

    def why_not(self, name: str) -> str:
        """Start a contestant; return why that cannot be, empty where it runs."""
        try:
            self[name].run(list(range(10, 20)), 1)
        except RuntimeError as error:
            return str(error)
        return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for made in self._made.values():
            made.close()


def _state_bytes(llm: mcf.LLM) -> int:
    return llm.shape.num_q_heads * (llm.shape.head_dim + 2) * 4


def _state_exchange_s(result: Result) -> float | None:
    """The median time of one layer's exchange in decode: from the last worker's posting to the last arrival.

    What one worker waits because another still computes is not in it.
    """
    events = result.trace.events
    states = events[(events["kind"] == RECV) & (events["stage"] == DECODE) & (events["purpose"] == STATE_BYTES)]
    if not len(states):
        return None
    by_row = defaultdict(list)
    for event in np.sort(states, order="t_end"):
        by_row[int(event["row"]), int(event["layer"])].append((float(event["t_start"]), float(event["t_end"])))
    by_layer = defaultdict(list)
    for (_, layer), times in by_row.items():
        by_layer[layer].append(times)
    together = [zip(*rows, strict=True) for rows in by_layer.values()]
    return statistics.median(max(e for _, e in row) - max(s for s, _ in row) for layer in together for row in layer)
