"""The core, driven over AXI4-Lite by the driver's programs alone: a mesh of two or four, in C++ simulation."""

from collections.abc import Iterator

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from mcf.errors import RunError
from mcf.rtl.board import Board, Packet
from mcf.rtl.build.cxxrtl import missing_compiler
from mcf.rtl.descriptor import pack_descriptor
from mcf.rtl.driver import ask_directory, read_errors, read_register, write_register
from mcf.rtl.golden.kv_dir import KvDirectoryModel
from mcf.rtl.kv_ops import KV_ID_LOW, KvCode, KvOp
from mcf.rtl.registers import NUM_DESCRIPTORS
from mcf.rtl.routes import Mesh, Tables, spread
from mcf.schedule.wire import FIELDS, Collective, Op, pack, unpack

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))

OP_LOW = FIELDS["op"].low
PAIR = Mesh(width=2, height=1)
SQUARE = Mesh(width=2, height=2)


@pytest.fixture(params=[PAIR])
def board(request: pytest.FixtureRequest) -> Iterator[Board]:
    """A mesh with a route from each node to each: number 1 + node * num_nodes + target."""
    mesh = request.param
    made = Board(mesh)
    tables = Tables(mesh=mesh)
    for a in range(mesh.num_nodes):
        for b in range(mesh.num_nodes):
            tables.add(spread(mesh, a, mesh.topology.route(a, b), [b]))
    for node in range(mesh.num_nodes):
        made.write_routes(node, tables.words(node).items())
    made.settle()
    yield made
    made.close()


def route(board: Board, a: int, b: int) -> int:
    return 1 + a * board.mesh.num_nodes + b


