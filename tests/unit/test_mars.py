"""The paper's equations against the numbers of the design notes and of Table 1."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcf import mars
from mcf.cluster import Topology
from mcf.errors import InfeasibleError
from mcf.mars.cost import INT4
from mcf.model import ModelShape

QWEN = ModelShape(
    name="Qwen2.5-1.5B",
    num_layers=28,
    num_q_heads=12,
    num_kv_heads=2,
    head_dim=128,
    hidden_size=1536,
    intermediate_size=8960,
    vocab_size=151936,
    max_positions=32768,
)


@pytest.mark.parametrize(("b", "expected"), [(INT4, 7168), (1, 14336), (2, 28672)])
def test_eq_1_bytes_of_a_token(b: Fraction | int, expected: int) -> None:
    assert mars.M_token(QWEN, b) == expected


def test_eq_1_takes_the_element_size_of_the_shape_and_adds_scales() -> None:
    assert mars.M_token(QWEN) == 4 * 14336
    scales = 28 * 2 * 2 * 2  # one fp16 scale for each 128 elements
    assert mars.M_token(QWEN, INT4, scale_bytes=scales) == 7168 + scales
    assert scales / 7168 == pytest.approx(0.031, abs=5e-4)


def test_eq_3_and_4_count_the_running_chunk() -> None:
    M = mars.M_token(QWEN, INT4)
    assert mars.M_chunk(512, M) == 512 * 7168
    assert [mars.h(c, 512) for c in (1, 2, 5)] == [0, 512, 2048]
    assert mars.h(3, 512, P0=100) == 1124
    assert mars.M_hist(1, B=512, S=1300, M_token=M) == 512 * 7168
    assert mars.M_hist(3, B=512, S=1300, M_token=M) == 1300 * 7168  # the last chunk is short
    assert [mars.B_c(c, 512, 1300) for c in (1, 2, 3, 4)] == [512, 512, 276, 0]


def test_eq_13_uses_left_do_not_depend_on_age() -> None:
    assert [mars.R(c, 8) for c in (1, 4, 8)] == [7, 4, 0]


@pytest.mark.parametrize(("N", "printed"), [(2, "1.94"), (4, "2.99"), (8, "3.70"), (16, "4.40")])
def test_table_1_ring_volumes_to_the_printed_digit(N: int, printed: str) -> None:
    S, M = 16384, mars.M_token(QWEN, INT4)
    k = S // (256 * N)
    V_ring = mars.C_ring(M_chunk=mars.M_chunk(256 * N, M), N=N, C=k)
    assert V_ring == S * M * (N - 1) * Fraction(k + 1, 2)
    assert f"{float(V_ring) / 1e9:.2f}" == printed


def test_table_1_ring_volume_in_full() -> None:
    V = [mars.C_ring(M_chunk=256 * N * 7168, N=N, C=16384 // (256 * N)) for N in (2, 4, 8, 16)]
    assert [round(float(v) / 1e9, 4) for v in V] == [1.9378, 2.9947, 3.6994, 4.4040]


def test_eq_22_full_replication_moves_every_block_once() -> None:
    assert mars.C_full(M_chunk=100, N=4, C=8) == 100 * 3 * 8


def test_eq_5_one_nodes_share_of_one_layer() -> None:
    assert mars.fits_buffer(B=2048, N=4, m_l=256, M_buf=512 * 256)
    assert not mars.fits_buffer(B=2049, N=4, m_l=256, M_buf=512 * 256)


def test_auto_chunk_is_512_tokens_per_node_and_never_more_than_the_prompt() -> None:
    assert mars.auto_chunk(N=4, S=100_000, L=28, m_l=512) == 2048
    assert mars.auto_chunk(N=4, S=1000, L=28, m_l=512) == 1000


@pytest.mark.parametrize("t", [512, 256, 128, 64])
def test_auto_chunk_halves_where_the_buffer_asks(t: int) -> None:
    assert mars.auto_chunk(N=4, S=100_000, L=28, m_l=512, M_buf=t * 512) == 4 * t
    assert mars.auto_chunk(N=4, S=100_000, L=28, m_l=512, M_buf=t * 512 - 1) == 4 * max(t // 2, 64)


@given(st.integers(1, 8), st.integers(1, 20_000), st.integers(1, 3), st.integers(1, 10**8), st.integers(1, 10**8))
def test_auto_chunk_grows_with_the_budget(N: int, S: int, slots: int, a: int, b: int) -> None:
    small, large = sorted((a, b))
    chunks = [mars.auto_chunk(N=N, S=S, L=4, m_l=512, S_node=m, stream_slots=slots) for m in (small, large, None)]
    assert chunks == sorted(chunks)
    assert all(min(64 * N, S) <= chunk <= min(512 * N, S) for chunk in chunks)


def test_eq_9_and_10_count_real_sets_and_the_fullest_node() -> None:
    held = mars.M_node(M=[10, 10, 4], P=[{0, 1}, {1}, {1, 2}], N=4)
    assert held == [10, 24, 4, 0]
    assert sum(held) / 4 < 10  # the mean would hide node 1
    assert mars.most_over(held, [12, 20, 12, 12]) == 4
    assert mars.most_over(held, [24] * 4) == 0


def test_eq_11_below_one_is_an_error_that_says_by_how_much() -> None:
    assert mars.r_mem(K=[100, 100], M_hist=100) == 2
    assert mars.r_mem(K=[100, 99], M_hist=100) == 1
    with pytest.raises(InfeasibleError, match=r"1000 B.*are missing.*give each node") as caught:
        mars.r_mem(K=[600, 600], M_hist=2200)
    assert caught.value.missing_bytes == 1000


def test_eq_12_and_14() -> None:
    assert [mars.r_feasible(N=4, r_mem=r) for r in (1, 3, 9)] == [1, 3, 4]
    assert mars.is_worth_copying(c=1, C=4, h_save=1, h_copy=1)
    assert not mars.is_worth_copying(c=3, C=4, h_save=1, h_copy=1)


def test_eq_15_default_alpha_replicates_the_first_half_everywhere() -> None:
    N, C = 4, 12
    alpha = mars.default_alpha(N=N, C=C)
    assert alpha == Fraction(1, 2)
    assert [mars.r_reuse(c=c, C=C, N=N, alpha=alpha) for c in range(1, C + 1)] == [4, 4, 4, 4, 4, 4, 3, 3, 2, 2, 1, 1]


def test_eq_15_extremes() -> None:
    assert [mars.r_reuse(c=c, C=4, N=3, alpha=math.inf) for c in (1, 4)] == [3, 3]
    assert [mars.r_reuse(c=c, C=4, N=3, alpha=0) for c in (1, 4)] == [1, 1]


@given(st.integers(1, 16), st.integers(1, 40), st.floats(0, 20), st.lists(st.integers(1, 40), min_size=1))
def test_eq_16_stays_in_range_and_never_grows(N: int, C: int, alpha: float, memory: list[int]) -> None:
    before = None
    for r_mem in memory:
        now = mars.r(N=N, r_mem=r_mem, r_reuse=mars.r_reuse(c=1, C=C, N=N, alpha=alpha), r_before=before)
        assert 1 <= now <= N
        assert before is None or now <= before
        before = now


# --- placement ---


def test_copies_on_a_switch_go_to_the_next_nodes() -> None:
    hops = mars.hop_matrix(Topology.parse("switch", 4))
    assert [mars.spread(owner, hops) for owner in (0, 3)] == [[0, 1, 2, 3], [3, 0, 1, 2]]


@given(st.sampled_from(["ring", "switch"]), st.integers(1, 9), st.data())
def test_each_copy_is_the_greedy_choice(name: str, N: int, data: st.DataObject) -> None:
    hops = mars.hop_matrix(Topology.parse(name, N))
    owner = data.draw(st.integers(0, N - 1))
    order = mars.spread(owner, hops)
    assert sorted(order) == list(range(N))
    assert order[0] == owner
    for i in range(1, N):
        sums = {n: int(hops[:, [*order[:i], n]].min(1).sum()) for n in order[i:]}
        assert sums[order[i]] == min(sums.values())


def test_copies_on_a_ring_spread_out() -> None:
    hops = mars.hop_matrix(Topology.parse("ring", 8))
    assert mars.spread(0, hops)[:4] == [0, 4, 2, 6]


def test_targets_skip_full_nodes() -> None:
    assert mars.targets([2, 3, 0, 1], 3, {0, 1, 2}) == [0, 1]
    assert mars.targets([2, 3, 0, 1], 1, range(4)) == []
    assert mars.targets([2, 3, 0, 1], 4, ()) == []


def test_the_farthest_copies_go_first() -> None:
    ring, switch = (mars.hop_matrix(Topology.parse(name, 6)) for name in ("ring", "switch"))
    assert mars.give_up(0, [0, 1, 3, 5], 2, ring) == [3, 5]
    assert mars.give_up(4, [4, 5, 0, 1], 2, switch) == [1, 0]
    assert mars.give_up(4, [4, 5], 3, switch) == []


@given(st.sampled_from(["ring", "switch"]), st.integers(1, 9), st.data())
def test_needers_get_blocks_from_the_nearest_copy(name: str, N: int, data: st.DataObject) -> None:
    topology = Topology.parse(name, N)
    nodes = st.integers(0, N - 1)
    holders = data.draw(st.sets(nodes, min_size=1))
    needers = data.draw(st.sets(nodes))
    hops = dict.fromkeys(holders, 0)
    for a, b in mars.nearest_links(topology, holders, needers):
        assert topology.has_link(a, b)
        assert b not in hops  # received once, and never by a holder
        hops[b] = hops[a] + 1
    assert needers <= set(hops)
    assert all(hops[n] == min(topology.hops(h, n) for h in holders) for n in hops)


# --- convergence ---


def test_eq_29_leaves_the_owner_alone() -> None:
    assert mars.surplus(holders={2, 0, 3}, owner=2) == [0, 3]
    assert mars.surplus(holders={2}, owner=2) == []
    assert mars.is_converged(holders=[2], owner=2)
    assert not mars.is_converged(holders=[1, 2], owner=2)
    assert not mars.is_converged(holders=[], owner=2)
