"""The text form: one line per step, reads back, and says which line is wrong; the grid marks the bad row."""

import numpy as np
import pytest

from mcf.errors import ScheduleError
from mcf.schedule import Builder, Schedule, ScheduleMeta, contiguous, cut, dump, grid, parse
from mcf.schedule.text import line
from mcf.testing import Recipe, random_schedule

META = ScheduleMeta(
    policy="test", num_nodes=2, prompt_tokens=3, chunk_tokens=2, num_layers=2, num_q_heads=2, num_kv_heads=1,
    head_dim=2, page_tokens=4,
)  # fmt: skip
TEXT = """\
mcf-schedule 1
meta policy=test
meta num_nodes=2
meta prompt_tokens=3
meta chunk_tokens=2
meta num_layers=2
meta num_q_heads=2
meta num_kv_heads=1
meta head_dim=2
meta kv_bytes=4
meta act_bytes=4
meta page_tokens=4
meta stream_slots=2
meta max_new_tokens=0
meta buffer_bytes=0
meta topology=switch
meta budgets=-1,-1
meta shares=
meta head_cuts=0,1
piece c0 n0 0:1
piece c0 n1 1:2
piece c1 n0 2:3
0: n0 prefill c0 produce c0:1 m0:1 h0:1
1: n0 prefill c0 send kv c0:1 m0:1 h0:1 stream to=1
2: n0 prefill c0 attend c0:1 m0:1 h0:1 q=0
3: n0 prefill c0 merge c0:1 m0:2 h0:1 q=0 after=2
4: n1 prefill c0 recv kv c0:1 m0:1 h0:1 stream from=0 ref=1
5: n1 prefill c0 produce c0:1 m1:2 h0:1
6: n1 prefill c0 attend c0:1 m0:1 h0:1 q=1
7: n1 prefill c0 attend c0:1 m1:2 h0:1 q=1
8: n1 prefill c0 merge c0:1 m0:2 h0:1 q=1 after=6,7
"""


def small() -> Schedule:
    """Two nodes, one chunk's rows."""
    b = Builder(META, cut(3, 2, 2, contiguous))
    for n in (0, 1):
        b.produce(n, 0)
    b.send_kv(0, [1], 0, chunks=(0, 1), makers=(0, 1))
    for n in (0, 1):
        b.merge(n, 0, [b.attend(n, 0, chunks=(0, 1), makers=(m, m + 1)) for m in range(n + 1)])
    return b.build()


def test_one_line_per_step() -> None:
    assert dump(small()) == TEXT


def test_reads_back() -> None:
    assert parse(TEXT) == small()
    big = random_schedule(Recipe(num_nodes=4, topology="ring", hand_over=True, head_cuts=(0, 1, 2), max_new_tokens=2))
    assert len(big.owners)
    assert parse(dump(big)) == big


def test_comments_blank_lines_and_indentation_are_skipped() -> None:
    loose = TEXT.replace("piece c1", "\n# the last chunk\n   piece c1").replace("\n", "  \n")
    assert parse(loose) == small()


def test_a_schedule_without_rows_reads_back() -> None:
    bare = small().replace(steps=small().steps[:0], after=small().after[:0])
    assert parse(dump(bare)) == bare


@pytest.mark.parametrize("text", ["", "\n", "mcf-schedule 2\n", '{"a": 1}', "GGUF"])
def test_another_file_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError, match="not a schedule: got .* expected a first line 'mcf-schedule 1'"):
        parse(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2: n0 prefill c0 attend", "3: n0 prefill c0 attend"),
        ("c0 attend c0:1", "c0 attendd c0:1"),
        ("c0 attend c0:1 m0:1", "c0 attend c0:x m0:1"),
        ("0: n0 prefill", "0: n0 prefull"),
        ("c0 produce c0:1 m0:1 h0:1", "c0 produce c0:1"),
        ("stream to=1", "strom to=1"),
        ("stream to=1", "stream two=1"),
        ("after=6,7", "after=6,,7"),
        ("piece c0 n0 0:1", "piece c0 n0"),
        ("piece c0 n0 0:1", "piece c0"),
        ("meta policy=test", "meta"),
        ("meta policy=test", "meta policy"),
        ("piece c0 n0 0:1", "route 1-2"),
        ("piece c0 n0 0:1", "owner c0 m0"),
        ("piece c0 n0 0:1", "pieces"),
        ("piece c0 n0 0:1", f"piece c0 n0 0:{10**20}"),
        ("q=0 after=2", f"q={10**12} after=2"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(old: str, new: str) -> None:
    text = TEXT.replace(old, new, 1)
    with pytest.raises(ScheduleError) as caught:
        parse(text)
    pairs = zip(TEXT.splitlines(), text.splitlines(), strict=True)
    number = next(i for i, (was, now) in enumerate(pairs, 1) if was != now)
    assert f"line {number} " in str(caught.value), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("meta head_dim=2", "meta head_size=2", "unknown meta key 'head_size'"),
        ("meta num_nodes=2\n", "", "lacks num_nodes"),
        ("meta head_dim=2\n", "", "head_dim"),
        ("meta num_nodes=2", "meta num_nodes=two", "num_nodes is 'two': expected a whole number"),
        ("meta num_nodes=2", "meta num_nodes=0", "num_nodes is 0: expected at least 1"),
        ("meta num_nodes=2", "meta num_nodes=99999999", "expected at most 65536"),
        ("meta chunk_tokens=2", f"meta chunk_tokens={10**20}", "less than"),
        ("meta buffer_bytes=0", "meta buffer_bytes=-1", "buffer_bytes is -1: expected at least 0"),
        ("meta budgets=-1,-1", "meta budgets=-1", "1 budgets for 2 nodes"),
        ("meta head_cuts=0,1", "meta head_cuts=0,2", "head cuts"),
    ],
)
def test_meta_is_checked(old: str, new: str, match: str) -> None:
    with pytest.raises(ScheduleError, match=match) as caught:
        parse(TEXT.replace(old, new))
    assert "\n" not in str(caught.value)


def test_lines_say_what_is_not_usual() -> None:
    rows = dump(random_schedule(Recipe(num_nodes=4, topology="ring", max_new_tokens=1, seed=5)))
    for word in ("keep", "stream", "ahead=1", "route=", "lane=nic", "q=all", "from=", "send query", "send state"):
        assert word in rows


def test_a_single_line() -> None:
    assert line(tuple(small().steps[1].tolist())) == "n0 prefill c0 send kv c0:1 m0:1 h0:1 stream to=1"


def test_the_grid_has_a_column_per_node() -> None:
    assert grid(small()).splitlines()[:3] == [
        "  pos node 0                            node 1",
        "    0    c0 produce c0:1 m0:1              c0 recv kv c0:1 m0:1 stream fr",
        "    1    c0 send kv c0:1 m0:1 stream to    c0 produce c0:1 m1:2",
    ]


def test_the_grid_marks_one_row_and_its_neighbourhood() -> None:
    marked = grid(small(), mark=6, around=1).splitlines()
    assert [text for text in marked if ">> " in text] == [
        "    2    c0 attend c0:1 m0:1 q=0        >> c0 attend c0:1 m0:1 q=1"
    ]
    assert [int(text[:5]) for text in marked[1:]] == [1, 2, 3]


def test_the_grid_shows_rows_that_are_damaged() -> None:
    steps = small().steps.copy()
    steps["kind"][2] = 77
    assert "2" in grid(small().replace(steps=steps), mark=2)


def test_printing_takes_no_part_of_the_schedule_with_it() -> None:
    before = small().steps.copy()
    dump(small())
    assert np.array_equal(before, small().steps)
