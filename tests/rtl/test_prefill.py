"""A chunk's prefill at a tiny size on simulated hardware: every bit as the models say, and copies that arrive."""

from typing import Any

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from mcf.errors import ScheduleError
from mcf.rtl.build.cxxrtl import missing_compiler
from mcf.rtl.prefill import PrefillCase, block_beats
from mcf.rtl.prefill_run import run_prefill
from mcf.rtl.routes import Mesh
from mcf.schedule.wire import Collective, Flags, Op, Stage, unpack


@pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))
def test_a_chunk_is_projected_attended_and_copied_to_the_other_nodes() -> None:
    case = PrefillCase()
    run = run_prefill(case, Mesh(width=2, height=2))
    assert run.error < 2e-3
    assert min(run.project_cycles, run.attend_cycles, run.send_cycles) > 0
    for packets in run.packets.values():
        arrived: dict[tuple[int, int, int], bytes] = {}
        for header, payload in packets:
            fields = unpack(header)
            key = fields["head"], fields["is_v"], fields["block"]
            assert fields["tag"] == len(arrived.get(key, b"")) // 1024
            arrived[key] = arrived.get(key, b"") + payload
            assert bool(fields["flags"] & Flags.LAST) == (len(arrived[key]) == 16 * block_beats(case))
            kind = fields["stage"], fields["op"], fields["collective"], fields["src"]
            assert kind == (Stage.PREFILL, Op.KV_REPLICA, Collective.MULTICAST, 0)
        assert arrived == run.blocks
    assert sorted(run.packets) == [1, 2, 3]
    assert len(run.blocks) == 2 * case.num_kv_heads


@pytest.mark.parametrize(
    "wrong",
    [dict(tokens=100), dict(hidden=100), dict(num_q_heads=5), dict(head_dim=256), dict(num_q_heads=3, num_kv_heads=3)],
)
def test_what_is_not_tiny_or_does_not_fit_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ScheduleError, match="expected"):
        PrefillCase(**wrong)
