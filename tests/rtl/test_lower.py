"""A schedule as routes, messages and descriptors; every limit of the hardware is one clear line."""

from dataclasses import replace

import numpy as np
import pytest

from mcf.cluster import Cluster
from mcf.errors import ScheduleError
from mcf.policies import NAMES, PlanRequest, plan
from mcf.rtl.demo import demo_schedule
from mcf.rtl.entry import Port
from mcf.rtl.golden.desc_ring import expand
from mcf.rtl.headers import descriptors, header_of
from mcf.rtl.lower import lower
from mcf.rtl.routes import Mesh, spread
from mcf.schedule import verify
from mcf.schedule.packets import headers_of
from mcf.schedule.steps import ATTEND, DECODE, MERGE, PRODUCE, SEND
from mcf.schedule.wire import Collective, pack_many, unpack
from mcf.testing.policies import TINY

MESH = Mesh(width=2, height=2)
SIZES = {"cluster": Cluster.uniform("switch", 4), "prompt_tokens": 1024, "chunk_tokens": 512, "max_new_tokens": 2}


def planned(policy: str = "full", **changes):
    return plan(policy, PlanRequest(**{"shape": TINY, **SIZES, **changes}))


def of_nodes(num_nodes: int) -> dict[str, object]:
    tokens = 128 * num_nodes
    return {"cluster": Cluster.uniform("switch", num_nodes), "prompt_tokens": tokens, "chunk_tokens": tokens}


@pytest.mark.parametrize("size", [(2, 1), (2, 2), (4, 2), (4, 4)])
def test_the_demo_is_legal_and_fits(size):
    mesh = Mesh(width=size[0], height=size[1])
    sched = demo_schedule(mesh)
    verify(sched)
    assert len(lower(sched, mesh).embedding.tables.routes) >= mesh.num_nodes


@pytest.mark.parametrize("policy", ["full", "ring", "gather", "pass-q"])
def test_descriptors_are_the_packets_of_the_schedule(policy):
    """The ring's golden model makes of our descriptors the headers of `mcf.schedule.packets`, routes apart."""
    low = lower(planned(policy), MESH)
    assert low.messages
    for row, messages in low.messages.items():
        headers = [header_of(low, row, message, layer=1, to=low.sched.receivers(row)) for message in messages]
        words = descriptors(headers, [message.num_beats for message in messages], 0)
        got = [unpack(int(pack_items(item))) for word in words for item in expand(word)]
        want = headers_of(low.sched, row, position=low.sched.meta.prompt_tokens)
        want = want[want["layer"] == 1]
        want["route_id"] = low.embedding.of_send[row]
        assert [pack_fields(g) for g in got] == [pack_fields({n: int(w[n]) for n in want.dtype.names}) for w in want]


def pack_items(item):
    from mcf.rtl.descriptor import META_BITS
    from mcf.schedule.crc16 import crc16

    word = item.meta & (1 << META_BITS) - 1
    return word | crc16(word.to_bytes(16, "little")[:14]) << META_BITS


def pack_fields(values):
    return {name: value for name, value in values.items() if name not in ("hcrc", "ver")}


def test_equal_steps_share_a_descriptor():
    low = lower(planned("full"), MESH)
    row, messages = max(low.messages.items(), key=lambda item: len(item[1]))
    headers = [header_of(low, row, message, layer=0, to=low.sched.receivers(row)) for message in messages]
    words = list(descriptors(headers, [message.num_beats for message in messages], 0))
    assert len(words) < len(messages)


@pytest.mark.parametrize(
    ("change", "mesh", "text"),
    [
        ({}, (4, 2), "4 nodes for a 4x2 mesh.*expected 8"),
        ({"chunk_tokens": 256}, (2, 2), "aligned to 64 tokens"),
        ({"shape": replace(TINY, num_q_heads=36, num_kv_heads=2)}, (2, 2), "32 reduction slots, 4 fewer"),
        ({"shape": replace(TINY, head_dim=136)}, (2, 2), "head size of 136: a state packet holds 128, 8 fewer"),
        ({"shape": replace(TINY, num_layers=129)}, (2, 2), "num_layers = 129: the packet header can name 128, 1 fewer"),
        (of_nodes(20), (5, 4), "20 states.*16, 4 fewer; use fewer nodes"),
        (of_nodes(36), (6, 6), "got 1296 routes: a router's table holds 1023, 273 fewer"),
        (
            {"cluster": Cluster.uniform("switch", 2), "prompt_tokens": 64 * 264, "chunk_tokens": 64 * 132},
            (2, 1),
            "5 blocks of 64 tokens that node 1 keeps at once in one set.*4 entries .256 in all., 1 fewer",
        ),
    ],
)
def test_what_does_not_fit_is_one_line_with_the_limit(change, mesh, text):
    with pytest.raises(ScheduleError, match=text) as caught:
        lower(planned(**change), Mesh(width=mesh[0], height=mesh[1]))
    assert "\n" not in str(caught.value)


def test_more_nodes_than_the_header_can_name_are_refused():
    sched = planned("full")
    many = sched.replace(meta=replace(sched.meta, num_nodes=1030, budgets=(-1,) * 1030))
    with pytest.raises(ScheduleError, match="1030 nodes: the packet header can name 1024, 6 fewer"):
        lower(many, MESH)


def test_more_blocks_than_the_header_can_name_are_refused():
    sched = planned("full")
    long = sched.replace(meta=replace(sched.meta, max_new_tokens=1 << 20))
    with pytest.raises(ScheduleError, match="can name 16,384 blocks of 64, 16 fewer; plan for a shorter prompt"):
        lower(long, MESH)


