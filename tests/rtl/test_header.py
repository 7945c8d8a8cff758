"""The header in hardware is the header of the table."""

import random

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

from mcf.rtl.hdl.meta import Meta, header_crc
from mcf.schedule.wire import FIELDS, TABLE, pack


def test_the_layout_has_the_bits_of_the_table() -> None:
    assert Meta.size == 128
    assert {name: (field.offset, field.width) for name, field in Meta} == {f.name: (f.low, f.width) for f in TABLE}


def test_the_crc_in_hardware_equals_the_crc_in_software() -> None:
    header = Signal(128)
    crc = Signal(16)
    module = Module()
    module.d.comb += crc.eq(header_crc(module, header))
    rng = random.Random(5)
    words = [
        pack({"src": rng.randrange(1024), "block": rng.randrange(1 << 14), "len": rng.randrange(65)}) for _ in range(50)
    ]

    async def bench(ctx) -> None:
        for word in words:
            ctx.set(header, word)
            await ctx.delay(1e-9)
            assert ctx.get(crc) == word >> FIELDS["hcrc"].low

    simulator = Simulator(module)
    simulator.add_testbench(bench)
    simulator.run()
