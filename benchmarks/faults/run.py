"""Random accidents, one after the other: after each, everything must be as after none.

    python benchmarks/faults/run.py [--kills 200] [--seed 1] [--out results.json]

Each round starts a head with 1 to 4 workers and a random policy, and strikes: SIGKILL of a worker, of two, of the head;
SIGSTOP for 1 s or for good; at a random time from outside, or at a random named point (MCF_FAULT). Then it checks the
end of that head (exit code, the error's words, how long it took), that no process, shared memory or temporary file is
left, and that the next world answers as one process of transformers does. Rounds go on until `--kills` accidents have
struck. Exit code 1 if any rule was broken.
"""

import argparse
import contextlib
import ctypes
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from mcf import policies
from mcf.bench.environment import environment
from mcf.cluster import Cluster
from mcf.dist.nursery import ForkedProcess, Nursery
from mcf.engine.source import resolve
from mcf.policies import PlanRequest, least_budget
from mcf.testing.toys import make_toy_model, reference_generate

PRELOAD = ("head", "mcf.dist.session", "mcf.dist.transport", "transformers.models.llama.modeling_llama")
POINTS = (
    *("start", "joining", "loading", "planning", "prefill", "prefill-early", "prefill-late"),
    *("convergence", "decode", "shutdown"),
)
HEAD_POINTS = (
    "joining",
    "loading",
    "planning",
    "prefill",
    "prefill-early",
    "prefill-late",
    "convergence",
    "decode",
    "shutdown",
)
LOST = re.compile(r"error: worker \d+ was lost during \w+: \S")
SILENT = re.compile(r"error: worker \d+ went silent during \w+: no heartbeat for")
DEAD_S, SILENT_S, SLACK_S = 2.0, 4.0, 2.0  # what is promised, and what a loaded machine may add
PATIENCE_S = 60.0
CHUNK, NUM_NEW, LENGTHS = 24, 4, (1, 30, 77, 171)
LONGEST_WAIT_S = 1.2
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(kw_only=True)
class Round:
    """One accident: what was done to whom, and what came of it."""

    num_workers: int
    policy: str
    num_tokens: int
    kind: str
    point: str
    delay_s: float = 0.0
    has_struck: bool = False
    took_s: float | None = None
    code: int | None = None
    says: str = ""
    broken: list[str] = field(default_factory=list)


def _heads_nursery() -> Nursery:
    """Start a process that has imported `head`, which lies beside this file."""
    usual = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parent), usual)))
    try:
        return Nursery.start(modules=PRELOAD)
    finally:
        os.environ["PYTHONPATH"] = usual


