"""How fast a mesh of node cores simulates, on one core of this machine: cycles per second under load, in JSON.

Every node sends messages of 64 beats without a pause, a quarter of them to all others, until all have arrived.
`links`: plain, or with a link layer at both ends of each. With `--compute` each node has its compute half and memory as
well, which multiply a matrix meanwhile. The bound is one evaluation of all compiled logic per cycle for all nodes that
run side by side: the target leaves `budget_ns` of a node, `node_cycle_ns` is what it took, links and Python included.

    python benchmarks/rtl/mesh_speed.py [--messages N] [--compute] [--save FILE]
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

import numpy as np

from mcf.bench.environment import environment
from mcf.rtl.board import Board
from mcf.rtl.build.cxxrtl import compile_module
from mcf.rtl.commands import COMMAND_BITS, GROUP_PLACES, NUM_PORTS, ComputeOp, pack_command
from mcf.rtl.descriptor import pack_descriptor
from mcf.rtl.faults import LinkKind
from mcf.rtl.golden.gemv import GROUP
from mcf.rtl.golden.tiles import BEAT_BYTES, TILE_BEATS
from mcf.rtl.hdl.compute import Compute
from mcf.rtl.mesh.ddr import ROW_BYTES, Ddr
from mcf.rtl.routes import Mesh, Tables, spread
from mcf.schedule.wire import Op

BEATS = 64
CYCLES = 200  # between two looks of the processors at their rings
TARGETS = {4: 150_000, 16: 50_000}  # cycles per second, by nodes
TARGETS_COMPUTE = {4: 40_000, 16: 10_000}
ROW_TILES, GROUPS = 12, 12  # of a matrix as large as the projections of a small model: 19,000 cycles
WEIGHTS, ROWS_AT = 1 << 16, 1 << 27


def loaded_board(mesh: Mesh, links: LinkKind, num_messages: int) -> Board:
    """A board with routes written and descriptors waiting."""
    board, tables, rng = Board(mesh, links=links), Tables(mesh=mesh), random.Random(0)
    nodes = range(mesh.num_nodes)
    ways: dict[tuple[int, int], int] = {}
    for root in nodes:
        others = [node for node in nodes if node != root]
        ways[root, -1] = tables.add(spread(mesh, root, mesh.topology.multicast(root, others), others))
        for node in others:
            ways[root, node] = tables.add(spread(mesh, root, mesh.topology.route(root, node), [node]))
    for node in nodes:
        board.write_routes(node, tables.words(node).items())
    board.settle()
    for node in nodes:
        address = board.store(node, bytes(16 * BEATS))
        goals = [-1 if i % 4 == 0 else rng.choice([n for n in nodes if n != node]) for i in range(num_messages)]
        headers = ({"op": Op.KV_DATA, "src": node, "route_id": ways[node, goal], "len": BEATS} for goal in goals)
        board.post(node, [pack_descriptor(header, address=address, beats=BEATS) for header in headers])
    return board


def add_compute(board: Board, node: int) -> Ddr:
    """Give a node a compute half that multiplies a matrix of random weights; its memory."""
    instances = board.instances
    half = instances.instance(compile_module(Compute(), name="compute"))
    memory = instances.ddr([*((half, f"reads__{port}") for port in range(NUM_PORTS)), (half, "write")])
    stride = ROW_TILES * GROUPS * TILE_BEATS + ROW_BYTES // BEAT_BYTES  # ports apart from each other by a bank
    memory.write(WEIGHTS, random.Random(node).randbytes(NUM_PORTS * stride * BEAT_BYTES))
    product = dict(address=WEIGHTS, second=ROWS_AT, stride=stride, tiles=ROW_TILES, count=GROUPS, vectors=1)
    commands = [
        pack_command(ComputeOp.LOAD, count=GROUPS * GROUP_PLACES),
        pack_command(ComputeOp.GEMV, **product, columns=GROUP, shift=9, set_event=1),
    ]
    for name in ("waits", "sets", "states"):
        instances.sink((half, name))
    joined = b"".join(command.to_bytes(COMMAND_BITS // 8, "little") for command in commands)
    instances.push(instances.source((half, "commands")), np.frombuffer(joined, "<u4").reshape(len(commands), -1))
    return memory


def measure(width: int, height: int, links: LinkKind, num_messages: int, *, compute: bool) -> dict[str, float | str]:
    """Cycles, seconds and beats of one run."""
    board = loaded_board(Mesh(width=width, height=height), links, num_messages)
    memories = [add_compute(board, node) for node in range(width * height)] if compute else []
    before, start = board.cycle, time.perf_counter()
    while board.run_for(CYCLES):
        for node in range(width * height):
            for _ in board.packets(node):
                pass
    seconds, cycles = time.perf_counter() - start, board.cycle - before
    moved = [use.moved for use in board.link_use().values()]
    read = sum(memory.counts(port).beats for memory in memories for port in range(NUM_PORTS))
    board.check_drops()
    board.close()
    num_nodes = width * height
    target = (TARGETS_COMPUTE if compute else TARGETS)[num_nodes]
    return {
        "nodes": num_nodes,
        "links": links.value,
        "cycles": cycles,
        "seconds": round(seconds, 3),
        "cycles_per_s": round(cycles / seconds),
        "target": target,
        "node_cycle_ns": round(1e9 * seconds / cycles / num_nodes),
        "budget_ns": round(1e9 / target / num_nodes),
        "beats_per_cycle_and_link": round(sum(moved) / cycles / len(moved), 3),
        "beats_per_cycle_and_memory_port": round(read / cycles / num_nodes / NUM_PORTS, 3),
    }


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1500, help="of each node")
    parser.add_argument("--save", type=Path, help="write to this file, not to the terminal")
    parser.add_argument("--compute", action="store_true", help="with compute halves and memories")
    given = parser.parse_args()
    sizes = ((2, 2, given.messages), (4, 4, given.messages // 4))
    rows = [
        measure(width, height, links, count, compute=given.compute)
        for links in LinkKind
        for width, height, count in sizes
    ]
    text = json.dumps(environment(["python", *sys.argv]) | {"rows": rows}, indent=1)
    if given.save is None:
        print(text)
    else:
        given.save.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
