"""Every command and every Python block that a page shows is run: the real command line on a toy model, scripts in a
checkout whose tools only log. A command that is not in `TABLE` fails.
"""

import contextlib
import inspect
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import mcf.engine.llm
import mcf.ref
import netns
from lab import share
from launched import TORCHRUN, Running
from mcf.cli import main
from mcf.engine.llm import LLM, load
from mcf.sim import load_profile
from mcf.testing import make_toy_model
from mcf.units import parse_bytes
from netns import all_gone
from pages import PAGES, ROOT, blocks, commands

SHELL = [block for path in PAGES for block in blocks(path) if block.language in ("sh", "bash", "shell", "console")]
SHOWN = sorted({command for block in SHELL for command in commands(block)})
PYTHON_ELSEWHERE = {"docs/adding-a-policy.md", "docs/adding-a-topology.md"}  # run by their own tests
FAKE_TOOL = """#!/bin/sh
case "$1" in -c) exit 0 ;; esac
echo "${0##*/} $*" >> tools.log
case "$1" in run) cat >/dev/null ;; esac
"""
TOOLS = ("python", "ruff", "lint-imports", "mypy", "mcf")
REPORT = "In the beginning there was a long report, and the report was about rivers. "


class Borrowed(LLM):
    """The shared model as `load` would give it; closing it leaves the workers to the others."""

    def close(self) -> None:
        pass


