"""The paper's times and costs against the design notes' numbers, hand arithmetic and an exact solver."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exact import fetch_only, with_routing
from mcf import mars
from mcf.cluster import Topology
from mcf.errors import InfeasibleError, UserError
from mcf.mars import Rates, Setting
from mcf.mars.cost import INT4
from mcf.mars.groups import T_group, bytes_in, new, route, sizes, stream
from simulated import QWEN

BF16 = replace(QWEN, kv_bytes=2, act_bytes=2)
GPU = Rates(P=200e12, BW=1.25e9)
BOARD = Rates(P=100e9, BW=1.25e9, BW_mem=19.2e9, w=0.5)


def instance(C: int, share: float) -> Setting:
    """The design notes' small instances: four GPU-like nodes on a 2 x 2 mesh, 256 tokens per node and chunk, bf16."""
    budget = round(share * 256 * C * 28672)
    return Setting(shape=BF16, N=4, S=1024 * C, B=1024, S_node=budget, deg=2, state_bytes=2)


# --- costs ---


def test_eq_17_to_20_by_hand() -> None:
    assert mars.C_rep(M_chunk=10, r=3, h_dis=2) == 40
    assert mars.C_rep_total(M_chunk=10, r=[3, 1, 2]) == 30
    assert mars.C_access(M_chunk=10, N=4, r=[3, 1], h_near=1) == 40
    assert mars.C_MARS(M_chunk=10, N=4, r=[[4], [2, 1]]) == 30 + (0 + 20 + 30)


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_eq_20_lies_between_full_replication_and_the_ring(N: int, C: int, data: st.DataObject) -> None:
    """At equal hop costs: published MARS volumes above the ring's need another cause."""
    now = [data.draw(st.integers(1, N)) for _ in range(C)]
    r = []
    for c in range(1, C + 1):
        now = [data.draw(st.integers(1, x)) if i < c else x for i, x in enumerate(now)]
        r.append(now[:c])
    total = mars.C_MARS(M_chunk=7, N=N, r=r)
    assert mars.C_full(M_chunk=7, N=N, C=C) <= total <= mars.C_ring(M_chunk=7, N=N, C=C)
    assert mars.C_MARS(M_chunk=7, N=N, r=[[1] * c for c in range(1, C + 1)]) == mars.C_ring(M_chunk=7, N=N, C=C)
    assert mars.C_MARS(M_chunk=7, N=N, r=[[N] * c for c in range(1, C + 1)]) == mars.C_full(M_chunk=7, N=N, C=C)


def test_eq_17_and_19_hops_come_from_the_topology() -> None:
    ring = Topology.parse("ring", 8)
    hops = mars.hop_matrix(ring)
    assert mars.h_near([0, 4], hops) == pytest.approx((1 + 2 + 1) * 2 / 6)
    assert mars.h_near(range(8), hops) == 0
    assert mars.tree_hops(ring, 0, [1, 2, 3]) == 1
    assert mars.tree_hops(ring, 0, [4]) == 4
    assert mars.tree_hops(ring, 0, [0]) == 0


# --- times ---


def test_eq_6_and_T_comp_of_16k_on_16_boards_is_41_seconds() -> None:
    """Both the arithmetic of 6.6e13 operations on 16 x 100 GOP/s and the sum over chunks."""
    s = Setting(shape=QWEN, N=16, S=16384, B=4096, b=INT4)
    work = [mars.T_comp(QWEN, n=256, h=s.h(c), B=4096, rates=BOARD, m_l=s.m_l) for c in range(1, 5)]
    assert math.fsum(work) == pytest.approx(41.27, abs=0.01)
    assert mars.compute_bound_s(s, BOARD) == pytest.approx(mars.T_TTFT(chunks=work, head=mars.T_head(QWEN, BOARD)))
    assert pytest.approx(math.fsum(work), rel=1e-3) == mars.solve(s, BOARD).T_TTFT


