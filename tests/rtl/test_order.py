"""What a node is told, worked on without clocks: orders that never end, and loads that spoil what is still read."""

import pytest

from mcf.errors import ScheduleError
from mcf.model.named import named_shape
from mcf.rtl.commands import ComputeOp, pack_command
from mcf.rtl.decode import DecodeCase, Layout, layer_commands
from mcf.rtl.decode_tree import state_descriptors, tree_of
from mcf.rtl.descriptor import STATE_BIT, pack_descriptor
from mcf.rtl.golden.compute import ComputeModel
from mcf.rtl.order import RECORDS, check_order
from mcf.rtl.product import random_product
from mcf.rtl.routes import Mesh
from mcf.schedule.wire import Op


def load(**values: int) -> int:
    return pack_command(ComputeOp.LOAD, **{"count": 32, **values})


def table(**values: int) -> int:
    return pack_command(ComputeOp.LOAD, table=1, count=1, **values)


def attend(**values: int) -> int:
    return pack_command(ComputeOp.ATTEND, **{"tiles": 1, "tokens": 5, "columns": 64, "count": 2, "finish": 1, **values})


def states(number: int = 2, **values: int) -> int:
    header = {"op": Op.STATE, "len": 17}
    return pack_descriptor(header, address=1 << STATE_BIT, beats=17, repeat=number - 1, step_tag=1, **values)


TWO = [table(), load(), attend(set_event=7)]


def test_what_the_decode_step_and_the_product_are_told_ends() -> None:
    here = DecodeCase(shape=named_shape("qwen2.5-1.5b"), mesh=Mesh(width=2, height=2), context=16384)
    tree = tree_of(here.mesh)
    for node in range(4):
        commands = list(layer_commands(Layout(case=here, node=node), 3, child=0, set_event=1))
        check_order(commands, list(state_descriptors(here, tree, node, 3, wait_event=1)))
    image, commands = random_product(128, 128, set_event=1)
    check_order(commands, [pack_descriptor({"op": Op.CREDIT}, wait_event=1)])
    model = ComputeModel(image=image)
    model.run(commands)
    assert model.events == [1]


@pytest.mark.parametrize(
    ("commands", "descriptors", "outside"),
    [
        (TWO, [states(wait_event=7)], []),
        ([table(), load(), attend(wait_event=9)], [states()], [9]),
        ([*TWO, load(fence=1), attend()], [states(wait_event=7), states()], []),
        ([*TWO, load(place=32), attend(place=32)], [states(4)], []),
        ([*TWO, load(wait_event=7), attend()], [states(4)], []),  # the event says that the first is done
        ([table(), load(), attend(wait_event=3)], [pack_descriptor({}, set_event=3), states()], []),
        ([attend(tiles=0)], [states()], []),  # an empty shard reads nothing
        ([table(), load(), *[attend()] * 20], [states(40)], []),
    ],
)
def test_orders_that_end(commands: list[int], descriptors: list[int], outside: list[int]) -> None:
    check_order(commands, descriptors, outside=outside)


@pytest.mark.parametrize(
    ("commands", "descriptors", "said"),
    [
        (TWO, [states(wait_event=8)], "descriptor 0 waits for event 8, which nothing before it sets"),
        (
            [table(), load(), attend(wait_event=4)],
            [states()],
            r"command 2 \(ATTEND\) waits for event 4, which nothing before it sets: expected set_event = 4 somewhere",
        ),
        (
            [table(), load(), attend(wait_event=3)],
            [states(), pack_descriptor({}, set_event=3)],  # each waits for the other
            r"command 2 \(ATTEND\) waits for event 3",
        ),
        ([], [states()], "descriptor 0 asks for a state that no command finishes: expected an ATTEND with finish = 1"),
        (TWO, [states(3)], "descriptor 0 asks for a state that no command finishes"),
        ([table(), load(), attend(finish=0)], [states()], "descriptor 0 asks for a state that no command finishes"),
        (TWO, [states(1)], "1 states are left: expected a descriptor that takes each of them"),
        (
            [*TWO, load(place=16), attend()],
            [states(4)],
            r"command 3 \(LOAD\) fills places 16 to 47, and command 2 may still read places 0 to 31: expected another "
            "place, or fence = 1",
        ),
        (
            [*TWO, table(), attend()],
            [states(4)],
            r"command 3 \(LOAD\) fills slots 0 to 3, and command 2 may still read",
        ),
        ([table(), attend()], [states()], r"command 1 \(ATTEND\) reads places 0 to 31: expected a LOAD before it"),
        ([load(), attend()], [states()], r"command 1 \(ATTEND\) reads slots 0 to 1: expected a LOAD .* fills 0 too"),
        (
            [table(), load(), *[attend()] * 20],
            [],
            rf"command 17 \(ATTEND\) finishes 2 states beside {RECORDS} that wait: expected at most {RECORDS}",
        ),
        (
            [load(set_event=1)] * 16,
            [],
            "command 15 sets event 1 with 15 of it pending: expected no more",
        ),
    ],
)
def test_orders_that_never_end_or_spoil_are_one_line(commands: list[int], descriptors: list[int], said: str) -> None:
    with pytest.raises(ScheduleError, match=said) as caught:
        check_order(commands, descriptors)
    assert "\n" not in str(caught.value)
