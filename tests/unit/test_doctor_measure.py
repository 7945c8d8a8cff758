"""What the gauges measure: structure and sanity on tiny work, never speed; profiles written, read and planned for."""

from collections import Counter
from itertools import count, permutations

import pytest

from doctored import NEEDS, survey
from mcf.dist import gauge, linkgauge
from mcf.dist.local import LocalWorld
from mcf.engine.clusters import cluster_of, predict
from mcf.engine.doctor.clusterfile import RATES, cluster_profile
from mcf.engine.doctor.measure import USUAL, Measurement, sizes_of
from mcf.engine.planner import make_plan
from mcf.errors import InfeasibleError, UserError
from mcf.sim import bounds, load_profile
from mcf.sim.profile import EXTRAS, NUMBERS, parse_profile
from simulated import profile, tiny_shape

TINY = dict(tokens=8, past_tokens=8, hidden=16, inner=32, q_heads=2, kv_heads=1, head_dim=8, stream_bytes=1 << 16)


def test_rates_are_positive_and_all_there():
    meetings = count()
    found = gauge.measure({**TINY, "num_threads": 1, "seconds": 0.0}, lambda: next(meetings))
    assert set(found) == {rate for rate, _ in RATES.values()}
    assert all(0 < value < float("inf") for value in found.values())
    assert next(meetings) == len(found)  # each item begins together


def test_the_median_of_work_counts_and_not_its_warm_up():
    times = iter([9.0, 1.0, 1.0, 1.0, 5.0])  # the warm-up, then four works
    now = [0.0]

    def work() -> None:
        now[0] += next(times)

    assert gauge.seconds_of(work, 8.0 - 1e-9, lambda: now[0]) == 1.0


def test_a_slow_work_is_done_once_more_and_no_more():
    done = Counter()
    now = [0.0]

    def work() -> None:
        done["work"] += 1
        now[0] += 10.0

    assert gauge.seconds_of(work, 5.0, lambda: now[0]) == 10.0
    assert done["work"] == 2


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_every_link_is_measured_in_both_directions(num_workers):
    def body(transport):
        return linkgauge.measure_links(transport, probe_bytes=1 << 10, most_bytes=1 << 12, seconds=0.01)

    found = LocalWorld(num_workers).run(body)
    seen = [(rank, peer) for rank, each in enumerate(found) for peer in each.bytes_s]
    assert seen == list(permutations(range(num_workers), 2))
    rates = [rate for each in found for rate in (*each.bytes_s.values(), *each.latency_s.values())]
    assert all(0 < rate < float("inf") for rate in rates)
    assert all((each.port_bytes_s > 0) == (num_workers > 1) for each in found)


def test_numbers_are_shared_with_all():
    assert LocalWorld(3).run(lambda transport: linkgauge.share(transport, 7 - transport.rank)) == [[7, 6, 5]] * 3


def made(num_workers: int) -> Measurement:
    """A made-up measurement in which every number is another."""
    edges = list(permutations(range(num_workers), 2))
    names = [rate for rate, _ in RATES.values()]
    return Measurement(
        rates=[{name: 1e9 * (rank + 1) + index for index, name in enumerate(names)} for rank in range(num_workers)],
        link_bytes_s={edge: 1e6 * (index + 1) for index, edge in enumerate(edges)},
        link_latency_s={edge: 1e-3 * (index + 1) for index, edge in enumerate(edges)},
        port_bytes_s=[5e6 + rank for rank in range(num_workers)] if num_workers > 1 else [0.0],
        sizes=sizes_of(USUAL),
    )


