"""Commands of the compute half: 256 bits with which software asks for a matrix product or for attention over a shard.

`TABLE` knows the bits. Three operations: LOAD brings activations (or the scales of query heads) from memory, GEMV
multiplies a matrix with one or several vectors of activations and stores the rows, ATTEND runs query heads over the
tiles of a KV head. How tiles lie in memory says `mcf.rtl.golden.tiles`. Commands are worked on in order; memory is read
for the next ones while one computes, unless they have `fence`.
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum

from mcf.errors import ScheduleError
from mcf.rtl.descriptor import DescriptorField
from mcf.rtl.golden.gemv import GROUP
from mcf.rtl.golden.tiles import SCALE_BEATS, TILE_BEATS

COMMAND_BITS = 256
NUM_PORTS = 4  # memory ports, each with its own run of every tile
BUFFER_BEATS = 4096  # wide beats of the tile buffer
NUM_ACTIVATIONS = 16384  # of the activation buffer, 16 bits each
PER_PLACE = 8  # activations in a beat, and in a place of their buffer
NUM_PLACES = NUM_ACTIVATIONS // PER_PLACE
NUM_SLOTS = 16  # query heads whose scales are kept and that can be attended at once
SLOTS_PER_BEAT = 4  # a slot's scales take two numbers of 16 bits: q_scale, shift
ROW_BEATS = 32  # of 128 rows of 32 bits
GROUP_PLACES = GROUP // PER_PLACE
RECORD_ROOM = 512  # beats of states that no packet has taken: more than those of all slots


class ComputeOp(IntEnum):
    """What a command asks for."""

    LOAD = 1
    GEMV = 2
    ATTEND = 3


_ROWS: tuple[tuple[str, int, str], ...] = (
    ("op", 3, "1 LOAD, 2 GEMV, 3 ATTEND"),
    ("fence", 1, "1: wait until all earlier commands are done"),
    ("wait_event", 8, "event to take before the command starts; 0: none"),
    ("set_event", 8, "event to set when all is computed and stored; 0: none"),
    ("address", 40, "LOAD: the numbers; GEMV: port 0's run of the matrix; ATTEND: port 0's run of the key tiles"),
    ("second", 40, "GEMV: where the rows go; ATTEND: port 0's run of the value tiles"),
    ("stride", 28, "beats from one port's run to the next port's"),
    ("run", 16, "GEMV: beats of a row tile in one port's run, groups * (4 + columns)"),
    ("tiles", 12, "GEMV: row tiles; ATTEND: tiles of 128 tokens, 0 for an empty shard"),
    ("count", 11, "LOAD: beats; GEMV: groups of a row tile; ATTEND: query heads"),
    ("vectors", 8, "GEMV: vectors that the matrix is multiplied with, one after the other in the activation buffer"),
    (
        "place",
        11,
        "place in the activation buffer: LOAD: first; GEMV: first vector; ATTEND: first query, 16 places each",
    ),
    ("columns", 8, "GEMV: columns of a group; ATTEND: head size; 1 to 128"),
    ("shift", 5, "right shift of rows after their scales"),
    ("tokens", 8, "ATTEND: tokens in the last tile, 1 to 128"),
    ("slot", 4, "ATTEND: slot of the first query head; the others follow"),
    ("finish", 1, "ATTEND: 1: the heads' states leave when the last tile is done"),
    ("child", 4, "ATTEND: this node's place among the children that the states are merged with"),
    ("table", 1, "LOAD: 1: scales of query heads, 4 slots in a beat, from slot 4 * place on"),
    ("spare", 39, "0"),
)


def _table() -> Iterator[DescriptorField]:
    low = 0
    for name, width, meaning in _ROWS:
        yield DescriptorField(name=name, low=low, width=width, is_signed=False, meaning=meaning)
        low += width
    assert low == COMMAND_BITS


TABLE: tuple[DescriptorField, ...] = tuple(_table())
FIELDS: Mapping[str, DescriptorField] = {field.name: field for field in TABLE}


def pack_command(op: ComputeOp, **values: int) -> int:
    """Pack a command; fields left out are 0, `run` of GEMV follows from the others.

    Raises ScheduleError for an unknown field, a value that does not fit, and what the hardware cannot do.
    """
    if op is ComputeOp.GEMV:
        values = {"run": values.get("count", 0) * (values.get("columns", 0) + SCALE_BEATS), **values}
    values = {"op": op, **values}
    for name, value in values.items():
        if name not in FIELDS:
            raise ScheduleError(f"unknown command field {name!r}: known are {', '.join(FIELDS)}")
        if value not in FIELDS[name].span:
            raise ScheduleError(f"got {name} = {value}: expected 0 to {FIELDS[name].span.stop - 1}")
    fields = {field.name: values.get(field.name, 0) for field in TABLE}
    for wrong in _wrong(op, fields):
        raise ScheduleError(f"{op.name}: {wrong}")
    return sum(fields[field.name] << field.low for field in TABLE)


def unpack_command(word: int) -> dict[str, int]:
    """Read a command into its fields."""
    return {field.name: word >> field.low & (1 << field.width) - 1 for field in TABLE}


def _wrong(op: ComputeOp, f: Mapping[str, int]) -> Iterator[str]:
    """Say what the hardware cannot do."""
    for name in ("address", "second"):
        if f[name] % 16:
            yield f"got {name} = {f[name]}: expected a multiple of 16, the bytes of a beat"
    if op is ComputeOp.LOAD:
        room = NUM_SLOTS // SLOTS_PER_BEAT if f["table"] else NUM_PLACES
        if f["place"] + f["count"] > room:
            yield f"got {f['count']} beats for place {f['place']}: expected them to end within {room}"
        return
    if not 1 <= f["columns"] <= GROUP:
        yield f"got {f['columns']} columns: expected 1 to {GROUP}"
    if op is ComputeOp.GEMV:
        yield from _wrong_product(f)
    else:
        yield from _wrong_attention(f)


def _wrong_product(f: Mapping[str, int]) -> Iterator[str]:
    for name in ("tiles", "count", "vectors"):
        if f[name] == 0:
            yield f"got {name} = 0: expected at least 1"
    if f["place"] + f["vectors"] * f["count"] * GROUP_PLACES > NUM_PLACES:
        yield (
            f"got {f['vectors']} vectors of {f['count']} groups from place {f['place']} on: "
            f"expected them within {NUM_PLACES} places of {PER_PLACE} activations"
        )
    if f["vectors"] > 1 and f["run"] > BUFFER_BEATS:
        yield (
            f"got a row tile of {f['run']} beats for {f['vectors']} vectors: "
            f"expected at most {BUFFER_BEATS}, what the tile buffer holds"
        )


def _wrong_attention(f: Mapping[str, int]) -> Iterator[str]:
    if not 1 <= f["count"] <= NUM_SLOTS - f["slot"]:
        yield f"got {f['count']} heads from slot {f['slot']} on: expected at least one, within {NUM_SLOTS} slots"
    if f["place"] + f["count"] * GROUP_PLACES > NUM_PLACES:
        yield f"got {f['count']} queries from place {f['place']} on: expected them within {NUM_PLACES} places"
    if f["tiles"] and not 1 <= f["tokens"] <= TILE_BEATS - SCALE_BEATS:
        yield f"got {f['tokens']} tokens in the last tile: expected 1 to {TILE_BEATS - SCALE_BEATS}"
    if not f["tiles"] and not f["finish"]:
        yield "got no tiles and no finish: expected one of them, or there is nothing to do"


def markdown() -> str:
    """The table for the documents, one line per field."""
    lines = ["| bits | width | field | meaning |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {f.high}:{f.low} | {f.width} | `{f.name}` | {f.meaning} |" for f in TABLE)]) + "\n"
