"""The replay of a trace: where each block is at which time; and a page that asks for nothing."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mcf.cli import main
from mcf.errors import UserError
from mcf.policies import NAMES, plan
from mcf.ref import run as run_ref
from mcf.schedule import Schedule, unicast, verify
from mcf.sim import simulate
from mcf.study.replay import BINS, MAX_SPANS, STATES, replay
from mcf.study.replaypage import replay_page
from mcf.testing import random_qkv
from mcf.trace import Trace, read_trace, write_perfetto
from plans import request, with_budgets
from simulated import asked, profile, shape_of, tiny_shape

FREED, ARRIVING, VALID, DRAINING, OWNER, STREAMED = range(len(STATES))
REMOTE = re.compile(r"""https?:|["'(]//|<link|@import|url\(|fetch\(|XMLHttp|WebSocket|import\(|\bsrc\s*=|\bhref\s*=""")


def simulated(sched: Schedule) -> Trace:
    return simulate(sched, profile(flops_s=1e6, link_bytes_s=1e5), shape=shape_of(sched)).trace


def tight_mars() -> Schedule:
    shape = tiny_shape(3)
    plain = asked(shape, 4, 2048, 256)
    return plan("mars-paper", with_budgets(plain, int(2.2 * 512 * shape.kv_token_bytes) + 4 * 64 * 64 * 8))


def final(found: dict[str, Any]) -> np.ndarray:
    """[N, blocks] states at the end."""
    now = np.zeros((found["num_nodes"], len(found["blocks"])), dtype=int)
    for _, node, block, state in found["changes"]:
        assert now[node, block] != state
        now[node, block] = state
    return now


@pytest.mark.parametrize("form", [lambda s: s, unicast], ids=["multicast", "unicast"])
@pytest.mark.parametrize("topology", ["switch", "mesh:2x2"])
@pytest.mark.parametrize("name", NAMES)
def test_each_replay_ends_with_owners_alone(name: str, topology: str, form: Any) -> None:
    sched = form(plan(name, asked(tiny_shape(3), 4, 203, 50, topology)))
    found = replay(simulated(sched), sched)
    owners = np.array([block[3] for block in found["blocks"]])
    filled = np.array([block[4] for block in found["blocks"]]) > 0
    expected = np.where((owners[None, :] == np.arange(4)[:, None]) & filled[None, :], OWNER, FREED)
    assert (final(found) == expected).all()
    times = [change[0] for change in found["changes"]]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= found["end_s"] * (1 + 1e-9)


def test_bytes_memory_and_lanes_are_those_of_the_trace() -> None:
    sched = plan("mars-paper", asked(tiny_shape(3), 4, 203, 50, "ring"))
    report, found = verify(sched), replay(simulated(sched), sched)
    assert sum(link["bytes"] for link in found["links"]) == sum(report.traffic.values())
    assert [max(size for _, size in samples) for samples in found["memory"]] == list(report.peak_bytes)
    assert {len(link["load"]) for link in found["links"]} == {BINS}
    assert all(0 <= part <= 1 for link in found["links"] for part in link["load"])
    assert all(0 <= a <= b <= found["end_s"] * (1 + 1e-9) for a, b, *_ in found["lanes"])
    assert 0 < len(found["lanes"]) < MAX_SPANS
    assert found["clock"] == "model time"


def test_replicas_come_drain_and_go_under_a_budget() -> None:
    sched = tight_mars()
    found = replay(simulated(sched), sched)
    seen = {(state, node == found["blocks"][block][3]) for _, node, block, state in found["changes"]}
    assert {(VALID, False), (DRAINING, False), (FREED, False), (STREAMED, False), (OWNER, True)} <= seen
    assert (DRAINING, True) not in seen
    assert found["budgets"] == list(sched.meta.budgets)


def test_the_replica_factor_of_the_report_is_what_the_map_shows() -> None:
    sched = plan("full", asked(tiny_shape(3), 4, 256, 64))
    found = replay(simulated(sched), sched)
    before_the_end = [change for change in found["changes"] if change[3] not in (FREED, DRAINING)]
    held = {(node, block) for _, node, block, state in before_the_end if state in (VALID, OWNER)}
    assert len(held) == 4 * len(found["blocks"])
    assert verify(sched).replica_factor[-1] == 4