def changed(sched, rows, **values):
    """The schedule with other values in some rows."""
    steps = sched.steps.copy()
    for name, value in values.items():
        steps[name][rows] = value
    return sched.replace(steps=steps)


def test_merges_that_a_reduction_unit_cannot_do_are_refused_by_their_rows():
    sched = planned("full")
    steps = sched.steps
    merges = np.flatnonzero((steps["kind"] == MERGE) & (steps["stage"] == DECODE)).tolist()
    inputs = sched.after_of(merges[1])
    attend = next(row for row in inputs if steps["kind"][row] == ATTEND)
    with pytest.raises(ScheduleError, match=f"on node 1 of row {attend}, a produce: expected attends and received"):
        lower(changed(sched, [attend], kind=PRODUCE), MESH)
    ends = {name: int(steps[name][merges[1]]) for name in ("after_lo", "after_hi")}
    with pytest.raises(ScheduleError, match=r"two merges of states in decode on node 1 \(row \d+ is the second\)"):
        lower(changed(sched, [attend], kind=MERGE, **ends), MESH)
    after = sched.after.copy()
    after[ends["after_lo"] : ends["after_hi"]] = inputs[::-1]
    with pytest.raises(
        ScheduleError, match=r"is input \d of one merge and \d of another: expected the same place at each; name"
    ):
        lower(sched.replace(after=after), MESH)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kv_scale_bytes": 2}, "got KV of 4 bytes per element with scales of 2 bytes: expected scales of 2 or 4"),
        ({"kv_bytes": 0.5}, "got KV of 0.5 bytes per element with scales of 0 bytes: expected scales of 2 or 4"),
        ({"kv_bytes": 1}, "got kv_bytes = 1: expected 0.5 .INT4., 2 .bfloat16. or 4 .float32."),
        ({"act_bytes": 8}, "got act_bytes = 8: expected 2 .bfloat16. or 4 .float32."),
    ],
)
def test_numbers_that_do_not_travel_are_refused(change, text):
    sched = planned("full")
    with pytest.raises(ScheduleError, match=text):
        lower(sched.replace(meta=replace(sched.meta, **change)), MESH)


def test_every_send_has_a_route_and_every_pair_a_way_back():
    low = lower(planned("mars-paper"), MESH)
    sends = np.flatnonzero(low.sched.steps["kind"] == SEND).tolist()
    assert set(low.embedding.of_send) == set(sends)
    for row in sends:
        for node in low.sched.receivers(row):
            assert (node, low.sched.step(row).node) in low.embedding.of_pair
    assert pack_many(headers_of(low.sched, sends[0])).shape[1] == 16


def test_copies_whose_receivers_wait_for_each_other_go_alone():
    low = lower(planned("gather"), MESH)
    assert low.alone
    for row in low.alone:
        groups = low.groups(row)
        assert sorted(node for group in groups for node in group) == sorted(low.sched.receivers(row))
        headers = [header_of(low, row, low.messages[row][0], layer=0, to=group) for group in groups]
        assert [header["dst_node"] for header in headers] == [node for (node,) in groups]
        assert len({header["route_id"] for header in headers}) == len(groups) > 1
        assert {header["collective"] for header in headers} == {Collective.P2P}
    assert not lower(planned("full"), MESH).alone


MIXED = ("pass-q", "ulysses")  # on a mesh of two dimensions their trees go x first and y first


@pytest.mark.parametrize("size", [(2, 2), (4, 1), (4, 2)])
@pytest.mark.parametrize("policy", NAMES)
def test_routes_of_every_policy_never_wait_in_a_circle(policy, size):
    """Property (9), on the way of each packet; followed here without `mcf.rtl.routes.waits`."""
    mesh = Mesh(width=size[0], height=size[1])
    sizes = of_nodes(mesh.num_nodes) | {"prompt_tokens": 256 * mesh.num_nodes}
    assert is_acyclic(mesh, lower(planned(policy, **sizes), mesh))
    own = planned(policy, **sizes | {"cluster": Cluster.uniform(mesh.topology.name, mesh.num_nodes)})
    if policy in MIXED and min(size) > 1:
        with pytest.raises(ScheduleError, match="wait for each other in a circle"):
            lower(own, mesh)
    else:
        assert is_acyclic(mesh, lower(own, mesh))


def is_acyclic(mesh, low):
    """Take away links that wait for none, as long as there are any."""
    after = {}
    for entries in low.embedding.tables.routes:
        for node, entry in entries.items():
            for port in entry.outs - {Port.LOCAL}:
                beyond = mesh.neighbour(node, port)
                ports = entries[beyond].outs - {Port.LOCAL}
                after.setdefault((node, beyond), set()).update((beyond, mesh.neighbour(beyond, p)) for p in ports)
    assert after
    while free := [link for link, others in after.items() if not others]:
        after = {link: others - set(free) for link, others in after.items() if others}
    return not after


def test_a_circle_is_seen():
    low = lower(planned("full"), MESH)
    assert is_acyclic(MESH, low)
    for start, (a, b, c) in {0: (1, 3, 2), 1: (3, 2, 0), 3: (2, 0, 1), 2: (0, 1, 3)}.items():
        low.embedding.tables.add(spread(MESH, start, [(start, a), (a, b), (b, c)], [c]))
    assert not is_acyclic(MESH, low)