class Soak:
    """Rounds on one toy model."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.model = make_toy_model(folder / "toy", "llama", max_positions=4096, tokenizer=True)
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.shape = resolve(str(self.model)).shape("float32")
        self.prompts = {n: [self.random.randrange(self.shape.vocab_size) for _ in range(n)] for n in LENGTHS}
        self.answers = {n: reference_generate(self.model, ids, NUM_NEW).ids for n, ids in self.prompts.items()}
        self.nursery = _heads_nursery()
        self.known = {child.pid for child in psutil.Process().children()}
        assert self.nursery.is_ready(), "the heads' nursery did not come up"

    def draw(self) -> Round:
        """Draw a round."""
        num_workers = self.random.randint(1, 4)
        names = [name for name in policies.NAMES if name != "pd" or num_workers > 1]
        kinds = ["kill", "kill head", "stop short", "stop"] + ["kill two"] * (num_workers > 1)
        weights = [6, 4, 2, 1] + [3] * (num_workers > 1)
        kind = self.random.choices(kinds, weights)[0]
        points = HEAD_POINTS if kind == "kill head" else POINTS
        at_point = kind != "stop short" and self.random.random() < 0.6
        point = self.random.choice(points) if at_point else ""
        has_replicas = point in ("prefill-early", "prefill-late")
        return Round(
            num_workers=max(num_workers, 3) if has_replicas else num_workers,
            policy="mars-paper" if has_replicas else self.random.choice([*names, "mars-paper", "mars-paper"]),
            num_tokens=LENGTHS[-1] if has_replicas else self.random.choice(LENGTHS),
            kind=kind,
            point=point,
            delay_s=0.0 if at_point else self.random.random() * LONGEST_WAIT_S,
        )

    def play(self, it: Round) -> None:
        """Play one round, and a good run after it."""
        head = self._start(it, self._fault(it))
        struck_s = None if it.point else self._strike(it, head)
        self._judge_end(it, *self._finish(head), struck_s)
        self._judge_rest(it, "after the accident")
        code, out, _ = self._finish(self._start(it, ""))
        if (code, _ids(out)) != (0, self.answers[it.num_tokens]):
            it.broken.append(f"the next run ended with code {code}: {out[-200:]}")
        self._judge_rest(it, "after the good run")

    def close(self) -> None:
        """End the heads' nursery."""
        self.nursery.close()

    def _start(self, it: Round, fault: str) -> ForkedProcess:
        arguments: dict[str, int | str] = {
            "model": str(self.model),
            "policy": it.policy,
            "ids": ",".join(map(str, self.prompts[it.num_tokens])),
            "fault": fault,
            "workers": it.num_workers,
            "chunk": CHUNK,
            "budget": self._budget(it),
            "new": NUM_NEW,
        }
        return self.nursery.fork("head", arguments, {**os.environ, "TMPDIR": str(self.temporary)}, {})

    def _budget(self, it: Round) -> int:
        cluster = Cluster.uniform("switch", it.num_workers)
        asked = PlanRequest(
            shape=self.shape,
            cluster=cluster,
            prompt_tokens=it.num_tokens,
            chunk_tokens=CHUNK,
            max_new_tokens=NUM_NEW,
        )
        return int(least_budget(it.policy, asked))

    def _fault(self, it: Round) -> str:
        if not it.point:
            return ""
        if it.kind == "kill head":
            return f"kill:rank=head:phase={it.point}"
        n = self.random.choice((1, 1, 2)) if it.point in ("prefill", "decode") else 1
        ranks = self.random.sample(range(it.num_workers), 2 if it.kind == "kill two" else 1)
        return ",".join(f"{it.kind.split()[0]}:rank={rank}:phase={it.point}:n={n}" for rank in ranks)

    def _strike(self, it: Round, head: ForkedProcess) -> float | None:
        """Strike from outside after the delay; return when, None if there was nobody to strike."""
        until_s = time.monotonic() + it.delay_s
        while head.poll() is None and time.monotonic() < until_s:
            time.sleep(0.005)
        victims = [head.pid] if it.kind == "kill head" else self._workers(head)
        if it.kind != "kill head":
            victims = self.random.sample(victims, min(len(victims), 2 if it.kind == "kill two" else 1))
        is_stop = it.kind.startswith("stop")
        struck = [pid for pid in victims if _signal(pid, signal.SIGSTOP if is_stop else signal.SIGKILL)]
        at_s = time.monotonic()
        if struck and it.kind == "stop short":
            time.sleep(1.0)
            for pid in struck:
                _signal(pid, signal.SIGCONT)
        it.has_struck = bool(struck)
        return at_s if struck else None

    def _workers(self, head: ForkedProcess) -> list[int]:
        """The workers are the children of the head's children."""
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(head.pid).children()
            return [worker.pid for child in children for worker in child.children()]
        return []

    def _finish(self, head: ForkedProcess) -> tuple[int, str, float]:
        assert head.stdout is not None
        try:
            code = head.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            head.send_signal(signal.SIGKILL)
            code = 1000
            head.wait()
        at_s = time.monotonic()
        with head.stdout:
            os.set_blocking(head.stdout.fileno(), False)  # what was printed is here; an orphan may hold the other end
            out = head.stdout.read() or b""
        return code, out.decode(), at_s

    def _judge_end(self, it: Round, code: int, out: str, ended_s: float, struck_s: float | None) -> None:
        line = next((text for text in out.splitlines() if text.startswith("error: ")), "")
        it.code, it.says = code, line
        is_right = code == 0 and _ids(out) == self.answers[it.num_tokens]
        if it.kind == "kill head":
            it.has_struck = code == -signal.SIGKILL
        elif line:
            it.has_struck = True
            words = SILENT if it.kind == "stop" else LOST
            if code != 1 or not words.match(line) or it.kind == "stop short":
                it.broken.append(f"code {code}, {line!r}")
        if (line or it.kind == "kill head") and struck_s is not None and code:
            it.took_s = ended_s - struck_s
            if it.took_s > (SILENT_S if it.kind == "stop" else DEAD_S) + SLACK_S:
                it.broken.append(f"it took {it.took_s:.1f} s")
        if not line and code != -signal.SIGKILL and not is_right:
            it.broken.append(f"neither an error nor the right answer: code {code}, {out[-300:]!r}")

    def _judge_rest(self, it: Round, when: str) -> None:
        left = _orphans(self.known)
        if left:
            it.broken.append(f"processes left {when}: {left}")
            for pid in left:
                _signal(pid, signal.SIGKILL)
        files = [path.name for path in self.temporary.iterdir()]
        shared = [name for name in os.listdir("/dev/shm") if name.startswith(("torch_", "mcf", "sem.mp"))]
        if files or shared:
            it.broken.append(f"files left {when}: {files} {shared}")


