"""Figure 3: time to the first token up to 8K tokens; MCF (MARS) against Ring, Zigzag and PD."""

from mcf.study import paper
from mcf.study.items import NOT_EXPLAINED, Item, claim
from mcf.study.lab import Lab, Outcome
from mcf.study.study import Line, Panel, Study

NAME = "fig3"
PROMPTS = (128, 256, 512, 1024, 2048, 4096, 8192)
VERY_SHORT, MEDIUM = (128, 256), (1024, 2048, 4096, 8192)
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
        settings="as Table 1, on the fitted profile; the figure does not say on how many nodes: 4, 8 and 16 are simulated; "
        "gather (no replica) and one-shot (no chunks) are added.",
        rows=tuple(lab.row(paper.case(p, n, prompt_tokens=s), NAME) for p, n, s in keys),
        items=(*_claims(ran), *_references(ran), _boards(lab)),
        panels=tuple(_panel(ran, n) for n in NODES),
    )


def _claims(ran: Ran) -> list[Item]:
    took = {key: outcome.ttft_s for key, outcome in ran.items()}
    rivals = SHOWN[1:]
    lead = {(n, s): min(took[p, n, s] for p in rivals) / took["mars-paper", n, s] for n in NODES for s in PROMPTS}
    worse = [(n, s) for n in NODES for s in VERY_SHORT if lead[n, s] < 1]
    steep = {(p, n): took[p, n, 8192] / took[p, n, 1024] for p in SHOWN for n in NODES}
    return [
        claim(
            NAME,
            "MCF has the lowest TTFT for medium and long prompts (1K to 8K)",
            all(lead[n, s] > 1 for n in NODES for s in MEDIUM),
            "best of Ring, Zigzag and PD over MCF: " + _by_nodes(lead, MEDIUM),
        ),
        claim(
            NAME,
            "MCF is worse on very short prompts",
            len({n for n, _ in worse}) == len(NODES),
            f"best rival over MCF: {_by_nodes(lead, VERY_SHORT)}; the rival is PD, whose exchange has half as many nodes "
            "in its way; Ring and Zigzag are not faster: copies cost MCF nothing here, one chunk has no later use",
        ),
        claim(
            NAME,
            "MCF's curve is much flatter than the baselines'",
            all(steep["mars-paper", n] < steep[p, n] for p in rivals for n in NODES),
            "TTFT at 8K over 1K: "
            + "; ".join(
                f"N = {n}: " + ", ".join(f"{paper.NAMES[p]} {steep[p, n]:.1f}" for p in SHOWN) for n in NODES
            ),
        ),
        claim(
            NAME,
            "Zigzag gains moderately over Ring, by balance",
            all(took["zigzag", n, 8192] < took["ring", n, 8192] for n in NODES),
            "Ring over Zigzag at 8K: "
            + ", ".join(f"{took['ring', n, 8192] / took['zigzag', n, 8192]:.3f} (N = {n})" for n in NODES),
        ),
    ]


def _by_nodes(lead: dict[tuple[int, int], float], prompts: tuple[int, ...]) -> str:
    return "; ".join(f"N = {n}: " + ", ".join(f"{lead[n, s]:.2f} at {s}" for s in prompts) for n in NODES)


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
    took = {
        p: lab.run(paper.case(p, 4, prompt_tokens=8192, profile=paper.PHYSICAL_PROFILE)).ttft_s for p in SHOWN
    }
    rest = [took[p] for p in SHOWN if p != "pd"]
    return claim(
        NAME,
        "On the described boards MCF leads by more than 5 % at 8K",
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
