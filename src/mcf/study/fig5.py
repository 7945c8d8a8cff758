"""Figure 5: what the chunk size does to MARS: time and volume."""

from itertools import pairwise

from mcf.study import paper
from mcf.study.items import Item, claim
from mcf.study.lab import Lab, Outcome
from mcf.study.study import Line, Panel, Study

NAME = "fig5"
NODES = 8
NODE_TOKENS = (64, 128, 256, 512, 1024)
PROMPTS = (2048, 4096, 8192, 16384)
MEMORY = 3.0  # times a node's own share: with memory for every copy the volume would not depend on the chunk size
GB = 1e9
Ran = dict[tuple[int, int], Outcome]


def study(lab: Lab) -> Study:
    """Simulate all chunk sizes that are smaller than the prompt."""
    keys = [(s, t) for s in PROMPTS for t in NODE_TOKENS if t * NODES <= s]
    cases = {(s, t): paper.case("mars-paper", NODES, prompt_tokens=s, node_tokens=t, memory=MEMORY) for s, t in keys}
    ran = {key: lab.run(case) for key, case in cases.items()}
    return Study(
        name=NAME,
        title="Figure 5: chunk size",
        settings=f"as Table 1, on {NODES} nodes with a KV budget of {MEMORY:g} times a node's own share: the figure "
        "says neither.",
        rows=tuple(lab.row(case, NAME) for case in cases.values()),
        items=_claims(ran),
        panels=(
            _panel("TTFT (model time)", "TTFT (s)", {key: outcome.ttft_s for key, outcome in ran.items()}),
            _panel("Volume", "GB", {key: outcome.traffic_bytes / GB for key, outcome in ran.items()}),
        ),
    )


def _claims(ran: Ran) -> tuple[Item, ...]:
    took = {s: [(t, ran[s, t].ttft_s) for p, t in ran if p == s] for s in PROMPTS}
    moved = {s: [(t, ran[s, t].traffic_bytes / GB) for p, t in ran if p == s] for s in PROMPTS}
    return (
        claim(NAME, "Larger chunks, lower TTFT, at every length", _falls(took), _words(took, "s")),
        claim(NAME, "Larger chunks, lower volume, at every length", _falls(moved), _words(moved, "GB")),
        claim(
            NAME,
            "Smaller chunks mean more rounds",
            all(len(ran[a].schedule) > len(ran[b].schedule) for a, b in pairwise(ran) if a[0] == b[0]),
            f"16K in chunks of {NODES} x 64 tokens: {ran[16384, 64].schedule.meta.num_chunks} rounds and "
            f"{len(ran[16384, 64].schedule):,} steps; of {NODES} x 1024: {ran[16384, 1024].schedule.meta.num_chunks} "
            f"and {len(ran[16384, 1024].schedule):,}",
        ),
    )


def _falls(found: dict[int, list[tuple[int, float]]]) -> bool:
    return all(a[1] > b[1] for values in found.values() for a, b in pairwise(values))


def _words(found: dict[int, list[tuple[int, float]]], unit: str) -> str:
    return "; ".join(
        f"{s} tokens: {values[0][1]:.3g} {unit} at {values[0][0]} per node, {values[-1][1]:.3g} at {values[-1][0]}"
        for s, values in found.items()
    )


def _panel(title: str, y: str, values: dict[tuple[int, int], float]) -> Panel:
    lines = tuple(
        Line(name=f"{s} tokens", points=tuple((t, v) for (p, t), v in values.items() if p == s)) for s in PROMPTS
    )
    return Panel(title=title, x="tokens per node and chunk", y=y, lines=lines, is_log_x=True, is_log_y=True)