def test_eq_6_counts_the_causal_half_and_the_memory() -> None:
    fast, slow = Rates(P=1e9, BW=1), Rates(P=1e18, BW=1, BW_mem=100.0)
    assert mars.T_attn(QWEN, n=4, h=10, B=8, rates=fast) == pytest.approx(28 * 4 * 12 * 128 * 4 * 14 / 1e9)
    assert mars.T_attn(QWEN, n=4, h=10, B=8, rates=slow) == pytest.approx(28 * 18 * 512 / 100)
    assert mars.T_linear(QWEN, n=1, rates=replace(slow, w=0.5)) == pytest.approx(
        28 * QWEN.num_layer_weights * 0.5 / 100
    )


def test_eq_7_23_24_25_by_hand() -> None:
    rates = Rates(P=1, BW=10, tau=0.5)
    assert mars.T_prop(load=100, depth=3, rates=rates) == 10 + 1.5
    assert mars.T_comm(load=100, depth=3, rates=rates, deg=2) == 5 + 1.5
    assert mars.T_chunk(T_comp=3, T_comm=2) == 3
    assert mars.T_chunk(T_comp=3, T_comm=4, T_sync=0.5, exposed=0.25) == 4.75
    assert mars.T_TTFT(chunks=[1, 2, 3], head=0.5) == 6.5


@pytest.mark.parametrize(("gbit", "expected"), [(0.1, 167), (1, 17), (10, 1.7), (100, 0.2)])
def test_eq_8_as_a_threshold(gbit: float, expected: float) -> None:
    found = mars.n_star(QWEN, rates=replace(BOARD, BW=gbit * 1e9 / 8), deg=2, m_l=256)
    assert found == pytest.approx(expected, rel=0.2 if gbit == 100 else 0.02)


def test_fetching_is_hidden_from_n_star_on_whatever_the_history() -> None:
    for n, is_hidden in ((1.02, True), (0.98, False)):
        tokens = mars.n_star(BF16, rates=GPU, deg=2) * n
        for h in (1e8, 1e9):
            fetched = mars.T_comm(load=h * 28672, depth=0, rates=GPU, deg=2)
            assert (mars.T_attn(BF16, n=tokens, h=h, B=0, rates=GPU) >= fetched) == is_hidden


# --- groups ---


@pytest.mark.parametrize(
    ("b", "state", "act", "expected"), [(INT4, 2, 2, 24.4), (1, 2, 2, 12.2), (2, 2, 2, 6.1), (INT4, 2, 1, 18.4)]
)
def test_crossover_of_routing_and_fetching(b: Fraction | int, state: int, act: int, expected: float) -> None:
    s = Setting(shape=replace(QWEN, act_bytes=act), N=16, S=16384, B=4096, b=b, state_bytes=state)
    assert mars.h_over_B(s) == pytest.approx(expected, abs=0.05)
    assert mars.h_over_B(s, 2) == pytest.approx(mars.h_over_B(s) / 8)


def test_routing_hides_from_a_history_that_no_chunk_size_moves() -> None:
    s = Setting(shape=replace(QWEN, act_bytes=2), N=16, S=16384, B=4096, deg=2, state_bytes=2)
    assert mars.h_hidden(s, 4, BOARD) == pytest.approx(122, abs=0.5)
    assert mars.h_hidden(s, 4, replace(BOARD, BW=0.125e9)) == pytest.approx(1219, abs=1)


def test_groups_nest_and_bytes_are_those_of_owner_only_and_of_full_copies() -> None:
    assert [sizes(N) for N in (1, 2, 6, 16)] == [[1], [1, 2], [1, 2, 6], [1, 2, 4, 8, 16]]
    s = Setting(shape=BF16, N=4, S=4096, B=1024, S_node=10**9)
    assert (new(4, s, 1024), route(1, s, 1024)) == (0, 0)
    assert new(1, s, 1024) == 768 * 1024
    assert route(4, s, 1024) == 256 * 3 * (3072 + 6240)  # states in float32
    assert stream(1, s, 3) == 0
    assert stream(1, replace(s, S_node=30 * 10**6), 3) == 2048 * 28672 - (30 * 10**6 - 256 * 28672)
    assert all(b % a == 0 for N in range(1, 50) for a, b in pairwise(sizes(N)))


