"""`mcf run`: one prompt from the command line to an answer on stdout."""

import json
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcf.cli.files import check_target, read_text
from mcf.cli.progress import Reporter, Silence, reporter
from mcf.cli.settings import read_budget, read_chunk, read_dtype, read_tokens
from mcf.cli.summary import print_summary
from mcf.dist.torchrun import here
from mcf.engine.clusters import speeds_of
from mcf.engine.planner import check_policy, check_workers
from mcf.engine.sampler import Sampler
from mcf.errors import PromptError, UserError
from mcf.sim import load_profile
from mcf.trace import write_perfetto

if TYPE_CHECKING:
    from mcf.engine.result import Result

_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all control characters but tab and newline


@dataclass(frozen=True, kw_only=True)
class _Options:
    """What the command line asks for, checked."""

    model: str
    prompt: str
    workers: int
    policy: str
    chunk_tokens: int | str
    kv_memory: int | None
    max_tokens: int
    dtype: str
    cluster: str | None
    seed: int
    temperature: float
    top_p: float
    is_raw: bool
    interface: str | None
    timeout_s: float | None


def run_command(
    model: str,
    *,
    prompt: str | None,
    prompt_file: str | None,
    workers: int,
    policy: str,
    chunk_tokens: str,
    kv_memory: str | None,
    max_tokens: str,
    dtype: str,
    cluster: str | None,
    seed: int,
    temperature: float,
    top_p: float,
    is_raw: bool,
    is_json: bool,
    interface: str | None,
    timeout_s: float | None,
    trace: str | None,
) -> None:
    """Check everything that needs no model, then load, run and tell. Raises UserError and RunError kinds.

    A torchrun process that serves the head needs neither the prompt nor the trace's folder, and tells nothing.
    """
    check_policy(policy)
    check_workers(workers)
    Sampler(temperature=temperature, top_p=top_p, seed=seed)  # refuses what it cannot use
    place = here()
    is_guest = place is not None and place.is_guest
    if trace is not None and not is_guest:
        check_target(trace, what="the trace")
    if cluster is not None and not is_guest:
        speeds_of(load_profile(cluster).for_dtype(read_dtype(dtype)), workers)  # refuses what `load` would refuse later
    options = _Options(
        model=model,
        prompt="" if is_guest else read_prompt(prompt, prompt_file),
        workers=workers,
        policy=policy,
        chunk_tokens=read_chunk(chunk_tokens),
        kv_memory=read_budget(kv_memory),
        max_tokens=read_tokens(max_tokens, "--max-tokens"),
        dtype=read_dtype(dtype),
        cluster=cluster,
        seed=seed,
        temperature=temperature,
        top_p=top_p,
        is_raw=is_raw,
        interface=interface,
        timeout_s=timeout_s,
    )
    progress = Silence() if is_guest else reporter(sys.stderr)
    try:
        result = _generate(options, progress, Answer(progress, is_quiet=is_json))
    finally:
        progress.stop()
    _tell(result, is_json=is_json, trace=trace)


def read_prompt(prompt: str | None, prompt_file: str | None) -> str:
    """Return the prompt from exactly one of the two options. Raises UserError."""
    if prompt is None and prompt_file is None:
        raise UserError("got no prompt: expected --prompt TEXT or --prompt-file FILE (- reads stdin); give one")
    if prompt is not None and prompt_file is not None:
        raise UserError("got both --prompt and --prompt-file: expected one of them; leave one out")
    text = prompt if prompt_file is None else read_text(prompt_file, what="a prompt as UTF-8 text")
    assert text is not None
    if not text.strip():
        raise PromptError(f"got an empty prompt{f' in {prompt_file!r}' if prompt_file else ''}: expected some text")
    if not text.isprintable() and any("\ud800" <= char <= "\udfff" for char in text):
        raise PromptError("got a prompt that is not UTF-8 text: expected UTF-8; give it in a file with --prompt-file")
    return text


class Answer:
    """Streams the answer to stdout; the first piece ends the progress bars."""

    def __init__(self, progress: Reporter, *, is_quiet: bool) -> None:
        self._progress, self._is_quiet = progress, is_quiet

    def __call__(self, piece: str) -> None:
        """Print one piece of the answer, on a terminal without characters that steer it."""
        self._progress.stop()
        if not self._is_quiet:
            sys.stdout.write(_STEERING.sub("\ufffd", piece) if sys.stdout.isatty() else piece)
            sys.stdout.flush()


def _generate(options: _Options, progress: Reporter, answer: Answer) -> "Result":
    from mcf.dist.limit import Limit
    from mcf.engine.llm import load  # torch: seconds, and what was checked until here does without

    limit = Limit.start(options.timeout_s)
    with load(
        options.model,
        workers=options.workers,
        policy=options.policy,
        kv_memory=options.kv_memory,
        chunk_tokens=options.chunk_tokens,
        dtype=options.dtype,
        cluster=options.cluster,
        interface=options.interface,
        timeout_s=limit,
        on_progress=progress,
        before_weights=lambda llm: llm.prepare(options.prompt, max_tokens=options.max_tokens, raw=options.is_raw),
    ) as llm:
        llm.patience_s = 0.0  # whatever ends the request early ends the command, and the workers with it
        return llm.generate(
            options.prompt,
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            top_p=options.top_p,
            seed=options.seed,
            raw=options.is_raw,
            timeout_s=limit,
            on_text=answer,
            on_progress=progress,
        )


def _tell(result: "Result", *, is_json: bool, trace: str | None) -> None:
    if is_json:
        print(json.dumps(result.to_json(), allow_nan=False))
    elif not result.text.endswith("\n"):
        print()
    sys.stdout.flush()
    print_summary(sys.stderr, result)
    if trace is not None:
        write_perfetto(trace, result.trace, result.schedule)
        print(f"trace: {trace} (open it in https://ui.perfetto.dev, or mcf show --play {trace})", file=sys.stderr)
