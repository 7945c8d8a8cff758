"""Attention of a row of a schedule on one compute half: one KV head as tiles and queries in memory, and commands.

A query sees the tokens that are not behind it: the first so many of the row's, which lie in order. Only a command says
how many are seen, so each query token is an ATTEND of its own, over the tiles of those. Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mcf.rtl.commands import GROUP_PLACES, NUM_SLOTS, SLOTS_PER_BEAT, ComputeOp, pack_command
from mcf.rtl.decode import apart
from mcf.rtl.decode_image import query_bytes, scale_bytes, tile_runs, value_runs
from mcf.rtl.golden.attention import ROW_SHIFT, ROWS, Queries, Shard, attend_shard
from mcf.rtl.golden.state import to_beats
from mcf.rtl.golden.tiles import BEAT_BYTES, NUM_PORTS, TILE_BEATS
from mcf.rtl.merges import OUT_BEATS

MOST_TOKENS = 6  # query tokens whose commands are given at a time: with LOADs half the ring of commands
_BATCH_BEATS = NUM_SLOTS // SLOTS_PER_BEAT + NUM_SLOTS * GROUP_PLACES


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Commands that are given together, for `tokens` of the row's queries, and the `records` that must leave: of each
    token, of each of its query heads, in order.
    """

    head: int
    tokens: range
    commands: list[int]
    records: list[list[int]]


@dataclass(frozen=True, kw_only=True, eq=False)
class RowHead:
    """One KV head of a row: its query tokens' `queries`, the first `seen` tokens of `num_tokens` that each may see.

    `base` is where its tiles and queries lie.
    """

    head: int
    base: int
    num_tokens: int
    queries: Sequence[Queries]
    seen: Sequence[int]
    child: int = 0

    @property
    def group(self) -> int:
        """Query heads."""
        return len(self.queries[0].q)

    @property
    def stride(self) -> int:
        """Beats from port to port."""
        return stride_of(self.num_tokens)

    @property
    def slots(self) -> int:
        """Slots of a batch: half of them, so that the next one's queries can be brought before it has ended."""
        return NUM_SLOTS // 2 if self.group <= NUM_SLOTS // 2 else NUM_SLOTS

    @property
    def batches(self) -> list[range]:
        """Query tokens that are at work together."""
        step = min(self.slots // self.group, MOST_TOKENS)
        total = len(self.queries)
        return [range(first, min(first + step, total)) for first in range(0, total, step)]

    def _queries_at(self, number: int) -> int:
        return self.base + (NUM_PORTS * self.stride + number * _BATCH_BEATS) * BEAT_BYTES

    def parts(self, shard: Shard) -> Iterator[tuple[int, bytes]]:
        """What must lie where: (address, bytes); `shard` are the row's tokens, in order."""
        values = self.base + _num_tiles(self.num_tokens) * TILE_BEATS * BEAT_BYTES
        runs = (self.base, tile_runs(shard.k, shard.k_scale)), (values, value_runs(shard.v, shard.v_scale))
        for address, ports in runs:
            yield from ((address + port * self.stride * BEAT_BYTES, run) for port, run in enumerate(ports) if run)
        for number, tokens in enumerate(self.batches):
            some = [self.queries[token] for token in tokens]
            yield self._queries_at(number), scale_bytes(some)
            yield self._queries_at(number) + NUM_SLOTS // SLOTS_PER_BEAT * BEAT_BYTES, query_bytes(some)

    def work(self, shard: Shard) -> Iterator[Batch]:
        """The commands of each batch; what must come of them if memory holds `shard`.

        A batch uses the slots of the one before the last, which must have ended when it is given.
        """
        for number, tokens in enumerate(self.batches):
            slot = number * self.slots % NUM_SLOTS
            attends = [self._attend(self.seen[t], slot + (t - tokens.start) * self.group) for t in tokens]
            commands = [*self._load(number, slot, len(tokens) * self.group), *attends]
            records = [record for token in tokens for record in self._records(shard, token)]
            yield Batch(head=self.head, tokens=tokens, commands=commands, records=records)

    def _load(self, number: int, slot: int, count: int) -> Iterator[int]:
        at, is_first = self._queries_at(number), number == 0 or self.slots == NUM_SLOTS
        table = {"place": slot // SLOTS_PER_BEAT, "count": -(-count // SLOTS_PER_BEAT)}
        yield pack_command(ComputeOp.LOAD, fence=int(is_first), table=1, address=at, **table)
        numbers = {"place": slot * GROUP_PLACES, "count": count * GROUP_PLACES}
        yield pack_command(ComputeOp.LOAD, address=at + NUM_SLOTS // SLOTS_PER_BEAT * BEAT_BYTES, **numbers)

    def _attend(self, seen: int, slot: int) -> int:
        tiles = _num_tiles(seen)
        return pack_command(
            ComputeOp.ATTEND,
            address=self.base,
            second=self.base + _num_tiles(self.num_tokens) * TILE_BEATS * BEAT_BYTES,
            stride=self.stride,
            tiles=tiles,
            tokens=seen - (tiles - 1) * ROWS if tiles else 0,
            columns=ROWS,
            count=self.group,
            slot=slot,
            place=slot * GROUP_PLACES,
            shift=ROW_SHIFT,
            finish=1,
            child=self.child,
        )

    def _records(self, shard: Shard, token: int) -> Iterator[list[int]]:
        at = slice(0, self.seen[token])
        part = Shard(k=shard.k[at], v=shard.v[at], k_scale=shard.k_scale[at], v_scale=shard.v_scale[at])
        yield from (to_beats(state, self.child, OUT_BEATS) for state in attend_shard(part, self.queries[token]))


def _num_tiles(tokens: int) -> int:
    return -(-tokens // ROWS)


def stride_of(num_tokens: int) -> int:
    """Beats from port to port for so many tokens of keys and values."""
    return apart(2 * _num_tiles(num_tokens) * TILE_BEATS)


def room_for(num_tokens: int, num_queries: int) -> int:
    """Bytes that one KV head of a row takes, at most."""
    return (NUM_PORTS * stride_of(num_tokens) + num_queries * _BATCH_BEATS) * BEAT_BYTES
