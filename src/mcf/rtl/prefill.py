"""One layer of prefill on one node, at a tiny size: a chunk's projections and its attention to itself, and the KV that
leaves for other nodes. Where things lie in memory and what the compute half is told. Pure; `prefill_run` runs it.

The projections are one product: the rows of Q, K and V, head after head, times each token. The processor beside the
node takes rows to numbers, turns them by their positions (RoPE), and quantises: to tiles of keys and values, and to
queries. Then each token attends itself and what is before it: one command per token and KV head, because only a command
says how many tokens are seen. So the tiles are read again for every token: right, and no way to be fast.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mcf.errors import ScheduleError
from mcf.rtl.commands import (
    GROUP_PLACES,
    NUM_PLACES,
    NUM_SLOTS,
    PER_PLACE,
    ROW_BEATS,
    SLOTS_PER_BEAT,
    ComputeOp,
    pack_command,
)
from mcf.rtl.golden.attention import ROW_SHIFT, ROWS
from mcf.rtl.golden.gemv import GROUP
from mcf.rtl.golden.tiles import BEAT_BYTES, NUM_PORTS, SCALE_BEATS, TILE_BEATS
from mcf.schedule.packets import BLOCK_TOKENS, SEGMENT_BEATS
from mcf.schedule.wire import Collective, Op, Stage

PRODUCT_SHIFT = 4  # int8 times int4 over few groups: 32 bits hold the rows
SCALE_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class PrefillCase:
    """One chunk of `tokens` in one layer. Raises ScheduleError for what is not tiny, or no chunk of whole blocks."""

    tokens: int = BLOCK_TOKENS
    hidden: int = 2 * GROUP
    num_q_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64

    def __post_init__(self) -> None:
        """Refuse what does not fit."""
        if self.tokens not in (BLOCK_TOKENS, ROWS):
            raise ScheduleError(f"got a chunk of {self.tokens} tokens: expected {BLOCK_TOKENS} or {ROWS}, one tile")
        if self.hidden % GROUP or not 0 < self.hidden <= NUM_PLACES * PER_PLACE // 2:
            raise ScheduleError(
                f"got {self.hidden} columns: expected a multiple of {GROUP} that the buffer holds twice"
            )
        if self.num_q_heads % self.num_kv_heads or self.group > NUM_SLOTS:
            raise ScheduleError(
                f"got {self.num_q_heads} query heads for {self.num_kv_heads}: expected at most {NUM_SLOTS} each"
            )
        if not 0 < self.head_dim <= ROWS or self.rows % ROWS:
            raise ScheduleError(f"got {self.rows} rows of heads of {self.head_dim}: expected a multiple of {ROWS}")

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.num_q_heads // self.num_kv_heads

    @property
    def rows(self) -> int:
        """Rows of Q, K and V."""
        return (self.num_q_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def groups(self) -> int:
        """Groups of 128 columns."""
        return self.hidden // GROUP

    @property
    def batch(self) -> int:
        """Tokens whose queries are in the slots at once."""
        return NUM_SLOTS // self.group


@dataclass(frozen=True, kw_only=True)
class PrefillLayout:
    """Addresses in bytes: the ports' weights, tokens, rows; the ports' tiles; scales and queries, batch by batch."""

    case: PrefillCase

    @property
    def weight_stride(self) -> int:
        """Beats of one port's weights."""
        return self.case.rows // ROWS * self.case.groups * TILE_BEATS

    @property
    def inputs(self) -> int:
        """Tokens, `hidden` numbers of 16 bits each."""
        return NUM_PORTS * self.weight_stride * BEAT_BYTES

    @property
    def outputs(self) -> int:
        """Rows of 32 bits, token after token."""
        return self.inputs + self.case.tokens * self.case.hidden * 2

    @property
    def stride(self) -> int:
        """Beats of one port's tiles of keys and values."""
        return self.case.num_kv_heads * (self._key_beats + TILE_BEATS)

    @property
    def _key_beats(self) -> int:
        return SCALE_BEATS + self.case.head_dim

    def keys(self, head: int) -> int:
        """Port 0's tile of keys."""
        start = self.outputs + self.case.tokens * self.case.rows * 4
        return start + head * (self._key_beats + TILE_BEATS) * BEAT_BYTES

    def values(self, head: int) -> int:
        """Port 0's tile of values."""
        return self.keys(head) + self._key_beats * BEAT_BYTES

    def scales(self, head: int, first: int) -> int:
        """The scales of the query heads of a batch of tokens; their queries follow."""
        beats = NUM_SLOTS // SLOTS_PER_BEAT + NUM_SLOTS * GROUP_PLACES
        batches = -(-self.case.tokens // self.case.batch)
        start = self.keys(0) + NUM_PORTS * self.stride * BEAT_BYTES
        return start + (head * batches + first // self.case.batch) * beats * BEAT_BYTES

    def queries(self, head: int, first: int) -> int:
        """The queries of a batch."""
        return self.scales(head, first) + NUM_SLOTS // SLOTS_PER_BEAT * BEAT_BYTES


def project_commands(layout: PrefillLayout, *, set_event: int) -> Iterator[int]:
    """The rows of all tokens, as many tokens at a time as the buffer of activations holds."""
    case = layout.case
    at_once = min(NUM_PLACES // 2 // (case.groups * GROUP_PLACES), case.tokens)
    beats = case.hidden // PER_PLACE
    for first in range(0, case.tokens, at_once):
        count = min(at_once, case.tokens - first)
        yield pack_command(
            ComputeOp.LOAD, fence=1, address=layout.inputs + first * beats * BEAT_BYTES, count=count * beats
        )
        yield pack_command(
            ComputeOp.GEMV,
            second=layout.outputs + first * case.rows // ROWS * ROW_BEATS * BEAT_BYTES,
            stride=layout.weight_stride,
            tiles=case.rows // ROWS,
            count=case.groups,
            vectors=count,
            columns=GROUP,
            shift=PRODUCT_SHIFT,
            set_event=set_event if first + count == case.tokens else 0,
        )


def attend_commands(layout: PrefillLayout) -> Iterator[int]:
    """Each token's attention up to itself: KV head after KV head, token after token, its query heads in order."""
    case = layout.case
    for head in range(case.num_kv_heads):
        for first in range(0, case.tokens, case.batch):
            tokens = range(first, min(first + case.batch, case.tokens))
            slots = len(tokens) * case.group
            table = -(-slots // SLOTS_PER_BEAT)
            yield pack_command(ComputeOp.LOAD, fence=1, table=1, address=layout.scales(head, first), count=table)
            yield pack_command(ComputeOp.LOAD, address=layout.queries(head, first), count=slots * GROUP_PLACES)
            for token in tokens:
                slot = (token - first) * case.group
                yield pack_command(
                    ComputeOp.ATTEND,
                    address=layout.keys(head),
                    second=layout.values(head),
                    stride=layout.stride,
                    tiles=1,
                    tokens=token + 1,
                    columns=case.head_dim,
                    count=case.group,
                    slot=slot,
                    place=slot * GROUP_PLACES,
                    shift=ROW_SHIFT,
                    finish=1,
                )


def replica_header(*, layer: int, head: int, is_v: int, block: int, route: int, src: int) -> dict[str, int]:
    """The header of the packets of one block of keys or values, as a multicast of copies to keep."""
    fields = {"stage": Stage.PREFILL, "op": Op.KV_REPLICA, "collective": Collective.MULTICAST}
    place = {"layer": layer, "head": head, "is_v": is_v, "block": block}
    return {**fields, **place, "src": src, "dst_node": src, "dst_root": src, "route_id": route, "len": SEGMENT_BEATS}


def block_beats(case: PrefillCase) -> int:
    """Payload beats of a block: INT4 numbers, then a scale for each token."""
    return BLOCK_TOKENS * (case.head_dim // 2 + SCALE_BYTES) // BEAT_BYTES
