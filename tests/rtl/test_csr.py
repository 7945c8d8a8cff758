"""The registers in hardware answer as the golden dict, over every kind of access."""

import random

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from mcf.rtl.golden.csr import SLVERR, Registers
from mcf.rtl.hdl.csr import Csr
from mcf.rtl.registers import BY_NAME, REGISTERS, WINDOW_BY_NAME, WINDOWS, Access
from rtl_streams import simulate

INPUTS = {r.name: 0x5A5A5A5A & (1 << r.width) - 1 for r in REGISTERS if r.access is Access.READ}
TABLES = {w.name: [0x1000 * i + 7 for i in range(w.num_words)] for w in WINDOWS if w.access is Access.WINDOW_READ}
STREAMS = [r.name for r in REGISTERS if r.access is Access.STROBE]
STREAMS += [w.name for w in WINDOWS if w.access is Access.WINDOW_WRITE]


def interesting_addresses() -> list[int]:
    edges = [w.address + 4 * i for w in WINDOWS for i in (-1, 0, 1, w.num_words - 1, w.num_words)]
    return sorted({*edges, *(r.address for r in REGISTERS), 0x0300, 0xFFFC, 0x0016})


async def write(ctx, axi, address: int, word: int, strobes: int = 15) -> int:
    for name, value in {"awaddr": address, "wdata": word, "wstrb": strobes, "awvalid": 1, "wvalid": 1}.items():
        ctx.set(axi[name], value)
    while not (await ctx.tick().sample(axi["awready"]))[-1]:
        pass
    ctx.set(axi["awvalid"], 0)
    ctx.set(axi["wvalid"], 0)
    return await _respond(ctx, axi, "b")


async def read(ctx, axi, address: int) -> tuple[int, int]:
    ctx.set(axi["araddr"], address)
    ctx.set(axi["arvalid"], 1)
    while not (await ctx.tick().sample(axi["arready"]))[-1]:
        pass
    ctx.set(axi["arvalid"], 0)
    response = await _respond(ctx, axi, "r")
    return response, ctx.get(axi["rdata"])


async def _respond(ctx, axi, channel: str) -> int:
    ctx.set(axi[f"{channel}ready"], 1)
    is_valid, response = 0, 0
    while not is_valid:
        *_, is_valid, response = await ctx.tick().sample(axi[f"{channel}valid"], axi[f"{channel}resp"])
    ctx.set(axi[f"{channel}ready"], 0)
    return response


def ports(csr: Csr) -> dict:
    return {path[1]: value for path, _, value in csr.signature.flatten(csr) if path[0] == "axi"}


def hardware(csr: Csr, handed: list):
    """Show the inputs, answer the windows and write down what is handed over."""

    async def bench(ctx) -> None:
        await _play(ctx, csr, handed)

    return bench


async def _play(ctx, csr: Csr, handed: list) -> None:
    for name, word in INPUTS.items():
        ctx.set(getattr(csr, name).as_value(), word)
    streams = [getattr(csr, name) for name in STREAMS]
    tables = {name: getattr(csr, name) for name in TABLES}
    while True:
        sampled = await ctx.tick().sample(
            *(s.valid for s in streams), *(s.payload for s in streams), *(s.payload for s in tables.values())
        )
        values = list(sampled[2:])
        for name, is_valid, payload in zip(STREAMS, values, values[len(streams) :], strict=False):
            if is_valid:
                is_strobe = name in BY_NAME
                handed.append((name, 0, payload) if is_strobe else (name, payload.index, payload.data))
        for name, index in zip(tables, values[-len(tables) :], strict=True):
            ctx.set(getattr(csr, f"{name}_data"), TABLES[name][index] if index < len(TABLES[name]) else 0)


def test_random_accesses_are_answered_as_by_the_golden_registers() -> None:
    rng = random.Random(12)
    addresses = interesting_addresses()
    csr, golden, handed, bad = Csr(), Registers(inputs=INPUTS, tables=TABLES), [], []

    async def software(ctx) -> None:
        axi = ports(csr)
        for _ in range(600):
            address, word = rng.choice(addresses), rng.getrandbits(32)
            if rng.random() < 0.5:
                answer, expected = await read(ctx, axi, address), golden.read(address)
            else:
                strobes = rng.choice([15, 15, 15, 1, 0])
                answer, expected = await write(ctx, axi, address, word, strobes), golden.write(address, word, strobes)
            if answer != expected:
                bad.append((hex(address), answer, expected))
        await ctx.tick()

    simulate(csr, software, background=[hardware(csr, handed)])
    assert bad == []
    assert handed == golden.handed
    assert {name for name, _, _ in handed} == {*STREAMS} - {"slots"}, "random order seldom completes an entry"


def test_an_entry_of_many_words_is_handed_over_whole() -> None:
    csr, handed, window = Csr(), [], WINDOW_BY_NAME["slots"]
    words = [0x11111111 * (i + 1) for i in range(window.entry_words)]

    async def software(ctx) -> None:
        for i, word in enumerate(words):
            assert handed == []
            assert await write(ctx, ports(csr), window.address_of(9, i), word) == 0
        assert await write(ctx, ports(csr), window.address_of(9, 0) + 4 * window.entry_words, 1) == SLVERR
        await ctx.tick()

    simulate(csr, software, background=[hardware(csr, handed)])
    whole = sum(word << 32 * i for i, word in enumerate(words))
    assert handed == [("slots", 9, whole & (1 << window.width) - 1)]


def test_errors_stay_until_software_clears_them() -> None:
    csr, errors = Csr(), BY_NAME["errors"]

    async def software(ctx) -> None:
        for bits in (0b0101, 0b1000):
            ctx.set(csr.errors.as_value(), bits)
            await ctx.tick()
        ctx.set(csr.errors.as_value(), 0)
        assert ctx.get(csr.errors_held)
        assert await read(ctx, ports(csr), errors.address) == (0, 0b1101)
        assert await write(ctx, ports(csr), errors.address, 0b0100) == 0
        assert await read(ctx, ports(csr), errors.address) == (0, 0b1001)
        assert await write(ctx, ports(csr), errors.address, 0b1001) == 0
        assert await read(ctx, ports(csr), errors.address) == (0, 0)
        assert not ctx.get(csr.errors_held)

    simulate(csr, software)


@pytest.mark.parametrize("wins", ["write", "read"])
def test_reads_and_writes_take_turns(wins: str) -> None:
    """A master that asks for both at once gets both, whoever was served last."""
    csr = Csr()
    order: list[str] = []

    async def software(ctx) -> None:
        axi = ports(csr)
        if wins == "read":
            await write(ctx, axi, BY_NAME["node"].address, 5)
        for name in ("awvalid", "wvalid", "arvalid", "bready", "rready"):
            ctx.set(axi[name], 1)
        ctx.set(axi["wstrb"], 15)
        while len(order) < 4:
            *_, wrote, has_read = await ctx.tick().sample(axi["bvalid"], axi["rvalid"])
            order.extend(["write"] * wrote + ["read"] * has_read)

    simulate(csr, software)
    assert order == (["write", "read"] * 2 if wins == "write" else ["read", "write"] * 2)