def message(board: Board, a: int, b: int, payload: bytes = b"", **values: int) -> int:
    """A descriptor of one packet from a to b; keywords are fields of the descriptor, or of the header."""
    of_descriptor = {name: values.pop(name) for name in ("wait_event", "set_event", "done_tag") if name in values}
    header = {"op": Op.KV_DATA, "src": 900, "dst_node": b, "route_id": route(board, a, b), "len": len(payload) // 16}
    place = {"address": board.store(a, payload), "beats": len(payload) // 16}
    return pack_descriptor({**header, **values}, **place, **of_descriptor)


def arrived(board: Board, node: int) -> list[Packet]:
    while board.run():
        pass
    return list(board.packets(node))


def test_a_packet_carries_its_payload_and_the_identity_that_software_wrote(board: Board) -> None:
    payload = bytes(range(96))
    board.post(0, [message(board, 0, 1, payload, block=7)])
    (packet,) = arrived(board, 1)
    header = unpack(packet.header)
    assert (header["src"], header["block"], packet.payload) == (0, 7, payload)
    assert board.counters()[0]["sent"] == board.counters()[1]["received"] == 1


def test_a_send_waits_for_the_event_of_what_writes_its_payload(board: Board) -> None:
    """DMA, then send: no processor between them."""
    descriptor = message(board, 0, 1, bytes(32), wait_event=5)
    board.post(0, [descriptor])
    assert arrived(board, 1) == []
    status = board.ask(0, read_register("status"))
    assert (status["waiting"], status["event"]) == (1, 5)
    board.instances.write_memory(board.nodes[0].producer, 0, bytes([9] * 32))
    board.set_event(0, 4)
    assert arrived(board, 1) == []
    board.set_event(0, 5)
    assert [packet.payload for packet in arrived(board, 1)] == [bytes([9] * 32)]


def test_what_has_left_sets_the_event_that_the_next_waits_for(board: Board) -> None:
    board.post(0, [message(board, 0, 1, bytes(64), block=1, set_event=7), message(board, 0, 1, block=2, wait_event=7)])
    assert [unpack(packet.header)["block"] for packet in arrived(board, 1)] == [1, 2]
    assert board.ask(0, read_register("status"))["waiting"] == 0


def test_a_credit_from_a_neighbour_lets_a_send_go(board: Board) -> None:
    board.post(0, [message(board, 0, 1, wait_event=9)])
    assert arrived(board, 1) == []
    board.post(1, [message(board, 1, 0, op=Op.CREDIT, tag=9)])
    assert len(arrived(board, 1)) == 1
    assert list(board.packets(0)) == []  # hardware took the credit; one without a tag is for software
    board.post(1, [message(board, 1, 0, op=Op.CREDIT)])
    assert [unpack(packet.header)["op"] for packet in arrived(board, 0)] == [Op.CREDIT]


@pytest.mark.parametrize("board", [SQUARE], indirect=True)
def test_the_barrier_holds_a_send_until_all_have_arrived(board: Board) -> None:
    board.ask(0, write_register("barrier", peers=3, event=33))
    board.post(0, [message(board, 0, 3, wait_event=33)])
    for node in (1, 2, 3):
        assert arrived(board, 3) == []
        board.post(node, [message(board, node, 0, op=Op.BARRIER, tag=0)])
    assert len(arrived(board, 3)) == 1
    assert list(board.packets(0)) == []


@pytest.mark.parametrize("board", [SQUARE], indirect=True)
def test_all_to_all_sends_each_node_its_part(board: Board) -> None:
    for node in range(4):
        parts = b"".join(bytes([16 * node + k] * 32) for k in (1, 2, 3, 4))  # the k-th is for node + k
        header = {"op": Op.KV_DATA, "collective": Collective.ALL_TO_ALL, "route_id": route(board, node, 0), "len": 2}
        board.post(node, [pack_descriptor(header, address=board.store(node, parts), beats=2, done_tag=5)])
    while board.run():
        pass
    for node in range(4):
        found = {unpack(packet.header)["src"]: packet.payload for packet in board.packets(node)}
        assert found == {a: bytes([16 * a + ((node - a - 1) % 4 + 1)] * 32) for a in range(4)}
        assert [tag for tag, _ in board.nodes[node].processor.rings.completed] == [5]


def test_more_descriptors_than_the_ring_has_are_posted_as_it_empties(board: Board) -> None:
    count = 2 * NUM_DESCRIPTORS + 9
    board.post(0, [message(board, 0, 1, bytes(16), block=n) for n in range(count)])
    assert [unpack(packet.header)["block"] for packet in arrived(board, 1)] == list(range(count))
    assert board.ask(0, read_register("ring_head"))["head"] == count % (2 * NUM_DESCRIPTORS)
    board.check_drops()


def test_software_asks_the_directory_which_refuses_to_lose_an_owners_copy(board: Board) -> None:
    found = [
        board.ask(0, ask_directory(op, 77, is_owner=op is KvOp.PRODUCE, base=1234))
        for op in (KvOp.PRODUCE, KvOp.LOOK, KvOp.DRAIN)
    ]
    assert [code for code, _, _ in found] == [KvCode.OK, KvCode.OK, KvCode.OWNER]
    assert found[1][1] == 1234
    assert board.ask(0, read_errors()) == ["kv_refused"]
    assert board.counters()[0]["kv_refused"] == 1


def test_packets_end_copies_but_no_owners(board: Board) -> None:
    """Metadata decides: the directory obeys KV_DRAIN and KV_INVALIDATE without software, and counts what it refuses."""
    model, copy, owned, missing = KvDirectoryModel(), *({"layer": 3, "head": 1, "block": n} for n in (5, 6, 7))
    ids = [pack(fields) >> KV_ID_LOW & 0xFFFFFFFF for fields in (copy, owned)]
    for op, kv_id in ((KvOp.RECV, ids[0]), (KvOp.ARRIVE, ids[0]), (KvOp.READ, ids[0]), (KvOp.PRODUCE, ids[1])):
        is_owner = op is KvOp.PRODUCE
        code, _, _ = board.ask(1, ask_directory(op, kv_id, is_owner=is_owner))
        assert code == model.apply(op, kv_id, owner=is_owner).code == KvCode.OK
    ends = [(op, fields) for fields in (copy, owned, missing) for op in (Op.KV_DRAIN, Op.KV_INVALIDATE)]
    board.post(0, [message(board, 0, 1, op=op, **fields) for op, fields in ends])
    assert arrived(board, 1) == []  # hardware took them
    codes = [model.receive(pack({"op": op, **fields})).code for op, fields in ends]
    assert codes == [KvCode.OK, KvCode.HELD, KvCode.OWNER, KvCode.OWNER, KvCode.MISSING, KvCode.MISSING]
    assert model.receive(pack({"op": Op.CREDIT, **copy})) is None
    for op, kv_id in ((KvOp.LOOK, ids[0]), (KvOp.LOOK, ids[1]), (KvOp.READ, ids[0]), (KvOp.DONE, ids[0])):
        answer = model.apply(op, kv_id)
        assert board.ask(1, ask_directory(op, kv_id)) == (answer.code, answer.base, answer.state)
    assert board.ask(1, read_errors()) == ["kv_refused"]
    assert board.counters()[1]["kv_refused"] == 5  # four of the packets, and a reader that came too late


def test_what_is_dropped_is_read_from_registers(board: Board) -> None:
    board.post(0, [message(board, 0, 1, route_id=1000), message(board, 0, 1) | 15 << OP_LOW])
    assert arrived(board, 1) == []
    counters = board.counters()
    assert (counters[0]["dropped_route"], counters[1]["dropped_operation"]) == (1, 1)
    assert [board.ask(node, read_errors()) for node in (0, 1)] == [["dropped"], ["dropped"]]


def test_slots_in_use_are_read_from_registers(board: Board) -> None:
    header = pack({"op": Op.REDUCE_RESULT, "route_id": route(board, 0, 0), "len": 17, "reduce_op": 3})
    board.arm(0, [header | slot << 128 | 2 << 136 for slot in (3, 31)])
    board.settle()
    assert board.armed(0) == 1 << 3 | 1 << 31
    board.arm(0, [header | 3 << 128 | 2 << 136])
    board.settle()
    assert board.ask(0, read_errors()) == ["reduce_refused"]


def test_a_core_has_no_memory_and_no_compute_half(board: Board) -> None:
    with pytest.raises(RunError, match="got a core, which has no memory: expected a board of whole nodes"):
        board.nodes[0].ddr.write(0, bytes(16))
    with pytest.raises(RunError, match="got commands for a core: expected a board of whole nodes"):
        board.command(0, [0])
    assert board.nodes[0].memory_beats == 0