def _ids(out: str) -> list[int] | None:
    lines = [line for line in out.splitlines() if line.startswith('{"ids"')]
    return json.loads(lines[-1])["ids"] if lines else None


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _orphans(known: Collection[int]) -> list[int]:
    """Wait a moment for orphans, which come to this process, to end; return those that have not."""
    until_s = time.monotonic() + 5.0
    while True:
        left = [child.pid for child in psutil.Process().children() if child.pid not in known]
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if not left or time.monotonic() > until_s:
            return left
        time.sleep(0.01)


@contextlib.contextmanager
def subreaper() -> Iterator[None]:
    """Have every orphan below this process come to it."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0)


def soak(it: Soak, num_kills: int, *, is_loud: bool = False) -> list[Round]:
    """Play random rounds until so many accidents have struck."""
    rounds: list[Round] = []
    while sum(done.has_struck for done in rounds) < num_kills:
        rounds.append(it.draw())
        it.play(rounds[-1])
        if is_loud:
            print(_line(len(rounds), rounds[-1]), flush=True)
    return rounds


def head_rounds() -> list[Round]:
    """Return rounds in which the head is killed at each phase of a request that replicates and drains."""
    shared: dict[str, Any] = {"num_workers": 3, "policy": "mars-paper", "num_tokens": LENGTHS[-1]}
    return [Round(kind="kill head", point=point, **shared) for point in HEAD_POINTS]


@contextlib.contextmanager
def playing(folder: Path, seed: int) -> Iterator[Soak]:
    """Have a soak ready while entered."""
    with subreaper():
        it = Soak(folder, seed)
        try:
            yield it
        finally:
            it.close()


def _line(number: int, it: Round) -> str:
    where = it.point or f"{it.delay_s:.2f} s"
    end = f"code {it.code}" + (f" after {it.took_s:.2f} s" if it.took_s is not None else "")
    broken = f"  BROKEN: {'; '.join(it.broken)}" if it.broken else ""
    return f"{number:4} {it.kind} at {where}, {it.num_workers} workers, {it.policy}: {end} {it.says}{broken}"


def report(rounds: Sequence[Round], seed: int, wall_s: float) -> dict[str, Any]:
    """Return the numbers of a soak, with its environment."""
    times = {
        kind: sorted(r.took_s for r in rounds if r.kind == kind and r.took_s is not None) for kind in _kinds(rounds)
    }
    return {
        "seed": seed,
        "rounds": len(rounds),
        "struck": sum(r.has_struck for r in rounds),
        "broken": [asdict(r) for r in rounds if r.broken],
        "struck_by_kind": dict(Counter(r.kind for r in rounds if r.has_struck)),
        "struck_by_point": dict(Counter(r.point or "random time" for r in rounds if r.has_struck)),
        "seconds_from_fault_to_exit": {
            kind: {"count": len(s), "median": round(s[len(s) // 2], 3), "max": round(s[-1], 3)}
            for kind, s in times.items()
            if s
        },
        "wall_s": round(wall_s, 1),
        "environment": environment(["python", *sys.argv]),
    }


def _kinds(rounds: Sequence[Round]) -> list[str]:
    return sorted({r.kind for r in rounds})


def main() -> int:
    """Run a soak from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="accidents that must strike")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write a JSON object here")
    options = parser.parse_args()
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, playing(Path(folder), options.seed) as it:
        rounds = soak(it, options.kills, is_loud=True)
    found = report(rounds, options.seed, time.monotonic() - begin_s)
    print(json.dumps(found, indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if found["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
