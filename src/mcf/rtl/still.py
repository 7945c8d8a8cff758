"""Why a board of whole nodes stands still, as far as their registers tell."""

from collections.abc import Sequence

from mcf.rtl.board_node import BoardNode
from mcf.rtl.driver import Program, read_counters, read_register, write_register
from mcf.rtl.registers import NUM_COMMANDS


def look(node: BoardNode) -> Program[list[str]]:
    """What a node waits for, in words; empty where it is at rest."""
    found = []
    status = yield from read_register("status")
    if status["waiting"]:
        found.append(f"its ring waits for event {status['event']}, which nothing has set")
    if (yield from read_register("computing"))["busy"]:
        taken = (yield from read_register("command_head"))["head"]
        left = (node.commands.posted - taken) % (2 * NUM_COMMANDS)
        found.append(f"its compute half does not get on, {left} commands behind the one it is at")
    yield from write_register("control", enable=1, count=1)
    before = (yield from read_counters())["starved"]
    after = (yield from read_counters())["starved"]
    yield from write_register("control", enable=1, count=0)
    if after > before:
        found.append("a packet waits for its payload: for a state that no ATTEND has finished")
    return found


def said(found: Sequence[Sequence[str]]) -> str:
    """The first node that waits for something, in one line."""
    for number, texts in enumerate(found):
        if texts:
            return f"node {number} stands still: {'; '.join(texts)}"
    return "no node waits for anything: expected more of them"
