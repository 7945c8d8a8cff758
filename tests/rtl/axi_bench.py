"""What cocotb runs on Icarus Verilog: the control plane behind cocotbext-axi's AXI4-Lite master, with random pauses.

Started by test_axi.py, in the simulator's process. The programs are the driver's own.
"""

import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge
from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiResp

from mcf.rtl import driver
from mcf.rtl.descriptor import pack_descriptor
from mcf.rtl.golden.csr import OKAY, Registers
from mcf.rtl.golden.desc_ring import expand
from mcf.rtl.registers import BY_NAME, REGISTERS, WINDOWS, Access

SEED = int(os.environ.get("MCF_SEED", "1"))


class Bench:
    """The control plane with a master on one side and a datapath of two registers on the other."""

    def __init__(self, dut) -> None:
        self.dut = dut
        self.rng = random.Random(SEED)
        self.items: list[dict[str, int]] = []
        self.tables: list[tuple[str, int, int]] = []
        cocotb.start_soon(Clock(dut.clk, 5, unit="ns").start())
        self.master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "axi_"), dut.clk, dut.rst)

    async def reset(self) -> None:
        inputs = (
            "items__ready",
            *("commands__ready", "compute_waits__valid", "compute_waits__payload", "computing"),
            "issued__payload",
            "issued__valid",
            "retired",
            "amounts",
            "errors",
            "arrivals__valid",
            "armed",
        )
        for name in (*inputs, "kv_answer", "sets__0__valid", "sets__1__valid"):
            getattr(self.dut, name).value = 0
        self.dut.rst.value = 1
        await ClockCycles(self.dut.clk, 4)
        self.dut.rst.value = 0
        await RisingEdge(self.dut.clk)

    def pause(self) -> None:
        """Let every channel of the bus hesitate at random."""
        parts = [self.master.write_if.aw_channel, self.master.write_if.w_channel, self.master.write_if.b_channel]
        for number, channel in enumerate([*parts, self.master.read_if.ar_channel, self.master.read_if.r_channel]):
            channel.set_pause_generator(self._pauses(random.Random(SEED + number)))

    @staticmethod
    def _pauses(rng: random.Random):
        while True:
            yield rng.random() < 0.3

    async def obey(self, program):
        """Run a program of the driver on the bus."""
        try:
            request = next(program)
            while True:
                answer = 0
                if isinstance(request, driver.Read):
                    answer = await self.master.read_dword(request.address)
                else:
                    await self.master.write_dword(request.address, request.word)
                request = program.send(answer)
        except StopIteration as end:
            return end.value

    async def datapath(self) -> None:
        """Take items with stalls; hand back what follows; say that each has left some cycles later."""
        dut = self.dut
        while True:
            dut.items__ready.value = self.rng.random() < 0.5
            await RisingEdge(dut.clk)
            if not (dut.items__valid.value and dut.items__ready.value):
                continue
            names = ("meta", "address", "beats", "set", "tag")
            item = unpack_item(int(dut.items__payload.value))
            dut.items__ready.value = 0
            self.items.append({name: item[name] for name in names})
            dut.issued__payload.value = item["set"] | item["tag"] << 8
            dut.issued__valid.value = 1
            await RisingEdge(dut.clk)
            while not dut.issued__ready.value:
                await RisingEdge(dut.clk)
            dut.issued__valid.value = 0
            await ClockCycles(dut.clk, self.rng.randrange(1, 9))
            dut.retired.value = 1
            await RisingEdge(dut.clk)
            dut.retired.value = 0

    async def watch_tables(self) -> None:
        """Write down what the tables of the datapath are given."""
        dut = self.dut
        while True:
            await RisingEdge(dut.clk)
            for name, bits in (("routes", 10), ("slots", 5)):
                if getattr(dut, f"{name}__valid").value:
                    payload = int(getattr(dut, f"{name}__payload").value)
                    self.tables.append((name, payload & (1 << bits) - 1, payload >> bits))


def unpack_item(payload: int) -> dict[str, int]:
    out = {}
    for name, width in (("meta", 128), ("address", 40), ("beats", 16), ("set", 8), ("tag", 16)):
        out[name], payload = payload & (1 << width) - 1, payload >> width
    return out


