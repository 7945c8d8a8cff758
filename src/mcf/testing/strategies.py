"""Hypothesis strategies: random recipes, legal schedules, schedules with one fault. Only this file needs hypothesis."""

from hypothesis import assume
from hypothesis import strategies as st

from mcf.schedule import Schedule
from mcf.schedule.deadlock import stuck_rows, use_pairs
from mcf.testing.drawing import random_schedule
from mcf.testing.mutations import MUTATIONS, Broken, break_schedule
from mcf.testing.recipe import Recipe


@st.composite
def recipes(
    draw: st.DrawFn, *, max_nodes: int = 4, max_chunk: int = 9, decode: bool = True, relay_late: bool = False
) -> Recipe:
    """Recipes of small schedules: odd lengths, empty shares, head groups, both topologies.

    Lists start with what is worth trying most, since hypothesis leans to the first entry.
    """
    num_kv_heads = draw(st.sampled_from((2, 4, 1)))
    inner = draw(st.sets(st.integers(1, num_kv_heads - 1))) if num_kv_heads > 1 else set()
    chunk_tokens = min(draw(st.sampled_from((7, 8, 3, 9, 5, 4, 2, 6, 1))), max_chunk)
    full_chunks = draw(st.sampled_from((2, 3, 1, 4, 0)))
    return Recipe(
        num_nodes=draw(st.sampled_from([n for n in (3, 4, 2, 1) if n <= max_nodes])),
        prompt_tokens=full_chunks * chunk_tokens + draw(st.integers(1, chunk_tokens)),
        chunk_tokens=chunk_tokens,
        num_layers=draw(st.sampled_from((2, 3, 1))),
        num_kv_heads=num_kv_heads,
        group_heads=draw(st.integers(1, 2)),
        head_dim=draw(st.sampled_from((2, 4))),
        page_tokens=draw(st.sampled_from((4, 1, 2, 64))),
        stream_slots=draw(st.sampled_from((2, 1, 3))),
        max_new_tokens=draw(st.integers(0, 5)) if decode else 0,
        topology=draw(st.sampled_from(("switch", "ring", "mesh", "tree", "ring:one-way"))),
        head_cuts=(0, *sorted(inner), num_kv_heads),
        even=draw(st.booleans()),
        hand_over=draw(st.booleans()),
        multicast=not draw(st.booleans()),
        relay_late=relay_late,
        seed=draw(st.integers(0, 2**20)),
    )


def schedules(
    *, max_nodes: int = 4, max_chunk: int = 9, decode: bool = True, relay_late: bool = False
) -> st.SearchStrategy[Schedule]:
    """Random legal schedules: every way in which a block can reach a query (see `mcf.testing.drawing`).

    Their unicast forms are legal too, except that V6 may refuse those with relays and few slots; with `relay_late`
    that is likelier: trees then relay streams that are not ahead, and some wait for each other in a circle, which V6
    refuses and nobody draws.
    """
    chosen = recipes(max_nodes=max_nodes, max_chunk=max_chunk, decode=decode, relay_late=relay_late)
    drawn = chosen.map(random_schedule)
    return drawn.filter(_never_stands) if relay_late else drawn


def _never_stands(sched: Schedule) -> bool:
    return not len(stuck_rows(sched, use_pairs(sched)))


@st.composite
def broken_schedules(draw: st.DrawFn, *, names: tuple[str, ...] = ()) -> Broken:
    """A random legal schedule with one fault of those named (default: any), and the law that it breaks."""
    chosen = [m for m in MUTATIONS if not names or m.name in names]
    mutation = draw(st.sampled_from(chosen))
    broken = break_schedule(draw(schedules()), mutation, draw(st.integers(0, 2**20)))
    assume(broken is not None)
    assert broken is not None
    return broken
