"""Random accidents, one after the other: after each, everything must be as after none.

    python benchmarks/faults/run.py [--kills 200] [--seed 1] [--over local|tcp|hosts] [--table] [--out results.json]

Each round starts a head with 1 to 4 workers and a random policy, and strikes: SIGKILL of a worker, of two, of the head;
SIGSTOP for 1 s or for good; at a random time from outside, or at a random named point (MCF_FAULT). Then it checks the
end of that head (exit code, the error's words, how long it took), that no process, shared memory or temporary file is
left, and that the next world answers as one process of transformers does. Rounds go on until `--kills` accidents have
struck. Exit code 1 if any rule was broken.

`--over tcp` plays worlds as a launcher makes them, each rank a process of its own, on loopback; `--over hosts` on two
network namespaces (root). Then the other ranks' ends are checked too. `--table` plays each accident at each phase once
instead of random ones. With `--out`, a file that is there is continued: its rounds count, and the draws go on.
"""

import argparse
import contextlib
import ctypes
import json
import math
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from worlds import LOOPBACK, Ended, Party, Place, variables

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
_WHO = r"error: worker \d+(?: on \S+(?: \(\S+\))?)?"  # before its hello a worker has an address alone
LOST = re.compile(_WHO + r" (was lost during \w+: \S|could not join: its process \d+ on \S+ ended or was killed)")
SILENT = re.compile(_WHO + r" went silent during \w+: no heartbeat for")
LEFT_ALONE = re.compile(
    r"error: (worker \d+ (lost the head|cannot reach the (head's|store))|link to worker \d+ broke: |the store at \S+ )"
)
EARLY = ("importing", "start")  # a worker of another host that stops here is noticed when the time to join is over
TABLE_POINTS = ("joining", "loading", "prefill-early", "prefill-late", "convergence", "decode", "shutdown")
KINDS = ("kill", "kill head", "kill two", "stop short", "stop")
DEAD_S, SILENT_S, SLACK_S = 2.0, 4.0, 2.0  # what is promised, and what a loaded machine may add
PATIENCE_S = 60.0
CHUNK, NUM_NEW, LENGTHS = 24, 4, (1, 30, 77, 171)
LONGEST_WAIT_S = 1.2
WITNESS_S = 0.1  # ranks that a launcher starts: before it none has a witness, and only the launcher sees its end
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
    over: str = "local"
    ranks: tuple[int, ...] = ()
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

    def __init__(self, folder: Path, seed: int | str, places: Sequence[Place] = (), over: str = "local") -> None:
        """With `places`, a world is one process for each rank on them."""
        self.folder, self.random, self.places, self.over = folder, random.Random(seed), places, over
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
        num_workers = self.random.randint(2 if self.places else 1, 4)
        names = [name for name in policies.NAMES if name != "pd" or num_workers > 1]
        kinds = ["kill", "kill head", "stop short", "stop"] + ["kill two"] * (num_workers > 1)
        weights = [6, 4, 2, 1] + [3] * (num_workers > 1)
        kind = self.random.choices(kinds, weights)[0]
        points = HEAD_POINTS if kind == "kill head" else POINTS
        at_point = kind != "stop short" and self.random.random() < 0.6
        if self.places and kind == "stop":
            at_point, points = True, [point for point in POINTS if point not in EARLY]
        point = self.random.choice(points) if at_point else ""
        has_replicas = point in ("prefill-early", "prefill-late")
        return Round(
            num_workers=max(num_workers, 3) if has_replicas else num_workers,
            policy="mars-paper" if has_replicas else self.random.choice([*names, "mars-paper", "mars-paper"]),
            num_tokens=LENGTHS[-1] if has_replicas else self.random.choice(LENGTHS),
            kind=kind,
            point=point,
            delay_s=0.0 if at_point else max(self.random.random() * LONGEST_WAIT_S, WITNESS_S if self.places else 0.0),
            over=self.over,
        )

    def play(self, it: Round) -> None:
        """Play one round, and a good run after it."""
        self.play_accident(it)
        self.play_good_run(it)

    def play_accident(self, it: Round) -> None:
        """Play one round alone."""
        party = self._start(it, self._fault(it))
        struck_s = None if it.point else self._strike(it, party)
        self._judge_end(it, *self._finish(it, party, struck_s))
        self._judge_others(it, party)
        self._judge_rest(it, "after the accident")

    def play_good_run(self, it: Round) -> None:
        """Play a round's request without an accident."""
        party = self._start(it, "")
        head, _ = self._finish(it, party, None)
        if (head.code, _ids(head.out)) != (0, self.answers[it.num_tokens]):
            it.broken.append(f"the next run ended with code {head.code}: {head.out[-200:]}")
        for rank in range(1, len(party.ranks)):
            if (end := party.collect(rank, PATIENCE_S)).code:
                it.broken.append(f"rank {rank} of the next run ended with code {end.code}: {end.out[-200:]}")
        self._judge_rest(it, "after the good run")

    def close(self) -> None:
        """End the heads' nursery."""
        self.nursery.close()

    def _start(self, it: Round, fault: str) -> Party:
        if not self.places:
            return Party(ranks=[self._fork(it, fault, {}, "")])
        told = variables(it.num_workers, self.places)
        return Party(ranks=[self._fork(it, fault, env, place.netns) for env, place in told])

    def _fork(self, it: Round, fault: str, env: Mapping[str, str], netns: str) -> ForkedProcess:
        arguments: dict[str, int | str] = {
            "model": str(self.model),
            "policy": it.policy,
            "ids": ",".join(map(str, self.prompts[it.num_tokens])),
            "fault": fault,
            "workers": it.num_workers,
            "chunk": CHUNK,
            "budget": self._budget(it),
            "new": NUM_NEW,
            "netns": netns,
        }
        return self.nursery.fork("head", arguments, {**os.environ, "TMPDIR": str(self.temporary), **env}, {})

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
        if not it.ranks:
            it.ranks = tuple(self.random.sample(range(it.num_workers), 2 if it.kind == "kill two" else 1))
        return ",".join(f"{it.kind.split()[0]}:rank={rank}:phase={it.point}:n={n}" for rank in it.ranks)

    def _strike(self, it: Round, party: Party) -> float | None:
        """Strike from outside after the delay; return when, None if there was nobody to strike."""
        head = party.ranks[0]
        until_s = time.monotonic() + it.delay_s
        while head.poll() is None and time.monotonic() < until_s:
            time.sleep(0.005)
        victims = [head.pid] if it.kind == "kill head" else self._workers(party)
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

    def _workers(self, party: Party) -> list[int]:
        """The workers are the children of the head's children, and the other ranks."""
        others = [rank.pid for rank in party.ranks[1:] if rank.poll() is None]
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(party.ranks[0].pid).children()
            return [worker.pid for child in children for worker in child.children()] + others
        return others

    def _finish(self, it: Round, party: Party, struck_s: float | None) -> tuple[Ended, float | None]:
        """Wait for the head's end; return it, and when the accident struck, where that was seen."""
        ends = party.watch(time.monotonic() + PATIENCE_S, it.kind)
        head = party.collect(0, 0.0)
        head.at_s = ends.get(0, head.at_s)
        if struck_s is None and it.kind != "kill head":
            seen = list(party.stopped_s.values()) or [ends[rank] for rank in it.ranks if rank and rank in ends]
            struck_s = min(seen, default=None)
        return head, struck_s

    def _judge_end(self, it: Round, end: Ended, struck_s: float | None) -> None:
        code, out, ended_s = end.code, end.out, end.at_s
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
            if it.took_s > self._limit_s(it):
                it.broken.append(f"it took {it.took_s:.1f} s")
        if not line and code != -signal.SIGKILL and not is_right:
            it.broken.append(f"neither an error nor the right answer: code {code}, {out[-300:]!r}")

    def _limit_s(self, it: Round) -> float:
        """How long it may take; a worker that has not met the head is known when its witness has imported torch."""
        if "could not join" in it.says:
            return PATIENCE_S
        return (SILENT_S if it.kind == "stop" else DEAD_S) + SLACK_S

    def _judge_others(self, it: Round, party: Party) -> None:
        """Ranks that were not struck end by themselves, after a good run quietly; one that was stopped ends too."""
        for rank in range(1, len(party.ranks)):
            end = party.collect(rank, PATIENCE_S)
            line = next((text for text in end.out.splitlines() if text.startswith("error: ")), "")
            is_killed = end.code == -signal.SIGKILL and it.kind in ("kill", "kill two")
            is_good = end.code == 0 and it.code == 0
            if not (is_killed or is_good or (end.code == 1 and LEFT_ALONE.match(line))):
                it.broken.append(f"rank {rank} ended with code {end.code}: {end.out[-300:]!r}")

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