class Workshop:
    """A folder in which the commands of one page run in order, and the shared workers."""

    def __init__(self, folder: Path, llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.llm, self.capsys = folder, llm, capsys
        (folder / "report.txt").write_text(REPORT)
        self.doors = contextlib.ExitStack()
        self.hosts: list[netns.Host] = []
        self.started: list[Running] = []

    def load(self, model: str, *, workers: int = 2, **options: Any) -> LLM:
        """Stand in for `mcf.load`: the same options, the toy model, the workers that are there."""
        inspect.signature(load).bind(model, workers=workers, **options)
        assert workers == self.llm.world.num_workers, "a page shows another number of workers: plan for it here"
        budget = options.get("kv_memory")
        borrowed = Borrowed(
            *(self.llm.world, self.llm.source, self.llm.shape, self.llm.tokenizer),
            policy=options.get("policy", "mars-paper"),
            kv_memory_bytes=None if budget is None else parse_bytes(budget),
            chunk_tokens=options.get("chunk_tokens", "auto"),
        )
        borrowed.weight_bytes = self.llm.weight_bytes
        return borrowed

    def mcf(self, command: str) -> str:
        """Run one `mcf` command in this process and return what it printed."""
        assert main(shlex.split(command)[1:]) == 0, self.capsys.readouterr().err
        return self.capsys.readouterr().out

    def checkout(self) -> Path:
        """A checkout with the project's scripts and a .venv whose tools only log."""
        root = self.folder / "a checkout"
        if not root.exists():
            (root / "src" / "mcf").mkdir(parents=True)
            for name in ("scripts", ".ci", "src/mcf/data"):
                shutil.copytree(ROOT / name, root / name)
            shutil.copy(ROOT / "pyproject.toml", root)
            (root / ".venv" / "bin").mkdir(parents=True)
            (root / ".venv" / "bin" / "activate").write_text("")
            for tool in TOOLS:
                path = root / ".venv" / "bin" / tool
                path.write_text(FAKE_TOOL)
                path.chmod(0o755)
        return root

    def bash(self, command: str) -> list[str]:
        """Run one command line in that checkout and return what its tools logged."""
        root = self.checkout()
        (root / "tools.log").write_text("")
        env = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
        done = subprocess.run(["bash", "-c", command], cwd=root, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return (root / "tools.log").read_text().splitlines()


def answers(shop: Workshop, command: str) -> None:
    printed = shop.mcf(command)
    assert printed.endswith("\n")
    words = shlex.split(command)
    if "--json" in words:
        assert json.loads(printed)["token_ids"]
    if "--trace" in words:
        assert json.loads((shop.folder / words[words.index("--trace") + 1]).read_text())["traceEvents"]


def saves(shop: Workshop, command: str) -> None:
    assert "replica factor" in shop.mcf(command)
    words = shlex.split(command)
    assert (shop.folder / words[words.index("--save") + 1]).read_text().startswith("mcf-schedule 1\n")


def prints(text: str) -> "Runner":
    def run(shop: Workshop, command: str) -> None:
        assert text in shop.mcf(command)

    return run


def examines(shop: Workshop, command: str) -> None:
    printed = shop.mcf(command)
    if "--json" in command:
        assert json.loads(printed)["ok"]
    else:
        assert [line.split()[1] for line in printed.splitlines() if line][:4] == [
            "versions",
            "network",
            "ports",
            "clocks",
        ]


def saves_a_cluster(shop: Workshop, command: str) -> None:
    sizes = dict(SECONDS=0.01, STREAM_BYTES=1 << 20, PAST_TOKENS=64, PROBE_BYTES=1 << 12, MOST_BYTES=1 << 16)
    sizes |= dict(RUN_TOKENS=16)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sizes.items():
            patch.setattr(f"mcf.engine.doctor.measure.{name}", value)
        examines(shop, command)
    words = shlex.split(command)
    assert load_profile(shop.folder / words[words.index("--save") + 1]).num_nodes == 2


def demonstrates(shop: Workshop, command: str) -> None:
    log = shop.bash(command)
    words = shlex.split(log[-1])
    assert words[:3] == ["mcf", "run", "demo"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(REPORT.encode())))
        answers(shop, shlex.join(words))


def logs(*expected: str) -> "Runner":
    def run(shop: Workshop, command: str) -> None:
        log = "\n".join(shop.bash(command))
        assert [text for text in expected if text not in log] == []

    return run


def starts_the_first(shop: Workshop, command: str) -> None:
    """Start the command for the first of two hosts; the one for the second comes next and waits for both."""
    if why := netns.why_not():
        pytest.skip(why)
    shop.hosts = shop.doors.enter_context(netns.hosts(2))
    shop.started = [_start(shop, 0, command)]


def joins_the_first(shop: Workshop, command: str) -> None:
    """Run the command for the second host; the first answers."""
    shop.started.append(_start(shop, 1, command))
    (code, answer, said), (other_code, nothing, other_said) = (running.end() for running in shop.started)
    assert (code, other_code) == (0, 0), said + other_said
    assert (answer.endswith("\n"), nothing) == (True, "")
    assert "worker 1 of 2 on " in other_said
    assert "10.0.0.2 over eth0" in other_said
    assert all_gone(shop.hosts)
    shop.doors.close()


def _start(shop: Workshop, rank: int, command: str) -> Running:
    """Start a documented torchrun command as it stands, on the toy model."""
    words = [str(shop.llm.source.folder) if word == "demo" else word for word in shlex.split(command)]
    assert words[0] == "torchrun"
    return shop.doors.enter_context(Running(shop.hosts[rank].inside(TORCHRUN, *words[1:])))


def tries_on_one_machine(shop: Workshop, command: str) -> None:
    words = [str(shop.llm.source.folder) if word == "demo" else word for word in shlex.split(command)]
    code, answer, said = Running([TORCHRUN, *words[1:]]).end()
    assert (code, answer[-1:]) == (0, "\n"), said


def measures(shop: Workshop, command: str) -> None:
    printed = shop.mcf(command)
    words = shlex.split(command)
    saved = [(shop.folder / words[words.index("--save") + 1]).read_text()] if "--save" in words else []
    for text in saved + [printed] * ("--json" in words):
        assert json.loads(text)["achieved_of_bound"] > 0


def simulates(shop: Workshop, command: str) -> None:
    shutil.copytree(ROOT / "examples", shop.folder / "examples", dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        share(patch)
        printed = shop.mcf(command)
    words = shlex.split(command)
    if "--json" in words:
        assert json.loads(printed)["rows"]
    elif "run" in words:
        assert "TTFT (model)" in printed
    if "--out" in words:
        assert list((shop.folder / words[words.index("--out") + 1]).glob("*.html"))
    if "--save-trace" in words:
        assert json.loads((shop.folder / words[words.index("--save-trace") + 1]).read_text())["mcf"]


def replays(shop: Workshop, command: str) -> None:
    words = shlex.split(command)
    page = (
        words[words.index("--out") + 1]
        if "--out" in words
        else words[words.index("--play") + 1].replace(".json", ".html")
    )
    assert page in shop.mcf(command)
    assert "<canvas" in (shop.folder / page).read_text()


def hardware(text: str) -> "Runner":
    """Run a command of `mcf rtl` on one small module, and its tests not at all: that is what tests/rtl are for."""

    def run(shop: Workshop, command: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mcf.cli.rtl.MODULES", ("barrier",))
            patch.setattr("mcf.rtl.report.MODULES", ("barrier",))
            patch.setattr("mcf.cli.rtl.run_pytest", lambda *arguments: print("pytest", *arguments) or 0)
            assert text in shop.mcf(command)

    return run


def decodes(text: str) -> "Runner":
    """Run a decode step but for its simulation, whose node compiles for minutes: tests/rtl have that."""

    def run(shop: Workshop, command: str) -> None:
        from mcf.rtl import board_node, decode_found, decode_run

        exact = {"exact_states": 1, "exact_results": 1}
        layer = decode_found.LayerRun(attention_cycles=9, cycles=10, outputs=(), error=0.0, **exact)
        product = decode_found.ProductRun(rows=1, columns=1, beats=1, cycles=1, is_exact=True)

        def quick(case: Any, source: Any, **how: Any) -> Any:
            ran = {"product": product, "read_beats": [[1] * 5], "link_beats": 0, "cycles": 10 * len(case.layers)}
            layers = [layer] * len(case.layers)
            return decode_found.DecodeRun(case=case, layers=layers, counts=[{"merged": 1}], **ran)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decode_run, "run_decode", quick)
            patch.setattr(board_node, "compile_node", lambda **_: None)
            assert text in shop.mcf(command)

    return run


def attends(text: str) -> "Runner":
    """Run a schedule on whole nodes but for its simulation, for the same reason."""

    def run(shop: Workshop, command: str) -> None:
        from mcf.rtl import board_node
        from mcf.rtl import run as executor

        def quick(sched: Any, *tensors: Any, decode_tokens: int, whole: bool, **how: Any) -> Any:
            assert whole
            law = mcf.ref.run(sched, *tensors, decode_tokens=decode_tokens)
            shared = {field.name: getattr(law, field.name) for field in fields(law)}
            return executor.RtlOutcome(**shared, cycles=1, phase_cycles={}, links={}, merged=0, wall_s=1.0)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(executor, "run", quick)
            patch.setattr(board_node, "compile_node", lambda **_: None)
            assert text in shop.mcf(command)

    return run


CHECKS = ("ruff format --check", "ruff check", "lint-imports", "mypy")
Runner = Callable[[Workshop, str], None]
HOSTS = (
    "torchrun --nnodes 2 --nproc-per-node 1 --node-rank {rank} --master-addr 10.0.0.1 --master-port 29500 "
    "-m mcf run demo --prompt-file report.txt"
)
TABLE: dict[str, Runner] = {
    "scripts/setup": logs("pip install"),
    "scripts/demo": demonstrates,
    "scripts/test": logs(*CHECKS, "python -m pytest"),
    "source .venv/bin/activate": logs(),
    HOSTS.format(rank=0): starts_the_first,
    HOSTS.format(rank=1): joins_the_first,
    'torchrun --standalone --nproc-per-node 2 -m mcf run demo --prompt "Why is the sky blue?" --max-tokens 8': (
        tries_on_one_machine
    ),
    'mcf run demo --prompt "Why is the sky blue?" --max-tokens 32': answers,
    "mcf run demo --prompt-file report.txt --workers 2 --kv-memory 256MiB --trace run.json": answers,
    'mcf run path/to/model.gguf --prompt "Once upon a time" --raw --temperature 0.7 --top-p 0.9 --seed 1': answers,
    'mcf run Qwen/Qwen2.5-0.5B-Instruct --prompt "Name three rivers." --policy ring --json': answers,
    "mcf plan demo --prompt-tokens 7k --workers 4 --kv-memory 256MiB --save plan.txt": saves,
    "mcf doctor demo --workers 2 --kv-memory 256MiB": examines,
    "mcf doctor": examines,
    "mcf doctor --measure --save cluster.toml": saves_a_cluster,
    "mcf plan demo --prompt-tokens 7k --cluster cluster.toml --policy gather": prints("to the first token"),
    "mcf plan demo --prompt-tokens 7k --cluster cluster.toml": prints("mars-paper"),
    "mcf plan demo --prompt-tokens 7k --cluster cpu-1g --policy gather": prints("to the first token"),
    "mcf plan demo --prompt-tokens 7k --cluster cpu-1g --workers 4": prints("mars-paper"),
    "mcf plan qwen2.5-1.5b --prompt-tokens 64k --cluster gpu-10g --workers 16 --kv-memory 400MiB": prints(
        "No schedule on these nodes"
    ),
    "mcf doctor demo --workers 2 --kv-memory 256MiB --json": examines,
    "mcf bench prefill demo --prompt-tokens 2k": measures,
    "mcf bench prefill demo --prompt-tokens 2k --save mars.json": measures,
    "mcf bench prefill demo --prompt-tokens 2k --policy ring --save ring.json": measures,
    "mcf bench compare mars.json ring.json --across policy": prints("policy (mars-paper and ring)"),
    "mcf bench decode demo --prompt-tokens 2k --max-tokens 9 --dtype bfloat16 --json": measures,
    ".venv/bin/python benchmarks/scaling/run.py --models smollm --lengths 2048 --dtypes bfloat16 --rows a,b "
    "--rounds 1": logs("python benchmarks/scaling/run.py"),
    ".venv/bin/python benchmarks/sim/validate.py --local --workers 2 --prompt-tokens 256 --repeats 1 --policies gather "
    "--out validate.json": logs("python benchmarks/sim/validate.py"),
    "mcf sim list": prints("paper16k-fitted"),
    "mcf sim run table1": simulates,
    "mcf sim run fig4 --out figures": simulates,
    "mcf sim run all --out figures": simulates,
    "mcf sim run all --json": simulates,
    "mcf sim run examples/crossover.toml": simulates,
    "mcf sim run examples/tight.toml": simulates,
    "mcf sim run examples/stragglers.toml --profile gpu-10g": simulates,
    "mcf sim run examples/one-case.toml --save-trace trace.json": simulates,
    "mcf sim run examples/decode-step.toml --profile kr260-rtl": simulates,
    "mcf show --play trace.json": replays,
    "mcf show --play trace.json --out replay.html": replays,
    "mcf rtl test --quick": hardware("-m not full"),
    "mcf rtl test": hardware("-m full or not full"),
    "mcf rtl build --out hardware": hardware("barrier.v"),
    "mcf rtl report": hardware("no claim of 200 MHz"),
    "mcf rtl report --json": hardware('"caveats"'),
    "mcf rtl sim --decode qwen2.5-1.5b --nodes 4 --context 16k": decodes(
        "16,384 tokens on a 2x2 mesh of whole nodes: attention of 28 of 28 layers"
    ),
    "mcf rtl sim --demo": prints("demo on a 2x2 mesh"),
    "mcf rtl sim --demo --mesh 2x1 --json": prints('"phase_cycles"'),
    "mcf rtl sim --demo --noise 0.01": prints("sent again"),
    "mcf rtl sim --demo --whole --mesh 2x1 --decode-tokens 1": attends("Bit for bit as the golden model"),
    "mcf show plan.txt": prints("attend"),
    "mcf show plan.txt --verify": prints("keeps the laws V1-V8"),
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with load(make_toy_model(tmp_path_factory.mktemp("toy")), workers=2) as shared:
        yield shared


@pytest.fixture
def shop(
    tmp_path: Path, llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workshop]:
    made = Workshop(tmp_path, llm, capsys)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mcf.engine.llm, "load", made.load)
    with made.doors:
        yield made


def test_each_command_shown_is_in_the_table() -> None:
    unknown = [command for command in SHOWN if command not in TABLE]
    assert unknown == [], "a page shows commands that no test runs: add them to TABLE"
    assert sorted(set(TABLE) - set(SHOWN)) == [], "TABLE has commands that no page shows"


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({block.page for block in SHELL}))
def test_the_commands_of_a_page_run_in_order(page: str, shop: Workshop) -> None:
    for command in [command for block in SHELL if block.page == page for command in commands(block)]:
        TABLE[command](shop, command)


@pytest.mark.dist
@pytest.mark.slow
def test_the_python_of_the_readme_runs(shop: Workshop) -> None:
    found = [block for path in PAGES for block in blocks(path) if block.language == "python"]
    texts = [block.text for block in found if block.page not in PYTHON_ELSEWHERE]
    assert [block.page for block in found if block.page not in PYTHON_ELSEWHERE] == ["README.md", "docs/failures.md"]
    exec(compile(texts[1], "docs/failures.md", "exec"), {"mcf": mcf, "prompt": REPORT})
    exec(compile(texts[0], "README.md", "exec"), {})
    text, numbers, moved = shop.capsys.readouterr().out.rstrip("\n").rsplit("\n", 2)
    assert text
    assert numbers.endswith("True")
    assert "new_kv" in moved
