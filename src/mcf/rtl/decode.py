"""One decode step's attention of a model over a mesh of nodes: who holds which tokens, where they lie in memory, what
the compute halves are told. Pure; `decode_tree` says where states meet, `decode_image` fills the memory.

The context's pages of 64 tokens are dealt out in runs. Every node attends all query heads to its own tokens, layer by
layer, KV head by KV head.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mcf.errors import ScheduleError
from mcf.model import ModelShape
from mcf.rtl.commands import GROUP_PLACES, SLOTS_PER_BEAT, ComputeOp, pack_command
from mcf.rtl.commands import NUM_SLOTS as NUM_HEADS_AT_ONCE
from mcf.rtl.golden.attention import MAX_TOKENS, ROW_SHIFT, ROWS
from mcf.rtl.golden.gemv import GROUP
from mcf.rtl.golden.tiles import BEAT_BYTES, NUM_PORTS, SCALE_BEATS, TILE_BEATS
from mcf.rtl.rates import matrices, product_beats
from mcf.rtl.registers import NUM_SLOTS
from mcf.rtl.routes import Mesh
from mcf.schedule.packets import BLOCK_TOKENS
from mcf.schedule.wire import FIELDS

GIB = 1 << 30
MEMORY_BYTES = 4 * GIB  # of a KR260
ROW_BYTES = 8192  # of a bank of memory
OTHER = "choose another model"
SYSTEM_BYTES = GIB // 2  # kept for the processor's own programs


@dataclass(frozen=True, kw_only=True)
class DecodeCase:
    """A model's attention to `context` tokens on a mesh; the first `num_layers` layers of it (0: all).

    `group` is the quantisation group of its weights. Raises ScheduleError for what a node cannot take, with the limit:
    head size, group size, layers, heads, tokens of a shard, and memory, of which weights (all of them on each node)
    and KV of all layers take their part.
    """

    shape: ModelShape
    mesh: Mesh
    context: int
    num_layers: int = 0
    group: int = GROUP
    memory_bytes: int = MEMORY_BYTES

    def __post_init__(self) -> None:
        """Refuse what does not fit."""
        for wrong in _wrong(self):
            raise ScheduleError(wrong)

    @property
    def layers(self) -> range:
        """The layers that are worked on."""
        return range(self.num_layers or self.shape.num_layers)

    def shard(self, node: int) -> range:
        """The tokens of a node: whole pages, in runs."""
        pages, nodes = -(-self.context // BLOCK_TOKENS), self.mesh.num_nodes
        ends = [min(pages * n // nodes * BLOCK_TOKENS, self.context) for n in (node, node + 1)]
        return range(*ends)

    def num_tiles(self, node: int) -> int:
        """Tiles of 128 tokens."""
        return -(-len(self.shard(node)) // ROWS)


def _wrong(case: DecodeCase) -> Iterator[str]:
    shape = case.shape
    if case.context < 1:
        yield f"got a context of {case.context} tokens: expected at least 1"
    if shape.head_dim > ROWS:
        yield f"got heads of {shape.head_dim}: expected at most {ROWS}, the rows of the array; {OTHER}"
    if not 1 <= case.group <= GROUP:
        yield f"got a quantisation group of {case.group}: expected 1 to {GROUP}, what a sum of the array can hold"
    if shape.num_layers > FIELDS["layer"].limit or not 0 <= case.num_layers <= shape.num_layers:
        asked = max(shape.num_layers, case.num_layers)
        yield f"got {asked} layers: expected at most {min(FIELDS['layer'].limit, shape.num_layers)}"
    if shape.num_kv_heads > FIELDS["head"].limit:
        yield f"got {shape.num_kv_heads} KV heads: the packet header has room for {FIELDS['head'].limit}; {OTHER}"
    if shape.num_group_heads > NUM_HEADS_AT_ONCE:
        yield f"got {shape.num_group_heads} query heads per KV head: expected at most {NUM_HEADS_AT_ONCE}; {OTHER}"
    if shape.num_q_heads > NUM_SLOTS:
        yield f"got {shape.num_q_heads} query heads: expected at most {NUM_SLOTS}, the reduction slots; {OTHER}"
    longest = max(len(case.shard(node)) for node in range(case.mesh.num_nodes))
    if longest > MAX_TOKENS:
        yield f"got {longest} tokens on one node: expected at most {MAX_TOKENS}, what a head can add up; use more nodes"
    yield from _too_large(case)


def _too_large(case: DecodeCase) -> Iterator[str]:
    shape, wide_bytes = case.shape, NUM_PORTS * BEAT_BYTES
    beats = sum(product_beats(*matrix, group=case.group) for matrix in matrices(shape)) * shape.num_layers
    weights = (beats + product_beats(shape.vocab_size, shape.hidden_size, group=case.group)) * wide_bytes
    tiles = max(case.num_tiles(node) for node in range(case.mesh.num_nodes))
    kv = shape.num_layers * shape.num_kv_heads * tiles * (_key_beats(shape) + TILE_BEATS) * wide_bytes
    room = case.memory_bytes - SYSTEM_BYTES
    if weights + kv > room:
        cure = "choose a smaller model" if weights > room else "use more nodes or a shorter context"
        yield (
            f"got a context of {case.context} tokens: {kv / GIB:.2f} GiB of KV on one node beside "
            f"{weights / GIB:.2f} GiB of weights, expected at most {room / GIB:.2f} GiB together; {cure}"
        )


# --- memory ---


def apart(beats: int) -> int:
    """The next number of beats that is one row beyond a multiple of all 16 banks' rows of 8 KB."""
    row, banks = ROW_BYTES // BEAT_BYTES, 16
    return -(-(beats - row) // (row * banks)) * row * banks + row


def _key_beats(shape: ModelShape) -> int:
    return SCALE_BEATS + shape.head_dim


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where things lie on a node. Each port has `stride` beats: of layer after layer, head after head, K then V tiles.
    Behind the last port's: for each layer the query heads' scales, then their queries. Addresses in bytes.
    """

    case: DecodeCase
    node: int

    @property
    def key_run(self) -> int:
        """Beats of a KV head's keys in one port."""
        return self.case.num_tiles(self.node) * _key_beats(self.case.shape)

    @property
    def _head_run(self) -> int:
        return self.key_run + self.case.num_tiles(self.node) * TILE_BEATS

    @property
    def stride(self) -> int:
        """Beats of one port, and some more, so that ports read from different banks at a time."""
        return apart(len(self.case.layers) * self.case.shape.num_kv_heads * self._head_run)

    def keys(self, layer: int, head: int) -> int:
        """Port 0's run of a KV head's key tiles; its value tiles follow."""
        return (layer * self.case.shape.num_kv_heads + head) * self._head_run * BEAT_BYTES

    def values(self, layer: int, head: int) -> int:
        """Port 0's run of a KV head's value tiles."""
        return self.keys(layer, head) + self.key_run * BEAT_BYTES

    @property
    def _batch_beats(self) -> int:
        heads = self.case.shape.num_group_heads * batch_heads(self.case.shape)
        return -(-heads // SLOTS_PER_BEAT) + heads * GROUP_PLACES

    def scales(self, layer: int, batch: int) -> int:
        """The scales of a batch of query heads; its queries follow."""
        batches = len(batches_of(self.case.shape))
        return (NUM_PORTS * self.stride + (layer * batches + batch) * self._batch_beats) * BEAT_BYTES

    def queries(self, layer: int, batch: int) -> int:
        """The queries of a batch of query heads, 128 numbers of 16 bits each."""
        heads = self.case.shape.num_group_heads * batch_heads(self.case.shape)
        return self.scales(layer, batch) + -(-heads // SLOTS_PER_BEAT) * BEAT_BYTES

    @property
    def num_bytes(self) -> int:
        """The end of it all."""
        return self.scales(len(self.case.layers), 0)


def batch_heads(shape: ModelShape) -> int:
    """KV heads whose query heads are in the slots at once."""
    return min(NUM_HEADS_AT_ONCE // shape.num_group_heads, shape.num_kv_heads)


def batches_of(shape: ModelShape) -> list[range]:
    """The KV heads, batch by batch."""
    return [
        range(at, min(at + batch_heads(shape), shape.num_kv_heads))
        for at in range(0, shape.num_kv_heads, batch_heads(shape))
    ]


# --- commands ---


def layer_commands(layout: Layout, layer: int, *, child: int, wait_event: int = 0, set_event: int = 0) -> Iterator[int]:
    """What a node's compute half is told for one layer: for each batch its scales, its queries, attention per KV head.

    The first command waits for `wait_event`. When the first KV head is done `set_event` is set, when the next one is,
    the event after it, and so on; 0: none.
    """
    case, node = layout.case, layout.node
    shape, group = case.shape, case.shape.num_group_heads
    tiles, tokens = case.num_tiles(node), len(case.shard(node))
    batches = batches_of(shape)
    for number, heads in enumerate(batches):
        waits = {"wait_event": wait_event} if number == 0 else {}
        count = len(heads) * group
        yield pack_command(
            ComputeOp.LOAD,
            fence=1,
            table=1,
            count=-(-count // SLOTS_PER_BEAT),
            address=layout.scales(layer, number),
            **waits,
        )
        yield pack_command(ComputeOp.LOAD, count=count * GROUP_PLACES, address=layout.queries(layer, number))
        for place, head in enumerate(heads):
            yield pack_command(
                ComputeOp.ATTEND,
                address=layout.keys(layer, head),
                second=layout.values(layer, head),
                stride=layout.stride,
                tiles=tiles,
                tokens=tokens - ROWS * (tiles - 1) if tiles else 0,
                columns=shape.head_dim,
                count=group,
                slot=place * group,
                place=place * group * GROUP_PLACES,
                shift=ROW_SHIFT,
                finish=1,
                child=child,
                set_event=set_event + head if set_event else 0,
            )
