"""What must hold before a row can be looked at: pieces cut the prompt, owners and codes exist. It guards the rest."""

import numpy as np

from mcf.errors import LawError
from mcf.schedule.laws import SPEC
from mcf.schedule.schedule import Array, Schedule
from mcf.schedule.steps import HOLD_NAMES, KIND_NAMES, LANE_NAMES, PAYLOAD_NAMES, RECV, SEND, STAGE_NAMES

CODES = {
    "kind": KIND_NAMES,
    "lane": LANE_NAMES,
    "stage": STAGE_NAMES,
    "payload": PAYLOAD_NAMES,
    "hold": HOLD_NAMES,
}


def check_frame(sched: Schedule) -> None:
    """Raise LawError("spec") unless pieces, owners and the codes and indices of all rows are ones that exist."""
    _check_pieces(sched)
    _check_owners(sched)
    _check_rows(sched)


def _expect(good: Array, what: str, text: str) -> None:
    if not good.all():
        raise LawError(SPEC, f"{what} {int(good.argmin())}: expected that {text}")


def _inside(values: Array, end: int, start: int = 0) -> Array:
    out: Array = (values >= start) & (values < end)
    return out


def _check_pieces(sched: Schedule) -> None:
    meta, p = sched.meta, sched.pieces
    _expect(_inside(p["chunk"], meta.num_chunks), "piece", f"its chunk is one of {meta.num_chunks}")
    _expect(_inside(p["node"], meta.num_nodes), "piece", f"its node is one of {meta.num_nodes}")
    lo = p["chunk"].astype(np.int64) * meta.chunk_tokens
    hi = np.minimum(lo + meta.chunk_tokens, meta.prompt_tokens)
    _expect((lo <= p["lo"]) & (p["lo"] < p["hi"]) & (p["hi"] <= hi), "piece", "it lies in its chunk and is not empty")
    ranked = np.lexsort((p["lo"], p["node"], p["chunk"]))
    _expect(ranked == np.arange(len(p)), "piece", "pieces are sorted by chunk, node and place")
    by_place = np.argsort(p["lo"], kind="stable")
    starts, ends = p["lo"][by_place], p["hi"][by_place]
    whole = np.array_equal(np.append(starts, meta.prompt_tokens), np.insert(ends, 0, 0))
    _expect(np.array([whole]), "pieces from", f"pieces cover the {meta.prompt_tokens} prompt tokens once")


def _check_owners(sched: Schedule) -> None:
    meta, o = sched.meta, sched.owners
    good = _inside(o["chunk"], meta.num_chunks) & _inside(o["group"], meta.num_groups)
    good &= _inside(o["maker"], meta.num_nodes) & _inside(o["owner"], meta.num_nodes)
    _expect(good, "owner", "its chunk, maker, head group and node exist")


def _check_rows(sched: Schedule) -> None:
    s = sched.steps
    for name, codes in CODES.items():
        _expect(np.isin(s[name], list(codes)), "row", f"its {name} is one of {', '.join(codes.values())}")
    _expect(_inside(s["node"], sched.meta.num_nodes), "row", f"its node is one of {sched.meta.num_nodes}")
    _expect(np.diff(s["node"], prepend=0) >= 0, "row", "rows are sorted by node")
    _expect(_inside(s["route"], len(sched.routes), -1), "row", f"its route is one of {len(sched.routes)}, or -1")
    _expect(_inside(s["ref"], len(s), -1), "row", "it refers to a row of the schedule, or to none")
    _expect(_inside(s["dst"], sched.meta.num_nodes, -1), "row", f"it names one of {sched.meta.num_nodes} nodes, or -1")
    moves = (s["kind"] == SEND) | (s["kind"] == RECV)
    _expect(moves | ((s["dst"] == -1) & (s["route"] == -1)), "row", "only sends and receives name another node")
    good = (s["after_lo"] >= 0) & (s["after_lo"] <= s["after_hi"]) & (s["after_hi"] <= len(sched.after))
    _expect(good, "row", "its `after` range lies in the table")
