"""Checks of what all nodes must have in common: versions, clocks, the model."""

from collections.abc import Iterator

from mcf.engine.doctor.survey import ERROR, WARNING, Finding, NodeReport, Survey
from mcf.units import format_seconds

# name -> versions from, and up to but without (None: open); pyproject.toml has the reasons
SUPPORTED: dict[str, tuple[tuple[int, int], tuple[int, int] | None]] = {
    "python": ((3, 11), None),
    "numpy": ((2, 0), None),
    "torch": ((2, 13), (2, 14)),
    "transformers": ((5, 24), (5, 25)),
}
MOST_OFFSET_S = 0.05  # beyond it, what happened first on two nodes cannot be told from their logs and traces


def check_versions(survey: Survey) -> Iterator[Finding]:
    """Equal on every node, installed, and supported: other versions compute other numbers, or speak otherwise."""
    first = survey.nodes[0]
    for node in survey.nodes:
        for name, version in node.versions.items():
            expected = first.versions.get(name, "none")
            if version != expected:
                yield _version(node, f"{name} is {version}, worker 0 has {expected}", f"install {name} {expected}")
            elif node is first and (why := unsupported(name, version)):
                yield _version(node, f"{name} is {version}: expected {why}", f"install {name} {why}")


def unsupported(name: str, version: str) -> str:
    """Return the versions that would do, "" where this one does."""
    if name not in SUPPORTED:
        return ""
    least, end = SUPPORTED[name]
    found = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if len(found) == 2 and least <= found and (end is None or found < end):
        return ""
    return f">={_dotted(least)}" + (f",<{_dotted(end)}" if end else "")


def _version(node: NodeReport, what: str, do: str) -> Finding:
    return Finding(level=ERROR, check="versions", node=node.label, what=what, do=do)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def versions_seen(survey: Survey) -> str:
    """Say which versions."""
    pairs = (f"{name} {version}" for name, version in survey.nodes[0].versions.items())
    return f"{', '.join(pairs)} on every worker"


def check_clocks(survey: Survey) -> Iterator[Finding]:
    """Clocks agree, so that logs and traces of two nodes can be laid side by side; and none runs backwards."""
    for node in survey.nodes:
        clock = node.clock
        if not clock.is_monotone:
            what = "its monotonic clock ran backwards"
            do = "leave the node out: time-outs and traces cannot be trusted there"
            yield Finding(level=ERROR, check="clocks", node=node.label, what=what, do=do)
        if abs(clock.offset_s) - clock.round_trip_s / 2 > MOST_OFFSET_S:
            side = "ahead of" if clock.offset_s > 0 else "behind"
            what = f"its clock is {format_seconds(abs(clock.offset_s))} {side} the head's"
            do = "let chrony or ntpd set it; until then times of different nodes in one trace do not match"
            yield Finding(level=WARNING, check="clocks", node=node.label, what=what, do=do)


def clocks_seen(survey: Survey) -> str:
    """Say how far clocks may be apart."""
    most = max(abs(node.clock.offset_s) + node.clock.round_trip_s / 2 for node in survey.nodes)
    return f"within {format_seconds(most)} of the head's, as far as a round trip tells; none runs backwards"


def check_model(survey: Survey) -> Iterator[Finding]:
    """The same model everywhere: its config, its weights' headers and samples of their data."""
    first = survey.nodes[0]
    for node in survey.nodes:
        found, expected = node.facts["fingerprint"], first.facts["fingerprint"]
        if found.startswith("none"):
            what, do = f"the model cannot be read there ({found.removeprefix('none: ')})", "copy the whole model folder"
            yield Finding(level=ERROR, check="model", node=node.label, what=what, do=do)
        elif found != expected and not expected.startswith("none"):
            what = f"its model is another one: fingerprint {found[:12]}, worker 0 has {expected[:12]}"
            do = "copy the model folder of worker 0"
            yield Finding(level=ERROR, check="model", node=node.label, what=what, do=do)


def model_seen(survey: Survey) -> str:
    """Say which model it is."""
    return f"fingerprint {survey.nodes[0].facts['fingerprint'][:12]} on every worker"
