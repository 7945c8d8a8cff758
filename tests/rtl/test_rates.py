"""Tokens per second by arithmetic: against numbers worked out by hand, and in the directions that must hold."""

from dataclasses import replace

import pytest

from mcf.errors import UserError
from mcf.model.named import named_shape
from mcf.rtl.commands import COMMAND_BITS
from mcf.rtl.descriptor import DESCRIPTOR_WORDS
from mcf.rtl.processor import Processor, Work, layer_work
from mcf.rtl.rates import (
    ALL_WEIGHTS,
    BEATS_PER_CYCLE,
    LAYOUTS,
    PUBLISHED_TOKENS_S,
    SPLIT_WEIGHTS,
    TILE_STALL,
    WIDE_BYTES,
    Case,
    Measured,
    attention_cycles,
    matrices,
    product_beats,
    rate,
)
from mcf.rtl.registers import WINDOW_BY_NAME

SHAPE = named_shape("qwen2.5-1.5b")
CASE = Case(shape=SHAPE, num_nodes=4, context=16384, layout=ALL_WEIGHTS)


def test_the_matrices_hold_all_weights_of_a_layer() -> None:
    assert sum(rows * columns for rows, columns in matrices(SHAPE)) == SHAPE.num_layer_weights


def test_a_matrix_takes_a_wide_beat_per_128_weights_and_4_of_scales_per_tile() -> None:
    assert product_beats(1536, 8960) == 12 * 70 * 132
    assert product_beats(100, 130) == 2 * 132  # padded to a row tile and two groups
    assert product_beats(1536, 8960, 4) == 3 * 70 * 132
    assert product_beats(130, 128, 4) == 132  # the node with the most


def test_attention_takes_256_cycles_a_tile_and_query_head_and_waits_for_its_weights() -> None:
    tiles = attention_cycles(SHAPE, 4096) - attention_cycles(SHAPE, 2048)
    assert tiles == 16 * 2 * 6 * (256 + TILE_STALL)


def test_what_was_measured_stands_for_the_arithmetic() -> None:
    measured = Measured(beats_per_cycle=0.5, attention_cycles=1e6, merge_cycles=1000)
    found, plain = rate(CASE, measured), rate(CASE)
    assert found.attention_s == pytest.approx(28 * 1e6 / 200e6)
    assert found.network_s == pytest.approx(28 * 1000 / 200e6)
    assert found.products_s == pytest.approx(plain.products_s * BEATS_PER_CYCLE / 0.5)


def test_the_papers_model_on_four_nodes() -> None:
    every, split = rate(CASE), rate(replace(CASE, layout=SPLIT_WEIGHTS))
    # 1.54 G weights of half a byte, 132 beats for 128: 0.80 GB a token, and 15 MB of KV in INT4 with scales
    assert every.weight_bytes == pytest.approx(SHAPE.num_weights / 2 * 132 / 128, rel=2e-3)
    assert every.kv_bytes == 28 * 2 * 32 * 264 * WIDE_BYTES
    assert every.bound_tokens_s == pytest.approx(19.2e9 / (every.weight_bytes + every.kv_bytes))
    assert 22 < every.bound_tokens_s < 24
    assert every.tokens_s < PUBLISHED_TOKENS_S < every.bound_tokens_s
    assert split.products_s == pytest.approx(every.products_s / 4, rel=0.02)
    assert PUBLISHED_TOKENS_S < split.tokens_s < split.port_bound_tokens_s < split.bound_tokens_s


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_faster_than_memory_and_more_nodes_and_less_context_help(layout: str) -> None:
    for nodes in (1, 4, 16):
        here = rate(replace(CASE, num_nodes=nodes, layout=layout))
        assert here.tokens_s < here.port_bound_tokens_s < here.bound_tokens_s
        assert here.tokens_s < rate(replace(CASE, num_nodes=4 * nodes, layout=layout)).tokens_s
        assert here.tokens_s < rate(replace(CASE, num_nodes=nodes, layout=layout, context=1024)).tokens_s
    assert set(here.numbers()) >= {"tokens_s", "bound_tokens_s", "assumed_clock_hz", "published_tokens_s"}


def test_one_node_has_no_network_and_splits_nothing() -> None:
    one = [rate(replace(CASE, num_nodes=1, layout=layout)) for layout in LAYOUTS]
    assert one[0].network_s == 0
    assert one[0].token_s == one[1].token_s


def test_the_processor_takes_the_longer_of_arithmetic_and_memory() -> None:
    processor = Processor(clock_hz=1e9, operations_per_cycle=2, bytes_per_cycle=4, store_cycles=10)
    assert processor.cycles(Work(name="a", operations=100, num_bytes=100)) == 50
    assert processor.cycles(Work(name="a", operations=100, num_bytes=400, stores=3)) == 130
    assert processor.seconds(Work(name="a", operations=2000)) == pytest.approx(1e-6)
    assert "assumed 2 operations" in processor.says()
    work = {each.name: each for each in layer_work(SHAPE, num_commands=4)}
    assert work["rope"].operations == 14 * 128 * 3
    assert work["commands"].stores == 4 * (COMMAND_BITS // 32 + 1)
    assert work["slots"].stores == 12 * WINDOW_BY_NAME["slots"].entry_words
    assert work["descriptors"].stores == 2 * (DESCRIPTOR_WORDS + 1)


def test_an_unknown_layout_is_named() -> None:
    with pytest.raises(UserError, match="got layout 'some': expected one of all, split"):
        replace(CASE, layout="some")
