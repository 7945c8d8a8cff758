"""The page that replays a trace: a template with the data in it; no request leaves it."""

import json
from importlib import resources

from mcf.schedule import Schedule
from mcf.study.replay import replay
from mcf.trace import Trace

_PLACE = "@DATA@"


def replay_page(trace: Trace, sched: Schedule) -> str:
    """One self-contained HTML page."""
    template = resources.files("mcf.study").joinpath("replay.html").read_text(encoding="utf-8")
    data = json.dumps(replay(trace, sched), allow_nan=False, separators=(",", ":"))
    return template.replace(_PLACE, data.replace("<", "\\u003c"))  # no text in it can end the script element
