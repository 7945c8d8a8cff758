"""The driver's programs on the golden registers: what they write, and how they refuse."""

import pytest

from mcf.errors import RunError
from mcf.rtl import driver
from mcf.rtl.descriptor import FIELDS, pack_descriptor, words_of
from mcf.rtl.golden.csr import OKAY, Registers
from mcf.rtl.registers import BY_NAME, COUNTER_INDEX, NUM_COMPLETIONS, NUM_DESCRIPTORS, REGISTERS, WINDOWS, Access

DONE_LOW = FIELDS["done_tag"].low


class Node:
    """Golden registers as a bus: the ring is taken at once, each descriptor completes with its own number."""

    def __init__(self) -> None:
        self.inputs = {r.name: 0 for r in REGISTERS if r.access is Access.READ}
        self.tables = {w.name: [0] * w.num_words for w in WINDOWS if w.access is Access.WINDOW_READ}
        self.registers = Registers(inputs=self.inputs, tables=self.tables)
        self.reads: list[int] = []

    def read(self, address: int) -> int:
        self.reads.append(address)
        response, word = self.registers.read(address)
        assert response == OKAY
        return word

    def write(self, address: int, word: int) -> None:
        assert self.registers.write(address, word) == OKAY

    def obey(self, program):
        return driver.obey(program, self.read, self.write)


def test_a_node_is_found_named_and_started() -> None:
    node = Node()
    node.obey(driver.start(node=9, x=1, y=2, last=11, has_interrupt=True))
    assert node.registers.words["node"] == 9 | 1 << 10 | 2 << 15 | 11 << 20
    assert node.registers.words["irq_enable"] == 0b10
    assert node.registers.words["control"] == 0b11


def test_what_is_no_node_is_refused() -> None:
    with pytest.raises(RunError, match="got identity 0xdead from the node: expected 0x3146434d"):
        driver.obey(driver.start(node=0, x=0, y=0, last=0), lambda address: 0xDEAD, lambda address, word: None)


def test_descriptors_are_written_round_the_ring_and_wait_for_room() -> None:
    node, rings = Node(), driver.Rings()
    words = [pack_descriptor({"block": number}) for number in range(NUM_DESCRIPTORS + 2)]
    node.obey(rings.post(words[:NUM_DESCRIPTORS]))
    node.reads.clear()
    program = rings.post(words[NUM_DESCRIPTORS:])
    request = next(program)
    for _ in range(3):  # full: look, wait for the interrupt, read what has completed
        assert request == driver.Read(address=BY_NAME["ring_head"].address)
        assert isinstance(program.send(0), driver.Wait)
        assert program.send(0) == driver.Read(address=BY_NAME["done_head"].address)
        request = program.send(0)
    node.inputs["ring_head"] = 2
    request = program.send(2)
    try:
        while True:
            if isinstance(request, driver.Write):
                node.write(request.address, request.word)
            request = program.send(2)
    except StopIteration:
        pass
    written = [(index, data) for name, index, data in node.registers.handed if name == "descriptors"]
    tagged = {*range(NUM_DESCRIPTORS // 4 + 15, NUM_DESCRIPTORS, 16), NUM_DESCRIPTORS + 1}  # the last of each batch
    assert written == [
        (number % NUM_DESCRIPTORS * 8 + i, part)
        for number, word in enumerate(words)
        for i, part in enumerate(words_of(word | (number in tagged) * driver.ROOM_TAG << DONE_LOW))
    ]
    assert node.registers.words["ring_tail"] == len(words)


def test_completions_are_read_once_round_their_ring() -> None:
    node, rings = Node(), driver.Rings(read=NUM_COMPLETIONS - 1)
    node.inputs["done_head"] = NUM_COMPLETIONS + 1
    last, first = 2 * (NUM_COMPLETIONS - 1), 0
    for place, tag in ((last, 7), (first, 8)):
        node.tables["completions"][place : place + 2] = [tag, 1000 + tag]
    assert node.obey(rings.completions()) == [(7, 1007), (8, 1008)]
    assert node.registers.words["done_tail"] == NUM_COMPLETIONS + 1
    assert node.obey(rings.completions()) == []


def test_errors_are_named_and_cleared_and_counters_have_48_bits() -> None:
    node = Node()
    node.registers.raise_errors(0b101)
    assert node.obey(driver.read_errors()) == ["dropped", "event"]
    assert node.obey(driver.read_errors()) == []
    place = 2 * COUNTER_INDEX["granted"]
    node.tables["counters"][place : place + 2] = [5, 1]
    assert node.obey(driver.read_counters())["granted"] == (1 << 32) + 5
