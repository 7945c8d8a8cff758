"""The compute half without clocks: commands that work on the bytes of a memory image, bit for bit."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mcf.rtl.commands import (
    GROUP_PLACES,
    NUM_ACTIVATIONS,
    NUM_SLOTS,
    PER_PLACE,
    ROW_BEATS,
    SLOTS_PER_BEAT,
    ComputeOp,
    unpack_command,
)
from mcf.rtl.golden.attention import Head, add_tile, record_of, scores_of, soften
from mcf.rtl.golden.gemv import GROUP, Ints, partials
from mcf.rtl.golden.scale_acc import scaled_rows
from mcf.rtl.golden.state import BlockState
from mcf.rtl.golden.tiles import BEAT_BYTES, NUM_PORTS, SCALE_BEATS, TILE_BEATS, read_tile


@dataclass(kw_only=True)
class ComputeModel:
    """The twin of `hdl.compute.Compute`: `states` are the records that leave, as (slot's state, child)."""

    image: bytearray
    states: list[tuple[BlockState, int]] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    activations: Ints = field(default_factory=lambda: np.zeros(NUM_ACTIVATIONS, dtype=np.int64))
    scales: Ints = field(default_factory=lambda: np.zeros((NUM_SLOTS, 2), dtype=np.int64))  # of a slot: q_scale, shift
    heads: dict[int, Head] = field(default_factory=dict)

    def run(self, commands: Sequence[int]) -> None:
        """Work on packed commands, in order."""
        works = {ComputeOp.LOAD: self._load, ComputeOp.GEMV: self._product, ComputeOp.ATTEND: self._attend}
        for word in commands:
            values = unpack_command(word)
            works[ComputeOp(values["op"])](values)
            self.events += [values["set_event"]] if values["set_event"] else []

    def _load(self, f: dict[str, int]) -> None:
        raw = self.image[f["address"] : f["address"] + BEAT_BYTES * f["count"]]
        if f["table"]:
            numbers = np.frombuffer(bytes(raw), dtype="<u2").reshape(-1, 2).astype(np.int64) & (0xFFFF, 31)
            first = f["place"] * SLOTS_PER_BEAT
            self.scales[first : first + len(numbers)] = numbers
        else:
            first = f["place"] * PER_PLACE
            self.activations[first : first + len(raw) // 2] = np.frombuffer(bytes(raw), dtype="<i2")

    def _product(self, f: dict[str, int]) -> None:
        bytes_per_tile = BEAT_BYTES * (f["columns"] + SCALE_BEATS)
        for row_tile in range(f["tiles"]):
            at = [
                f["address"] + BEAT_BYTES * f["run"] * row_tile + group * bytes_per_tile for group in range(f["count"])
            ]
            tiles = [self._tile(address, f["stride"], f["columns"]) for address in at]
            for vector in range(f["vectors"]):
                places = [f["place"] + GROUP_PLACES * (vector * f["count"] + group) for group in range(f["count"])]
                sums = [partials(w, self._vector(p, f["columns"])) for (w, _), p in zip(tiles, places, strict=True)]
                rows = scaled_rows(np.stack(sums), np.stack([scales for _, scales in tiles]), f["shift"])
                to = f["second"] + BEAT_BYTES * ROW_BEATS * (vector * f["tiles"] + row_tile)
                self.image[to : to + BEAT_BYTES * ROW_BEATS] = rows.astype("<i4").tobytes()

    def _attend(self, f: dict[str, int]) -> None:
        for tile in range(f["tiles"]):
            keys, key_scales = self._tile(
                f["address"] + tile * BEAT_BYTES * (f["columns"] + SCALE_BEATS), f["stride"], f["columns"]
            )
            values, value_scales = self._tile(f["second"] + tile * BEAT_BYTES * TILE_BEATS, f["stride"], GROUP)
            tokens = f["tokens"] if tile == f["tiles"] - 1 else GROUP
            for head in range(f["count"]):
                slot = f["slot"] + head
                sums = partials(keys, self._vector(f["place"] + GROUP_PLACES * head, f["columns"]))
                rows = scaled_rows(sums[None], key_scales[None], f["shift"])[:tokens]
                scores = scores_of(rows, int(self.scales[slot, 0]), int(self.scales[slot, 1]))
                total, weights = soften(scores, value_scales[:tokens])
                self.heads[slot] = add_tile(self.heads.get(slot), total, values[:, :tokens] @ weights)
        if f["finish"]:
            slots = range(f["slot"], f["slot"] + f["count"])
            self.states += [(record_of(self.heads.pop(slot, None)), f["child"]) for slot in slots]

    def _tile(self, address: int, stride: int, columns: int) -> tuple[Ints, Ints]:
        starts = [address + BEAT_BYTES * stride * port for port in range(NUM_PORTS)]
        num_bytes = BEAT_BYTES * (columns + SCALE_BEATS)
        return read_tile([bytes(self.image[start : start + num_bytes]) for start in starts])

    def _vector(self, place: int, columns: int) -> Ints:
        return self.activations[place * PER_PLACE : place * PER_PLACE + columns]
