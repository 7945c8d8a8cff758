"""The text form: one line per step; `parse(dump(s)) == s`."""

from collections.abc import Iterator
from dataclasses import MISSING, fields

import numpy as np

from mcf.errors import ScheduleError
from mcf.schedule.meta import INT4_BYTES, ScheduleMeta
from mcf.schedule.pieces import PIECE
from mcf.schedule.schedule import Schedule
from mcf.schedule.steps import (
    ALL,
    ATTEND,
    HOLD_NAMES,
    KIND_NAMES,
    LANE_NAMES,
    MERGE,
    NONE,
    OWNER,
    PAYLOAD_NAMES,
    RECV,
    SEND,
    STAGE_NAMES,
    STEP,
)

HEADER = "mcf-schedule 1"
_CODES = {
    "kind": {v: k for k, v in KIND_NAMES.items()},
    "lane": {v: k for k, v in LANE_NAMES.items()},
    "stage": {v: k for k, v in STAGE_NAMES.items()},
    "payload": {v: k for k, v in PAYLOAD_NAMES.items()},
    "hold": {v: k for k, v in HOLD_NAMES.items()},
}


def dump(sched: Schedule) -> str:
    """Print a schedule: meta, pieces, owners that are not makers, routes, then one line per step."""
    return "\n".join(_lines(sched)) + "\n"


def _lines(sched: Schedule) -> Iterator[str]:
    yield HEADER
    for name, value in sched.meta.said().items():
        yield f"meta {name}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
    for p in sched.pieces.tolist():
        yield f"piece c{p[0]} n{p[1]} {p[2]}:{p[3]}"
    for o in sched.owners.tolist():
        yield f"owner c{o[0]} m{o[1]} g{o[2]} n{o[3]}"
    for route in sched.routes:
        yield "route " + ",".join(f"{a}>{b}" for a, b in route)
    after = sched.after.tolist()
    for row, step in enumerate(sched.steps.tolist()):
        yield f"{row}: {line(step, after)}"


def line(step: tuple[int, ...], after: list[int] | None = None) -> str:
    """One step as one line (without its row number)."""
    (
        kind,
        lane,
        stage,
        node,
        chunk,
        c_lo,
        c_hi,
        m_lo,
        m_hi,
        h_lo,
        h_hi,
        payload,
        hold,
        ahead,
        q,
        dst,
        route,
        ref,
        a_lo,
        a_hi,
    ) = step
    words = [f"n{node} {_name(STAGE_NAMES, stage)} c{chunk} {_name(KIND_NAMES, kind)}"]
    if kind in (SEND, RECV):
        words.append(_name(PAYLOAD_NAMES, payload))
    words.append(f"c{c_lo}:{c_hi} m{m_lo}:{m_hi} h{h_lo}:{h_hi}")
    if hold:
        words.append(_name(HOLD_NAMES, hold))
    if ahead:
        words.append(f"ahead={ahead}")
    if q != NONE:
        words.append(f"q={'all' if q == ALL else q}")
    if dst != NONE:
        words.append(f"{'from' if kind == RECV else 'to'}={dst}")
    if route != NONE:
        words.append(f"route={route}")
    if ref != NONE:
        words.append(f"ref={ref}")
    if kind == MERGE and lane:
        words.append("lane=nic")
    if after is not None and a_hi > a_lo:
        words.append("after=" + ",".join(map(str, after[a_lo:a_hi])))
    return " ".join(words)


def _name(names: dict[int, str], code: int) -> str:
    """Name of a code; the code itself where a damaged schedule has one that does not exist."""
    return names.get(code, f"?{code}")