def soak(
    it: Soak,
    num_kills: int,
    before: Sequence[Round] = (),
    *,
    table: Sequence[Round] | None = None,
    until_s: float = math.inf,
    is_loud: bool = False,
) -> list[Round]:
    """Play the rounds of a table, else random ones until, with those `before`, so many accidents have struck."""
    rounds: list[Round] = []
    drawn = iter(it.draw, None) if table is None else iter(table)
    for one in drawn:
        num_struck = sum(done.has_struck for done in (*before, *rounds))
        if time.monotonic() > until_s or (table is None and num_struck >= num_kills):
            break
        it.play(one)
        rounds.append(one)
        if is_loud:
            print(_line(len(before) + len(rounds), one), flush=True)
    return rounds


def table(points: Sequence[str] = TABLE_POINTS, kinds: Sequence[str] = KINDS, *, over: str) -> list[Round]:
    """Return each accident at each point once, in a request that replicates and drains."""
    shared: dict[str, Any] = {"num_workers": 3, "policy": "mars-paper", "num_tokens": LENGTHS[-1], "over": over}
    ranks = {"kill two": (1, 2), "kill head": ()}
    return [Round(kind=kind, point=point, ranks=ranks.get(kind, (1,)), **shared) for kind in kinds for point in points]


@contextlib.contextmanager
def playing(folder: Path, seed: int | str, places: Sequence[Place] = (), over: str = "local") -> Iterator[Soak]:
    """Have a soak ready while entered."""
    with subreaper():
        it = Soak(folder, seed, places, over)
        try:
            yield it
        finally:
            it.close()