# --- the optimum ---

SMALL = [(4, 1.15, 74.0, 68.4), (4, 2, 52.9, 50.2), (5, 1.15, 107.9, 90.8), (5, 2, 73.4, 64.9), (6, 1.15, 148.0, 113.6),
         (6, 2, 96.9, 79.8)]  # fmt: skip


@pytest.mark.parametrize(("C", "share", "fetched_ms", "grouped_ms"), SMALL)
def test_the_closed_form_is_the_optimum_of_26_to_29(C: int, share: float, fetched_ms: float, grouped_ms: float) -> None:
    s = instance(C, share)
    found = math.fsum(c.T for c in mars.solve(s, GPU).chunks)
    assert found == pytest.approx(fetch_only(s, GPU).value, rel=1e-9)
    assert found * 1e3 == pytest.approx(fetched_ms, abs=0.06)
    grouped = math.fsum(c.T for c in mars.solve_groups(s, GPU, overlaps=True).chunks)
    assert grouped * 1e3 == pytest.approx(grouped_ms, abs=0.06)


@pytest.mark.parametrize("share", [1.15, 2])
def test_groups_are_within_a_percent_of_the_exact_optimum(share: float) -> None:
    """The four larger instances take up to 20 s each: `benchmarks/planner/run.py --exact`."""
    s = instance(4, share)
    exact = with_routing(s, GPU, seconds=60)
    grouped = math.fsum(c.T for c in mars.solve_groups(s, GPU, overlaps=True).chunks)
    assert exact.bound * (1 - 1e-6) <= grouped <= exact.value * 1.01
    assert exact.value - exact.bound <= exact.value * 2e-4