def written(num_workers: int, **options) -> str:
    found = survey(num_workers, **options)
    return cluster_profile(made(num_workers), found, name="mine", command="mcf doctor --measure", date="2026-01-02")


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_a_profile_is_read_as_it_was_written(num_workers, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(written(num_workers))
    found, measured = load_profile(path), made(num_workers)
    assert (found.name, found.physical, found.num_nodes) == ("mine", True, num_workers)
    assert all(source.strip() for source in found.sources.values())
    assert set(found.sources) == {*NUMBERS, *EXTRAS}
    for key, (rate, _) in RATES.items():
        assert found.by_node(key, num_workers) == pytest.approx([each[rate] for each in measured.rates], rel=1e-4)
    for edge, rate in measured.link_bytes_s.items():
        assert found.link_rate(*edge) == pytest.approx(rate, rel=1e-4)
        assert found.link_latency(*edge) == pytest.approx(measured.link_latency_s[edge], rel=1e-4)
    assert found.for_dtype("bfloat16").weight_bytes == 2


def test_a_profile_says_how_it_came_about():
    head = written(2).split("name =")[0]
    for words in ("mcf doctor --measure", "2026-01-02", "torch ", "host0: made up, 8 cores", "host1"):
        assert words in head


def test_odd_names_and_commands_do_no_harm():
    found = cluster_profile(made(1), survey(1), name='a "b"\n\U0001f600', command="mcf 'x\ny'", date="now")
    assert parse_profile(found, "f.toml").name == 'a "b"\n\U0001f600'


def test_a_kv_budget_that_was_asked_for_is_kept():
    assert [node.kv_budget_bytes for node in parse_profile(written(2, needs=NEEDS), "f.toml").nodes] == [1 << 30] * 2
    assert [node.kv_budget_bytes for node in parse_profile(written(2), "f.toml").nodes] == [None] * 2


def test_budgets_come_from_the_option_the_node_or_its_memory():
    text = written(2).replace('source = "measured, as above"', 'source = "x"\nkv_budget_bytes = 4096', 1)
    found, shape = parse_profile(text, "f.toml"), tiny_shape()
    cluster = cluster_of(found, shape)
    assert cluster.kv_budgets[0] == 4096
    memory = found.by_node("memory_bytes", 2)[1]
    assert memory - (1 << 20) < cluster.kv_budgets[1] < memory
    assert [node.name for node in cluster.nodes] == ["worker 0 on host0", "worker 1 on host1"]
    assert cluster_of(found, shape, kv_memory_bytes=777).kv_budgets == (777, 777)
    assert cluster_of(profile(), shape, num_workers=3, kv_memory_bytes=1).num_nodes == 3


def test_a_cluster_that_cannot_be_is_refused():
    with pytest.raises(UserError, match=r"got 3 workers, and 2 nodes.*expected as many: --workers 2"):
        cluster_of(parse_profile(written(2), "f.toml"), tiny_shape(), num_workers=3)
    with pytest.raises(InfeasibleError, match="are missing") as caught:
        cluster_of(profile(memory_bytes=100.0), tiny_shape())
    assert caught.value.missing_bytes > 0


@pytest.mark.parametrize("policy", ["ring", "gather", "mars-paper"])
def test_predictions_keep_the_bounds_and_follow_the_slowest_node(policy):
    shape, equal = tiny_shape(3), parse_profile("num_nodes = 2\n" + plain(), "f.toml")
    unequal = parse_profile(plain() + SLOW, "f.toml")
    plan = make_plan(shape, prompt_tokens=96, num_workers=2, policy=policy, chunk_tokens=32)
    first, second = (predict(plan.schedule, each, shape) for each in (equal, unequal))
    assert 0 < first.bound_s <= first.ttft_s < second.ttft_s
    assert first.limit == second.limit == "compute"
    assert first.bound_s == second.bound_s  # by the best node: true for the slower one too
    assert 0 <= first.waiting_s < first.ttft_s
    assert bounds(plan.schedule, unequal, shape=shape).bound_s <= second.ttft_s


def test_a_slow_link_is_slow_in_one_direction_only():
    shape = tiny_shape(3)
    plan = make_plan(shape, prompt_tokens=64, num_workers=2, policy="pd", chunk_tokens=32)
    way = {(int(s["node"]), int(s["dst"])) for s in plan.schedule.steps if s["dst"] >= 0 and s["stage"] == 0}
    assert way  # pd sends one way: from those that prefill
    (a, b) = min(way)
    times = [
        predict(plan.schedule, parse_profile(plain() + link, "f.toml"), shape).ttft_s
        for link in (NODES, NODES + slow_link(a, b), NODES + slow_link(b, a))
    ]
    assert times[1] > times[0]
    assert times[2] == times[0] or (b, a) in way


def plain() -> str:
    values = {"flops_s": 1e6, "memory_bytes_s": 1e9, "memory_bytes": 1e9, "link_bytes_s": 1e7, "link_latency_s": 1e-6}
    values |= {"step_overhead_s": 0.0, "weight_bytes": 1.0}
    tables = "".join(f'[{key}]\nvalue = {value}\nsource = "x"\n' for key, value in values.items())
    return f'name = "plain"\nphysical = true\n{tables}'


NODES = '[[nodes]]\nsource = "x"\n[[nodes]]\nsource = "x"\n'
SLOW = '[[nodes]]\nsource = "x"\n[[nodes]]\nsource = "x"\nflops_s = 5e5\n'


def slow_link(a: int, b: int) -> str:
    return f'[[links]]\nfrom = {a}\nto = {b}\nsource = "x"\nlink_bytes_s = 1e3\n'