@contextlib.contextmanager
def places_of(over: str) -> Iterator[Sequence[Place]]:
    """Have the places of `--over` while entered."""
    if over != "hosts":
        yield LOOPBACK if over == "tcp" else ()
        return
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    import netns  # of the checkout; needs root, ip and tc

    if why := netns.why_not():
        sys.exit(f"--over hosts: {why}")
    with netns.hosts(2) as made:
        yield tuple(Place(netns=host.name, address=host.address) for host in made)


def _line(number: int, it: Round) -> str:
    where = it.point or f"{it.delay_s:.2f} s"
    end = f"code {it.code}" + (f" after {it.took_s:.2f} s" if it.took_s is not None else "")
    broken = f"  BROKEN: {'; '.join(it.broken)}" if it.broken else ""
    return f"{number:4} {it.kind} at {where}, {it.num_workers} workers, {it.policy}: {end} {it.says}{broken}"


def report(rounds: Sequence[Round], seed: int, pieces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the numbers of a soak, played in pieces, each with its command, time and environment."""
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
        "struck_by_world": dict(Counter(r.over for r in rounds if r.has_struck)),
        "seconds_from_fault_to_exit": {
            kind: {"count": len(s), "median": round(s[len(s) // 2], 3), "max": round(s[-1], 3)}
            for kind, s in times.items()
            if s
        },
        "wall_s": round(sum(piece["wall_s"] for piece in pieces), 1),
        "pieces": list(pieces),
        "played": [{**asdict(r), "broken": r.broken} for r in rounds],
    }


def _kinds(rounds: Sequence[Round]) -> list[str]:
    return sorted({r.kind for r in rounds})


def main() -> int:
    """Run a soak from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="accidents that must strike")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--over", choices=("local", "tcp", "hosts"), default="local", help="where the workers are")
    parser.add_argument("--table", action="store_true", help="each accident at each phase once")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no round after so many seconds")
    parser.add_argument("--out", type=Path, help="write a JSON object here, or continue the one that is here")
    options = parser.parse_args()
    before = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    rounds = [Round(**one) for one in before.get("played", ())]
    pieces = list(before.get("pieces", ()))
    begin_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        places_of(options.over) as places,
        playing(Path(folder), f"{options.seed}/{len(pieces)}", places, options.over) as it,
    ):
        asked = table(over=options.over) if options.table else None
        rounds += soak(it, options.kills, rounds, table=asked, until_s=begin_s + options.limit_s, is_loud=True)
    wall_s = time.monotonic() - begin_s
    pieces.append({"wall_s": round(wall_s, 1), "environment": environment(["python", *sys.argv])})
    found = report(rounds, options.seed, pieces)
    print(json.dumps({key: value for key, value in found.items() if key != "played"}, indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if found["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
