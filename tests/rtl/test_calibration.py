"""Model time on `kr260-rtl` against the cycles of the simulated hardware: `benchmarks/rtl/calibrate.py`."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from mcf.cli import main
from mcf.errors import ScheduleError
from mcf.model import named_shape
from mcf.rtl.build.cxxrtl import missing_compiler
from mcf.rtl.headers import descriptors, header_of
from mcf.rtl.lower import lower
from mcf.rtl.rates import BEATS_PER_CYCLE, matrices, product_beats
from mcf.schedule.packets import BEAT_BYTES, SEGMENT_BEATS
from mcf.schedule.steps import PREFILL
from mcf.sim import load_profile
from mcf.sim.messages import num_descriptors, num_packets

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))

QUICK = ("one-shot on mesh:2x2", "mars on mesh:2x2", "gather on switch")
RESULTS = Path(__file__).parents[2] / "benchmarks" / "rtl" / "results"
CASE = """
policies = ["gather"]
nodes = 4
topology = "mesh:2x2"
prompt_tokens = "16k"
chunk_tokens = "16k"
profile = "cpu-1g"
decode = true
[model]
name = "qwen2.5-1.5b"
kv_bytes = 0.5
kv_scale_bytes = 2
"""
MERGE = 0.17  # of the merge alone on other meshes than 2x2; the layers are within 2 %
CLOSE = 0.025  # of the schedules that were looked at; the promise is the band


def load(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark, as a module."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks" / "rtl"))
    return importlib.import_module("calibrate")


def rows_of(module: ModuleType, names: tuple[str, ...] | None) -> list[dict]:
    cases = [case for case in module.cases() if names is None or case.name in names]
    rows = [next(module.measured(case)) for case in cases]
    return module.compared(rows, module.infinitely_fast(load_profile(module.PROFILE)))


def test_some_schedules_are_within_the_band(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(monkeypatch)
    rows = rows_of(module, QUICK)
    assert len(rows) == len(QUICK)
    assert module.worst(rows) <= module.BAND


def test_descriptors_and_packets_are_as_many_as_the_executor_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    for case in load(monkeypatch).cases():
        try:
            low = lower(case.schedule, case.mesh)
        except ScheduleError:
            continue  # routes in a circle
        for row, messages in low.messages.items():
            if case.schedule.steps["stage"][row] == PREFILL:
                to = case.schedule.receivers(row)
                headers = [header_of(low, row, message, layer=0, to=to) for message in messages]
                written = list(descriptors(headers, [message.num_beats for message in messages], 0))
                assert num_descriptors(case.schedule, row) == len(written), (case.name, row)
                packets = sum(-(-message.num_beats // SEGMENT_BEATS) for message in messages)
                assert num_packets(case.schedule, row, SEGMENT_BEATS * BEAT_BYTES) == packets, (case.name, row)
                compared += 1
    assert compared > 500


@pytest.mark.full
def test_all_schedules_are_within_the_band(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(monkeypatch)
    rows = rows_of(module, None)
    assert len([row for row in rows if "ratio" in row]) >= 25
    assert module.outside(rows) == []
    assert module.worst(rows) <= CLOSE


def test_a_decode_step_is_the_hardwares(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `mcf sim run` prints of a token against cycles that `mcf rtl sim --decode` has measured, part by part."""
    load(monkeypatch)
    module = importlib.import_module("calibrate_decode")
    stored = json.loads((RESULTS / "x86-2core_202611_calibrate.json").read_text(encoding="utf-8"))["decode"]
    assert [(step["nodes"], step["context"]) for step in stored] == list(module.STEPS)
    for step in module.compared_steps(stored, load_profile("kr260-rtl")):
        ratios = {part: abs(ratio - 1) for part, ratio in step["ratio"].items()}
        assert ratios.pop("merge") <= (0.05 if step["nodes"] == 4 else MERGE), step
        assert max(ratios.values()) <= 0.05, step
    case = tmp_path / "case.toml"
    case.write_text(CASE, encoding="utf-8")
    assert main(["sim", "run", str(case), "--profile", "kr260-rtl", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert row["profile"] == "kr260-rtl (200 MHz assumed)"
    parts, cycles = row["decode"], stored[0]["cycles"]
    assert parts["attention_s"] == pytest.approx(28 * cycles["attention"] / 200e6, rel=0.05)
    hops = 4 * 6  # up two links and down two, with link layers, which the hardware's run leaves out
    assert parts["network_s"] == pytest.approx(28 * (cycles["merge"] + hops) / 200e6, rel=0.05)
    sums = [parts[name] for name in ("products_s", "attention_s", "network_s", "head_s")]
    assert parts["token_s"] == pytest.approx(sum(sums))
    assert parts["processor_s"] > 0
    assert "assumed 8 operations" in parts["assumed"]


def test_products_of_a_token_are_those_of_the_wide_beats() -> None:
    """All matrices and the output head, at the rate of a product that the hardware has run."""
    shape, profile = named_shape("qwen2.5-1.5b"), load_profile("kr260-rtl")
    beats = sum(product_beats(*matrix) for matrix in matrices(shape)) * shape.num_layers
    beats += product_beats(shape.vocab_size, shape.hidden_size)
    weights = shape.num_layers * shape.num_layer_weights + shape.vocab_size * shape.hidden_size
    model = weights * profile.weight_bytes / profile.memory_bytes_s
    assert model == pytest.approx(beats / BEATS_PER_CYCLE / 200e6, rel=0.01)


@pytest.mark.full
def test_a_decode_step_is_the_hardwares_now(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch)
    module = importlib.import_module("calibrate_decode")
    (step,) = module.compared_steps([module.measured_step(4, 1024)], load_profile("kr260-rtl"))
    assert all(abs(ratio - 1) <= 0.05 for ratio in step["ratio"].values()), step


@pytest.mark.full
def test_a_schedule_on_16_nodes_is_within_the_band(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(monkeypatch)
    case = next(case for case in module.large_cases() if case.name == "ring on mesh:4x4")
    rows = module.compared([next(module.measured(case))], module.infinitely_fast(load_profile(module.PROFILE)))
    assert module.worst(rows) <= module.BAND
