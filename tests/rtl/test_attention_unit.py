"""The attention unit against its golden model, bit for bit, on random traffic with random stalls."""

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from mcf.rtl.golden.attention import ROWS, Head, TileSum, add_tile, record_of, scores_of, soften
from mcf.rtl.golden.state import to_beats
from mcf.rtl.hdl.attention import Attention
from mcf.rtl.hdl.attn_softmax import AttnSoftmax
from rtl_streams import packets_of, put, simulate, sink, source

Command = dict[str, int]


class Traffic:
    """Commands with rows, scales and values, and what must come of them."""

    def __init__(self, seed: int, num_commands: int) -> None:
        self.rng, self.random = np.random.default_rng(seed), random.Random(seed)
        self.commands: list[Command] = []
        self.rows: list[int] = []
        self.scales: list[int] = []
        self.values: list[np.ndarray] = []
        self.activations: list[int] = []
        self.records: list[list[int]] = []
        self.heads: dict[int, Head] = {}
        for _ in range(num_commands):
            self._add()

    def _add(self) -> None:
        pick = self.random.choice
        tokens = pick([0, 1, 5, 64, 127, 128, 128])
        command = {"tokens": tokens, "slot": pick([0, 3, 15]), "q_scale": pick([0, 1, 40000, 65535]), "shift": 31}
        command |= {"finish": int(self.random.random() < 0.4), "child": pick(range(16))}
        self.commands.append(command)
        if tokens:
            self._tile(command, tokens)
        if command["finish"]:
            record = record_of(self.heads.pop(command["slot"], None))
            self.records.append(to_beats(record, command["child"], 16))

    def _tile(self, command: Command, tokens: int) -> None:
        rng, pick = self.rng, self.random.choice
        spread = pick([0, 12, 20, 26, 30, 31])
        command["shift"] = pick([0, 7, 14, 17, 20, 31])
        rows = rng.integers(-(1 << spread), 1 << spread, ROWS) + pick([0, 0, 1 << spread, -(1 << spread)])
        rows = rows.clip(-(1 << 31), (1 << 31) - 1)
        scales = pick([rng.integers(0, 65536, ROWS), np.full(ROWS, pick([0, 1, 65535])), rng.integers(0, 9, ROWS)])
        values = pick([rng.integers(-8, 8, (ROWS, ROWS)), np.full((ROWS, ROWS), pick([-8, 7]))])
        self.rows += rows.tolist()
        self.scales += scales.tolist()
        self.values.append(values)
        scores = scores_of(rows[:tokens], command["q_scale"], command["shift"])
        tile, activations = soften(scores, scales[:tokens])
        assert isinstance(tile, TileSum)
        self.activations += np.pad(activations, (0, ROWS - tokens)).tolist()
        head = self.heads.get(command["slot"])
        self.heads[command["slot"]] = add_tile(head, tile, activations @ values[:tokens])


def run(traffic: Traffic, stalls: float) -> tuple[list[int], list[list[int]]]:
    """The activations and records of the unit; the array between its streams is this function."""
    design, activations = Attention(), []
    beats: list[Any] = []

    async def array(ctx: Any) -> None:
        for number, values in enumerate(traffic.values):
            while len(activations) < (number + 1) * ROWS:
                await ctx.tick()
            partials = np.array(activations[-ROWS:]) @ values
            for row, value in enumerate(partials.tolist()):
                await put(ctx, design.partials, {"row": row, "value": value, "last": row == ROWS - 1})
        while len(beats) < 17 * len(traffic.records):
            await ctx.tick()

    simulate(
        design,
        array,
        source(design.commands, traffic.commands, stalls=stalls, seed=1),
        source(design.scores, traffic.rows, stalls=stalls, seed=2),
        source(design.vscales, traffic.scales, stalls=stalls, seed=3),
        background=[sink(design.activations, activations, stalls=stalls), sink(design.states, beats, stalls=stalls)],
    )
    return activations, packets_of(beats)


@pytest.mark.parametrize(("seed", "stalls"), [(1, 0.0), (2, 0.3)])
def test_random_traffic_gives_what_the_model_gives(seed: int, stalls: float) -> None:
    check(Traffic(seed, 12), stalls)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(10, 16))
def test_much_random_traffic_gives_what_the_model_gives(seed: int) -> None:
    check(Traffic(seed, 60), (seed % 3) * 0.3)


def check(traffic: Traffic, stalls: float) -> None:
    assert traffic.records
    activations, records = run(traffic, stalls)
    assert activations == traffic.activations
    assert records == traffic.records


def test_a_tile_takes_less_time_than_its_256_beats_of_keys_and_values() -> None:
    # three passes of 128 cycles and a few between them, on three tiles at once; heads at hand all the time
    design, count = AttnSoftmax(), 5
    command = {"tokens": ROWS, "slot": 0, "q_scale": 40000, "shift": 14, "finish": 0, "child": 0}
    times: list[int] = []
    rows = np.random.default_rng(3).integers(-4000, 4000, count * ROWS)

    async def watch(ctx: Any) -> None:
        ctx.set(design.activations.ready, 1)
        ctx.set(design.tiles.ready, 1)
        cycle = 0
        while len(times) < count * ROWS:
            cycle += 1
            _, _, valid = await ctx.tick().sample(design.activations.valid)
            times.extend([cycle] * valid)

    simulate(
        design,
        watch,
        source(design.commands, [command] * count),
        source(design.scores, rows.tolist()),
        source(design.vscales, [7] * (count * ROWS)),
    )
    firsts = times[::ROWS]
    assert firsts[0] < 3 * (ROWS + 20) - ROWS + 20
    assert max(np.diff(firsts)) <= 152
    assert max(np.diff(times[:ROWS])) == 1
