"""`mcf plan`: the schedule in numbers before anything runs."""

import json
import sys

from mcf.cli.files import check_target, write_text
from mcf.cli.numbers import plan_numbers, print_plan
from mcf.cli.settings import read_budget, read_chunk, read_dtype, read_tokens
from mcf.engine.planner import check_policy, check_window, check_workers, make_plan
from mcf.engine.source import read_shape
from mcf.schedule import dump


def plan_command(
    model: str,
    *,
    prompt_tokens: str,
    workers: int,
    policy: str,
    chunk_tokens: str,
    kv_memory: str | None,
    max_tokens: str,
    dtype: str,
    save: str | None,
    is_json: bool,
) -> None:
    """Plan, verify, save and print. Raises UserError kinds; reads the model's config alone."""
    check_policy(policy)
    check_workers(workers)
    num_tokens, most_new = read_tokens(prompt_tokens, "--prompt-tokens"), read_tokens(max_tokens, "--max-tokens")
    chunk, budget = read_chunk(chunk_tokens), read_budget(kv_memory)
    if save is not None:
        check_target(save, what="the schedule")
    shape = read_shape(model, dtype=read_dtype(dtype))
    check_window(shape, num_tokens, min_new_tokens=0)
    made = make_plan(
        shape,
        prompt_tokens=num_tokens,
        num_workers=workers,
        policy=policy,
        chunk_tokens=chunk,
        kv_memory_bytes=budget,
        max_tokens=min(most_new, shape.max_positions - num_tokens),
    )
    if save is not None:
        write_text(save, dump(made.schedule), what="the schedule")
    if is_json:
        print(json.dumps(plan_numbers(made.schedule, made.report), allow_nan=False))
    else:
        print_plan(sys.stdout, made.schedule, made.report)
