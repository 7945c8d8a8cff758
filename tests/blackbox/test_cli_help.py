"""What the command line offers, and how it refuses what it does not."""

import os
import subprocess
import sys

import pytest
import typer

import mcf
from command import MCF
from command import mcf as run_mcf
from mcf.cli.app import app

SHARED = {"--workers", "--policy", "--chunk-tokens", "--kv-memory", "--max-tokens", "--dtype", "--json", "--debug"}
BENCH = (SHARED - {"--max-tokens"}) | {"--prompt-tokens", "--threads", "--rounds", "--warmup", "--seed", "--save"}
OPTIONS = {
    "run": SHARED
    | {
        "--prompt",
        "--prompt-file",
        "--seed",
        "--temperature",
        "--top-p",
        "--raw",
        "--timeout",
        "--interface",
        "--trace",
        "--cluster",
    },
    "plan": SHARED | {"--prompt-tokens", "--cluster", "--save"},
    "show": {"--verify", "--play", "--out", "--debug"},
    "bench prefill": BENCH,
    "bench decode": BENCH | {"--max-tokens"},
    "bench compare": {"--across", "--json", "--debug"},
    "sim run": {"--out", "--json", "--profile", "--save-trace", "--debug"},
    "sim list": {"--debug"},
    "rtl test": {"--quick", "--debug"},
    "rtl build": {"--out", "--debug"},
    "rtl report": {"--place", "--json", "--debug"},
    "rtl sim": {
        "--mesh",
        "--demo",
        "--whole",
        "--decode",
        "--nodes",
        "--context",
        "--layers",
        "--decode-tokens",
        "--links",
        "--noise",
        "--waveform",
        "--json",
        "--debug",
    },
    "doctor": {"--workers", "--kv-memory", "--dtype", "--measure", "--save", "--interface", "--json", "--debug"},
}


def usage_error(*args: str) -> str:
    done = run_mcf(*args)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    return done.error


def test_the_set_of_commands_and_options_is_frozen() -> None:
    command = typer.main.get_command(app)
    found = {}
    for name, sub in command.commands.items():
        inner = {f"{name} {each}": below for each, below in getattr(sub, "commands", {}).items()} or {name: sub}
        for path, each in inner.items():
            found[path] = {flag for param in each.params for flag in param.opts if flag.startswith("-")}
    assert found == OPTIONS
    assert {flag for param in command.params for flag in param.opts} == {"--version"}


def test_without_arguments_the_help_is_printed() -> None:
    bare, asked = run_mcf(), run_mcf("--help")
    assert bare == asked
    assert (bare.code, bare.err) == (0, "")
    assert all(name.split()[0] in bare.out for name in OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_each_command_explains_each_option(name: str) -> None:
    done = run_mcf(*name.split(), "--help")
    assert done.code == 0
    assert {flag for flag in OPTIONS[name] if flag not in done.out} == set()


def test_help_states_units_and_defaults() -> None:
    text = " ".join(run_mcf("run", "--help").out.replace("│", " ").split())
    for words in (
        "(2; under torchrun one for each of its processes)",
        "[default: mars-paper]",
        "256MiB",
        "(no limit)",
        "in tokens (1k = 1024)",
        "ui.perfetto.dev",
    ):
        assert words in text


def test_the_version_is_printed_by_the_command_and_by_the_module() -> None:
    module = subprocess.run([sys.executable, "-m", "mcf", "--version"], capture_output=True, text=True, timeout=60)
    assert run_mcf("--version").out == module.stdout == f"mcf {mcf.__version__}\n"


@pytest.mark.parametrize("args", [["--help"], ["plan", "{toy}", "--prompt-tokens", "100"]], ids=["help", "plan"])
def test_help_and_plan_import_nothing_heavy(args: list[str], toy) -> None:
    line = [arg.format(toy=toy) for arg in args]
    code = (
        f"import sys; from mcf.cli import main; main({line!r}); print({{'torch', 'transformers'}} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "set()"


def test_mistyped_commands_and_options_are_guessed() -> None:
    assert usage_error("rnu") == "error: no such command 'rnu'. Did you mean 'run'? (see `mcf --help`)"
    assert usage_error("run", "demo", "--wrokers", "3") == (
        "error: no such option --wrokers: did you mean --workers? (see `mcf run --help`)"
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run"], "missing argument 'MODEL'"),
        (["plan", "demo"], "missing option '--prompt-tokens'"),
        (["run", "demo", "extra"], "unexpected extra argument"),
        (["run", "demo", "--prompt"], "'--prompt' requires an argument"),
        (["frobnicate"], "no such command 'frobnicate'"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line(args: list[str], words: str) -> None:
    assert words in usage_error(*args)


def test_a_reader_that_leaves_is_not_an_error(toy, tmp_path) -> None:
    saved = str(tmp_path / "plan.txt")
    assert run_mcf("plan", str(toy), "--prompt-tokens", "500", "--chunk-tokens", "2", "--save", saved).code == 0
    assert os.path.getsize(saved) > 2**17  # more than a pipe holds
    shown = subprocess.Popen([MCF, "show", saved], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert shown.stdout is not None
    assert shown.stderr is not None
    shown.stdout.readline()
    shown.stdout.close()
    err = shown.stderr.read()
    shown.stderr.close()
    assert (shown.wait(60), err) == (1, "")


def test_an_unexpected_exception_is_one_line(monkeypatch, capsys) -> None:
    from mcf.cli import app as app_module
    from mcf.cli import main

    def fail(*args: object, **options: object) -> None:
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr(app_module, "show_command", fail)
    assert main(["show", "x"]) == 1
    assert capsys.readouterr().err == "internal error: ZeroDivisionError: a b; run again with --debug\n"
    assert main(["show", "x", "--debug"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith("internal error: ZeroDivisionError: a b\n")