@cocotb.test(timeout_time=200, timeout_unit="us")
async def every_access_is_answered_as_by_the_golden_registers(dut) -> None:
    bench = Bench(dut)
    await bench.reset()
    bench.pause()
    idle = {r.name: 0 for r in REGISTERS if r.access is Access.READ}
    tables = {w.name: [0] * w.num_words for w in WINDOWS if w.access is Access.WINDOW_READ}
    golden = Registers(inputs=idle, tables=tables)
    moving = ("control", "ring_tail", "set_event", "clear", "done_tail", "command_tail")
    steady = [r.address for r in REGISTERS if r.name not in moving]
    addresses = [*steady, *(w.address for w in WINDOWS if w.access is Access.WINDOW_WRITE), 0x0018 + 4 * 9, 0xFF00]
    for _ in range(150):
        address, word = bench.rng.choice(addresses), bench.rng.getrandbits(32)
        if bench.rng.random() < 0.5:
            found = await bench.master.read(address, 4)
            response, expected = golden.read(address)
            assert (int(found.resp), int.from_bytes(found.data, "little")) == (response, expected), hex(address)
        else:
            size = bench.rng.choice([4, 4, 4, 2])
            found = await bench.master.write(address, word.to_bytes(4, "little")[:size])
            assert int(found.resp) == golden.write(address, word, (1 << size) - 1), hex(address)
    assert (AxiResp.OKAY, AxiResp.SLVERR) == (OKAY, 2)


@cocotb.test(timeout_time=200, timeout_unit="us")
async def the_driver_sends_descriptors_and_reads_their_completions(dut) -> None:
    bench = Bench(dut)
    await bench.reset()
    bench.pause()
    cocotb.start_soon(bench.datapath())
    cocotb.start_soon(bench.watch_tables())
    await bench.obey(driver.start(node=3, x=1, y=1, last=5))
    await bench.obey(driver.write_tables({7: 0x8123, 1023: 0xFFFF}, {31: (1 << 144) | 0xABCDEF}))
    assert bench.tables == [("routes", 7, 0x8123), ("routes", 1023, 0xFFFF), ("slots", 31, 1 << 144 | 0xABCDEF)]
    assert int(dut.node.value) == 3 | 1 << 10 | 1 << 15 | 5 << 20
    await bench.obey(driver.write_register("irq_enable", completions=1))
    words = [
        pack_descriptor(
            {"src": 3, "block": number, "len": 64, "layer": number},
            **dict(beats=bench.rng.choice([0, 17, 130]), address=4096 * number, repeat=number % 3, step_half=2),
            **dict(done_tag=100 + number, set_event=5, wait_event=5 if number else 0),
        )
        for number in range(12)
    ]
    rings, done = driver.Rings(), []
    await bench.obey(rings.post(words))
    while len(done) < len(words):
        done += await bench.obey(rings.completions())
    expected = [item for word in words for item in expand(word)]
    fields = ("meta", "address", "beats", "set", "tag")
    assert bench.items == [{name: getattr(item, name) for name in fields} for item in expected]
    assert [tag for tag, _ in done] == [100 + number for number in range(len(words))]
    assert [clock for _, clock in done] == sorted({clock for _, clock in done})
    await ClockCycles(dut.clk, 2)  # a level behind two registers
    assert not dut.interrupt.value
    assert await bench.obey(driver.read_errors()) == []
    counters = await bench.obey(driver.read_counters())
    assert counters["descriptors"] == len(words)
    assert counters["cycles"] > done[-1][1] > 0


@cocotb.test(timeout_time=200, timeout_unit="us")
async def a_bad_descriptor_is_skipped_told_and_cleared(dut) -> None:
    bench = Bench(dut)
    await bench.reset()
    cocotb.start_soon(bench.datapath())
    await bench.obey(driver.start(node=0, x=0, y=0, last=5))
    await bench.obey(driver.write_register("irq_enable", errors=1))
    bad = pack_descriptor({"len": 1}, beats=3) & ~(0xFFF << 92)  # payload beats in packets of no length
    rings = driver.Rings()
    await bench.obey(rings.post([bad, pack_descriptor({"block": 9}, done_tag=1)]))
    while not await bench.obey(rings.completions()):
        pass
    assert len(bench.items) == 1
    assert dut.interrupt.value
    assert await bench.obey(driver.read_errors()) == ["descriptor"]
    assert await bench.obey(driver.read_errors()) == []
    await ClockCycles(dut.clk, 2)
    assert not dut.interrupt.value
    assert (await bench.obey(driver.read_register("ring_head")))["head"] == 2
    assert BY_NAME["errors"].address == 0x14
