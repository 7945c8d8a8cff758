"""Figure 3: time to the first token up to 8K tokens; MCF (MARS) against Ring, Zigzag and PD."""

from mcf.study import paper
from mcf.study.items import NOT_EXPLAINED, Item, claim
from mcf.study.lab import Lab, Outcome
from mcf.study.study import Line, Panel, Study

NAME = "fig3"
PROMPTS = (128, 256, 512, 1024, 2048, 4096, 8192)
VERY_SHORT, MEDIUM = (128, 256), (2048, 4096, 8192)
NODES = (4, 8, 16)  # the figure does not say how many
SHOWN = ("mars-paper", "ring", "zigzag", "pd")
REFERENCES = ("gather", "one-shot")  # what a reader needs to judge the gain: no replica, no chunks
Ran = dict[tuple[str, int, int], Outcome]


def study(lab: Lab) -> Study:
    """Simulate all lengths on 4, 8 and 16 nodes."""
    keys = [(p, n, s) for n in NODES for p in (*SHOWN, *REFERENCES) for s in PROMPTS]
    ran = {(p, n, s): lab.run(paper.case(p, n, prompt_tokens=s)) for p, n, s in keys}
    return Study(
        name=NAME,
        title="Figure 3: TTFT up to 8K tokens",
        settings="as Table 1, on the fitted profile; the figure does not say on how many nodes: 4, 8 and 16 are "
        "simulated; gather (no replica) and one-shot (no chunks) are added.",
        rows=tuple(lab.row(paper.case(p, n, prompt_tokens=s), NAME) for p, n, s in keys),
        items=(*(item for n in NODES for item in _claims(ran, n)), *_references(ran), _boards(lab)),
        panels=tuple(_panel(ran, n) for n in NODES),
    )


def _claims(ran: Ran, nodes: int) -> list[Item]:
    """The claims on one number of nodes."""
    took = {(p, s): ran[p, nodes, s].ttft_s for p in SHOWN for s in PROMPTS}
    rivals, at = SHOWN[1:], f"N = {nodes}"
    best = {s: min((took[p, s], p) for p in rivals)[1] for s in PROMPTS}
    lead = {s: took[best[s], s] / took["mars-paper", s] for s in PROMPTS}
    steep = {p: took[p, 8192] / took[p, 1024] for p in SHOWN}
    return [
        claim(
            NAME,
            f"{at}: MCF has the lowest TTFT for medium and long prompts (2K to 8K)",
            all(lead[s] > 1 for s in MEDIUM),
            f"best rival over MCF: {_words(lead, best, MEDIUM)}; without PD: "
            + ", ".join(f"{min(took['ring', s], took['zigzag', s]) / took['mars-paper', s]:.2f}" for s in MEDIUM),
        ),
        claim(
            NAME,
            f"{at}: MCF is worse on very short prompts",
            all(lead[s] < 1 for s in VERY_SHORT),
            f"best rival over MCF: {_words(lead, best, VERY_SHORT)}; PD's exchange has half as many nodes in its way. "
            "Not for the reason given: in one chunk copies cost no byte more than Ring moves, and Ring is not faster",
        ),
        claim(
            NAME,
            f"{at}: MCF's curve is flatter than the baselines'",
            all(steep["mars-paper"] < steep[p] for p in rivals),
            "TTFT at 8K over 1K: " + ", ".join(f"{paper.NAMES[p]} {steep[p]:.2f}" for p in SHOWN),
        ),
        claim(
            NAME,
            f"{at}: Zigzag gains moderately over Ring, by balance",
            took["zigzag", 8192] < took["ring", 8192],
            f"Ring over Zigzag at 8K: {took['ring', 8192] / took['zigzag', 8192]:.4f}; attention is a third of the "
            "work, and only a chunk's own part of it is out of balance",
        ),
    ]


def _words(lead: dict[int, float], best: dict[int, str], prompts: tuple[int, ...]) -> str:
    return ", ".join(f"{lead[s]:.2f} at {s} ({paper.NAMES[best[s]]})" for s in prompts)


def _references(ran: Ran) -> list[Item]:
    """Whom the gain belongs to: replicas, or multicast trees that a schedule without replicas has as well."""
    took = {key: outcome.ttft_s for key, outcome in ran.items()}
    shares = {n: _share(*(took[p, n, 8192] for p in ("ring", "gather", "mars-paper"))) for n in NODES}
    chunks = ", ".join(f"{took['mars-paper', n, 8192] / took['one-shot', n, 8192]:.2f} (N = {n})" for n in NODES)
    return [
        claim(
            NAME,
            "The gain over Ring comes from temporary replicas (section 6.2)",
            all(share < 0.5 for share in shares.values()),
            "part of the gain at 8K that scheduled fetching without any replica (gather) has too: "
            + ", ".join(f"{share:.0%} (N = {n})" for n, share in shares.items())
            + "; the rest needs the replicas",
        ),
        Item(
            study=NAME,
            name="Prefill must be chunked (assumed throughout)",
            flag=NOT_EXPLAINED,
            arithmetic=f"MCF over one-shot, the same prompt as one chunk with no replica to keep, at 8K: {chunks}",
        ),
    ]


def _share(ring: float, gather: float, mars: float) -> float:
    return (ring - gather) / (ring - mars)


def _boards(lab: Lab) -> Item:
    """The same figure on the described boards."""
    took = {p: lab.run(paper.case(p, 4, prompt_tokens=8192, profile=paper.PHYSICAL_PROFILE)).ttft_s for p in SHOWN}
    rest = [took[p] for p in SHOWN if p != "pd"]
    return claim(
        NAME,
        "The lead is there on the described boards as well (more than 5 % at 8K)",
        min(rest[1:]) / rest[0] > 1.05,
        "N = 4: "
        + ", ".join(f"{paper.NAMES[p]} {t:.1f} s" for p, t in took.items())
        + "; arithmetic is all there is, only leaving half the nodes out (PD) costs time",
    )


def _panel(ran: Ran, nodes: int) -> Panel:
    lines = tuple(
        Line(name=paper.NAMES.get(p, p), points=tuple((s, ran[p, nodes, s].ttft_s) for s in PROMPTS))
        for p in (*SHOWN, *REFERENCES)
    )
    return Panel(
        title=f"N = {nodes}, {paper.FITTED_PROFILE} (model time)",
        x="prompt tokens",
        y="TTFT (s)",
        lines=lines,
        is_log_x=True,
        is_log_y=True,
    )