def parse(text: str) -> Schedule:
    """Read the text form; raises ScheduleError naming the line that cannot be read."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != HEADER:
        got = lines[0][:60] if lines else "an empty file"
        raise ScheduleError(
            f"not a schedule: got {got!r}, expected a first line {HEADER!r}; save one with mcf plan --save"
        )
    reader = _Reader()
    for number, text_line in enumerate(lines[1:], 2):
        try:
            reader.read(text_line.strip())
        except (ValueError, KeyError, IndexError, TypeError) as error:
            if isinstance(error, ScheduleError):
                raise
            raise ScheduleError(
                f"line {number} of the schedule cannot be read: {text_line.strip()[:80]!r}; expected a line as "
                "`mcf plan --save` writes it, whole"
            ) from None
    return reader.schedule()


class _Reader:
    def __init__(self) -> None:
        self.meta: dict[str, str] = {}
        self.pieces: list[tuple[int, ...]] = []
        self.owners: list[tuple[int, ...]] = []
        self.routes: list[tuple[tuple[int, int], ...]] = []
        self.rows: list[tuple[int, ...]] = []
        self.after: list[int] = []

    def read(self, text: str) -> None:
        if not text or text.startswith("#"):
            return
        word, rest = text.split(" ", 1)
        if word == "meta":
            key, value = rest.split("=", 1)
            self.meta[key] = value
        elif word == "piece":
            chunk, node, span = rest.split()
            self.pieces.append((_tagged("c", chunk), _tagged("n", node), *_pair(span)))
        elif word == "owner":
            self.owners.append(tuple(_tagged(tag, w) for tag, w in zip("cmgn", rest.split(), strict=True)))
        elif word == "route":
            self.routes.append(tuple((_whole(a), _whole(b)) for a, b in (e.split(">") for e in rest.split(","))))
        else:
            self._step(_whole(word.removesuffix(":")), rest.split())

    def _step(self, number: int, words: list[str]) -> None:
        if number != len(self.rows):
            raise ValueError("rows are not in order")
        row = dict.fromkeys(STEP.names or (), NONE)
        row |= {"payload": 0, "hold": 0, "ahead": 0, "lane": 0}
        row["node"], row["chunk"] = _tagged("n", words[0]), _tagged("c", words[2])
        row["stage"] = _CODES["stage"][words[1]]
        row["kind"] = kind = _CODES["kind"][words[3]]
        row["lane"] = int(kind in (SEND, RECV))
        rest = words[4:]
        if kind in (SEND, RECV):
            row["payload"] = _CODES["payload"][rest.pop(0)]
        for axis, word in zip("cmh", rest[:3], strict=True):
            row[f"{axis}_lo"], row[f"{axis}_hi"] = _pair(_untag(axis, word))
        row["after_lo"] = len(self.after)
        for word in rest[3:]:
            self._option(row, word)
        row["after_hi"] = len(self.after)
        self.rows.append(tuple(row[name] for name in STEP.names or ()))

    def _option(self, row: dict[str, int], word: str) -> None:
        if word in ("keep", "stream"):
            row["hold"] = _CODES["hold"][word]
            return
        key, value = word.split("=")
        if key == "after":
            self.after.extend(_whole(v) for v in value.split(","))
        elif key == "q":
            row["q"] = ALL if value == "all" else _whole(value)
        elif key == "lane":
            row["lane"] = _CODES["lane"][value]
        else:
            row[{"to": "dst", "from": "dst", "ahead": "ahead", "route": "route", "ref": "ref"}[key]] = _whole(value)

    def schedule(self) -> Schedule:
        return Schedule(
            meta=read_meta(self.meta),
            pieces=np.array(self.pieces, dtype=PIECE),
            owners=np.array(self.owners, dtype=OWNER),
            routes=tuple(self.routes),
            steps=np.array(self.rows, dtype=STEP),
            after=np.array(self.after, dtype="<i4"),
        )


def read_meta(raw: dict[str, str]) -> ScheduleMeta:
    """Build the meta from its text values; raises ScheduleError naming a missing, unknown or malformed key."""
    known = {f.name: f for f in fields(ScheduleMeta)}
    for key in raw:
        if key not in known:
            raise ScheduleError(f"unknown meta key {key!r}: known are {', '.join(sorted(known))}")
    missing = [name for name, field in known.items() if field.default is MISSING and name not in raw]
    if missing:
        raise ScheduleError(f"the schedule's meta lacks {', '.join(missing)}")
    return ScheduleMeta(**{k: _meta_value(k, v) for k, v in raw.items()})  # type: ignore[arg-type]


def _meta_value(key: str, value: str) -> object:
    if key in ("policy", "topology"):
        return value
    try:
        if key in ("budgets", "shares", "head_cuts"):
            return tuple(int(v) for v in value.split(",") if v)
        if key == "kv_bytes" and value == str(INT4_BYTES):
            return INT4_BYTES
        return int(value)
    except ValueError:
        raise ScheduleError(f"meta {key} is {value!r}: expected a whole number") from None


def _pair(text: str) -> tuple[int, int]:
    lo, hi = text.split(":")
    return _whole(lo), _whole(hi)


def _tagged(tag: str, word: str) -> int:
    return _whole(_untag(tag, word))


def _untag(tag: str, word: str) -> str:
    if not word.startswith(tag):
        raise ValueError(f"{word} does not start with {tag}")
    return word[1:]


def _whole(text: str) -> int:
    """A whole number that fits a column."""
    value = int(text)
    if not -(2**31) <= value < 2**31:
        raise ValueError(f"{value} does not fit 32 bits")
    return value


def grid(sched: Schedule, *, mark: int | None = None, around: int = 6, width: int = 34) -> str:
    """The step-by-node grid: one column per node, list positions downwards; `mark` shows a bad row and its
    neighbourhood.
    """
    nodes = range(sched.meta.num_nodes)
    steps, after = sched.steps.tolist(), None
    if mark is None:
        lo, hi, shown = 0, max((len(sched.node_rows(n)) for n in nodes), default=0), list(nodes)
    else:
        node = steps[mark][3]
        at = mark - sched.node_rows(node).start
        lo, hi = max(0, at - around), at + around + 1
        shown = sorted({node, *list(nodes)[:3]})
    out = ["pos".rjust(5) + " " + "".join(f"node {n}".ljust(width) for n in shown).rstrip()]
    for pos in range(lo, hi):
        cells = []
        for n in shown:
            rows = sched.node_rows(n)
            row = rows.start + pos
            text = _cell(steps[row], after) if row < rows.stop else ""
            cells.append((">> " if row == mark and row < rows.stop else "   ") + text[: width - 4])
        if any(c.strip() for c in cells):
            out.append(str(pos).rjust(5) + " " + "".join(c.ljust(width) for c in cells).rstrip())
    return "\n".join(out)


def _cell(step: tuple[int, ...], after: list[int] | None) -> str:
    words = line(step, after).split()
    kind = step[0]
    parts = [words[2], *words[3:]]
    whole_heads = [w for w in parts if not w.startswith("h")]
    return " ".join(whole_heads) if kind in (SEND, RECV, ATTEND) else " ".join(whole_heads[:4])