@st.composite
def instances(draw: st.DrawFn) -> tuple[Setting, Rates]:
    N, S = draw(st.integers(1, 32)), draw(st.integers(1, 10**6))
    B = draw(st.integers(max(1, S // 40), S + 5))
    share = -(-S // N) * 28672
    budget = draw(st.none() | st.floats(1.001, 40).map(lambda x: math.ceil(share * x)))
    s = Setting(shape=BF16, N=N, S=S, B=B, S_node=budget, deg=draw(st.sampled_from([1, 2])))
    P, BW = draw(st.sampled_from([1e11, 1e13, 2e14])), draw(st.sampled_from([1e6, 1e8, 1e10]))
    return s, Rates(P=P, BW=BW, tau=draw(st.sampled_from([0, 1e-5])), BW_mem=draw(st.sampled_from([1e10, 1e12])))


@settings(max_examples=60, deadline=None)
@given(instances())
def test_no_group_beats_a_bound_and_more_of_anything_is_no_worse(drawn: tuple[Setting, Rates]) -> None:
    """Invariants 12 and 13 of the design notes, in the closed form."""
    s, rates = drawn
    found = mars.solve_groups(s, rates, near=1.0)
    bounds = [
        mars.compute_bound_s(s, rates),
        mars.inbound_bound_s(s, rates),
        mars.bisection_bound_s(s, rates, links=max(s.N // 2, 1) * s.deg),
    ]
    assert max(bounds) <= found.T_TTFT * (1 + 1e-9)
    assert mars.solve_groups(s, rates).T_TTFT <= found.T_TTFT * 1.01
    for g in (1, s.N):
        assert (
            mars.T_TTFT(chunks=(T_group(g, s, c, rates) for c in range(1, s.C + 1)), head=1e-12)
            + (mars.T_head(s.shape, rates))
            >= found.T_TTFT
        )
    more = [
        (s, replace(rates, BW=2 * rates.BW)),
        (s, replace(rates, P=2 * rates.P)),
        (replace(s, S_node=None if s.S_node is None else 2 * s.S_node), rates),
    ]
    for other in more:
        assert mars.solve_groups(*other, near=1.0).T_TTFT <= found.T_TTFT * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(instances(), st.floats(1, 32))
def test_the_inbound_bound_is_below_every_group_size_integer_or_not(drawn: tuple[Setting, Rates], g: float) -> None:
    s, rates = drawn
    g = min(g, s.N)
    total = math.fsum(bytes_in(g, s, c) for c in range(1, s.C + 1)) / (s.deg * rates.BW)
    assert mars.inbound_bound_s(s, rates) <= (total + mars.T_head(s.shape, rates)) * (1 + 1e-9)


def test_a_cached_prefix_counts_as_history() -> None:
    """P0 tokens before the prompt are as history that the first chunk finds (invariant 14)."""
    s = Setting(shape=BF16, N=4, S=4096, B=1024, P0=2048, S_node=200 * 10**6)
    later = replace(s, S=6144, P0=0)
    assert [s.h(c) for c in (1, 4)] == [later.h(c) for c in (3, 6)] == [2048, 5120]
    mine, whole = mars.solve_groups(s, GPU), mars.solve_groups(later, GPU)
    assert [c.T for c in mine.chunks] == [c.T for c in whole.chunks[2:]]
    assert mars.inbound_bound_s(s, GPU) <= mine.T_TTFT < whole.T_TTFT


def test_ties_go_to_the_fewest_bytes() -> None:
    """On boards that only compute, groups cost nothing and save traffic: 42 GB, where eq. 11's floor moves 155."""
    s = Setting(shape=QWEN, N=16, S=2**17, B=4096, b=INT4, S_node=4 * 2**13 * 7168, deg=2, state_bytes=2)
    s = replace(s, shape=replace(QWEN, act_bytes=2))
    fetched, grouped = mars.solve(s, BOARD), mars.solve_groups(s, BOARD)
    assert grouped.T_TTFT <= fetched.T_TTFT * 1.011
    assert fetched.inbound_bytes * 16 / 1e9 == pytest.approx(144.45, rel=1e-3)
    assert grouped.inbound_bytes * 16 / 1e9 == pytest.approx(42, rel=0.1)


def test_the_chunk_size_of_the_least_time() -> None:
    s = Setting(shape=BF16, N=4, S=20000, B=1, S_node=200_000_000)
    found = mars.best_chunk(s, GPU)
    times = {B: mars.solve_groups(replace(s, B=B), GPU).T_TTFT for B in mars.candidates(4, 20000)}
    assert mars.candidates(4, 20000) == [256, 512, 1024, 2048, 4096, 8192, 16384, 20000]
    assert found.T_TTFT == min(times.values()) == times[found.setting.B]
    assert mars.best_chunk(s, GPU, M_buf=512 * 1024).setting.B <= 2048
    with pytest.raises(InfeasibleError, match="propagation buffer of 100 bytes.*enlarge") as caught:
        mars.best_chunk(s, GPU, M_buf=100)
    assert caught.value.missing_bytes == 64 * 1024 - 100


def test_a_node_without_room_for_its_own_share_is_told_what_is_missing() -> None:
    s = Setting(shape=BF16, N=4, S=4096, B=1024, S_node=1024 * 28672 - 5)
    for solver in (mars.solve, mars.solve_groups):
        with pytest.raises(InfeasibleError, match=r"own share of 4096 tokens on 4 nodes.*5 B more") as caught:
            solver(s, GPU)
        assert caught.value.missing_bytes == 5


@pytest.mark.parametrize(("field", "value"), [("P", 0), ("BW", -1), ("tau", -1), ("w", 0), ("P", math.nan)])
def test_rates_that_cannot_be(field: str, value: float) -> None:
    with pytest.raises(UserError, match=f"got {field} = .*expected a number"):
        replace(GPU, **{field: value})


@pytest.mark.parametrize(("field", "value"), [("N", 0), ("S", 0), ("B", -1), ("P0", -1), ("S_node", 0), ("deg", 0)])
def test_counts_that_cannot_be(field: str, value: int) -> None:
    with pytest.raises(UserError, match=f"got {field} = {value}: expected at least"):
        replace(instance(4, 2), **{field: value})