def test_a_trace_of_another_executor_plays_too() -> None:
    """The reference does not know the simulator; its clock counts turns."""
    sched = unicast(plan("mars-paper", request(3, 200, 60)))
    found = replay(run_ref(sched, *random_qkv(sched.meta, seed=1)).trace, sched)
    owners = np.array([block[3] for block in found["blocks"]])
    assert ((final(found) == OWNER) == (owners[None, :] == np.arange(3)[:, None])).all()
    assert found["clock"] == "wall time"


# --- files and pages ---


def test_a_trace_file_reads_back_and_perfetto_still_finds_its_events(tmp_path: Path) -> None:
    sched = plan("gather", asked(tiny_shape(3), 3, 96, 24))
    trace, path = simulated(sched), tmp_path / "t.json"
    write_perfetto(path, trace, sched)
    again, same = read_trace(path)
    assert again.to_bytes() == trace.to_bytes()
    assert same == sched
    assert json.loads(path.read_text())["traceEvents"]


def test_the_page_holds_the_data_and_asks_for_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sched = plan("mars-paper", asked(tiny_shape(3), 3, 96, 24))
    trace, path = simulated(sched), tmp_path / "t.json"
    write_perfetto(path, trace, sched)
    assert main(["show", "--play", str(path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 't.html'}: open it in a browser\n"
    page = (tmp_path / "t.html").read_text()
    assert page == replay_page(trace, sched)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    assert data is not None
    assert json.loads(data[1]) == json.loads(json.dumps(replay(trace, sched)))
    assert REMOTE.search(page.replace(data[1], "")) is None
    assert REMOTE.search(data[1]) is None
    for name in ("map", "memory", "links", "lanes", "slider", "play"):
        assert f'id="{name}"' in page


def test_no_text_of_a_trace_can_end_the_data(tmp_path: Path) -> None:
    sched = plan("gather", asked(tiny_shape(3), 2, 32, 32))
    trace = simulated(sched)
    evil = Trace(events=trace.events, memory=trace.memory, meta={"profile": "</script><script>alert(1)</script>"})
    assert replay_page(evil, sched).count("<script") == 2


def damaged(path: Path, **changes: Any) -> None:
    found = json.loads(path.read_text())
    found["mcf"] |= changes
    path.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "it is not JSON"),
        ("[]", "it has no 'mcf' entry of version 1"),
        ('{"mcf": {"version": 2}}', "it has no 'mcf' entry of version 1"),
        ('{"mcf": {"version": 1}}', "its trace is damaged"),
        ('{"mcf": {"version": 1, "trace": "!!"}}', "its trace is damaged"),
    ],
)
def test_files_that_cannot_be_replayed_are_one_line(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    assert main(["show", "--play", str(path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert "expected a file that mcf run --trace or mcf sim run --save-trace wrote" in err


def test_a_cut_payload_and_bare_trace_bytes_are_refused(tmp_path: Path) -> None:
    sched = plan("gather", asked(tiny_shape(3), 2, 32, 32))
    path, trace = tmp_path / "t.json", simulated(sched)
    write_perfetto(path, trace, sched)
    whole = json.loads(path.read_text())["mcf"]["schedule"]
    damaged(path, schedule=whole[: len(whole) // 8 * 4])
    with pytest.raises(UserError, match="its schedule is cut or too large"):
        read_trace(path)
    write_perfetto(path, trace, plan("gather", asked(tiny_shape(3), 1, 32, 32)))
    with pytest.raises(UserError, match="its events are not of its schedule"):
        read_trace(path)
    path.write_bytes(trace.to_bytes())
    with pytest.raises(UserError, match="no schedule beside its events"):
        read_trace(path)
    with pytest.raises(UserError, match="cannot read"):
        read_trace(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--play", "--verify"], "got --play and --verify"),
        (["--out", "x.html"], "got --out without --play"),
        (["--play", "--out", "no/such/x.html"], "cannot write the page"),
    ],
)
def test_options_that_do_not_go_together(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "file", *args]) == 2
    assert words in capsys.readouterr().err
