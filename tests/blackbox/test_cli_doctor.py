"""`mcf doctor` from the shell."""

import json

import pytest

from command import check_json, mcf

pytestmark = pytest.mark.dist
CHECKS = ["versions", "network", "ports", "clocks", "memory", "cores", "disk", "files", "model"]


def test_a_model_that_fits_is_found_well(toy):
    done = mcf("doctor", str(toy), "--workers", "2", "--kv-memory", "1MiB", "--json")
    assert (done.code, done.err, done.left) == (0, "", [])
    found = check_json(done.out, "doctor")
    assert found["ok"]
    assert found["errors"] == 0
    assert list(dict.fromkeys(each["check"] for each in found["findings"])) == CHECKS
    assert [node["rank"] for node in found["nodes"]] == [0, 1]
    assert len({node["fingerprint"] for node in found["nodes"]}) == 1


def test_a_model_that_does_not_fit_is_an_error_with_its_cure(toy):
    done = mcf("doctor", str(toy), "--kv-memory", "900TiB")
    assert (done.code, done.err, done.left) == (1, "", [])
    (line,) = [line for line in done.out.splitlines() if line.startswith("error")]
    assert "KV 900 TiB" in line
    assert "; do: free memory" in line
    found = json.loads(mcf("doctor", str(toy), "--kv-memory", "900TiB", "--json").out)
    assert (found["ok"], found["errors"]) == (False, 1)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--workers", "0"), "got 0 workers"),
        (("--workers", "two"), "--workers"),
        (("--kv-memory", "much"), "--kv-memory"),
        (("--dtype", "int3"), "unknown dtype 'int3'"),
        (("no/such/model.gguf",), "no/such/model"),
    ],
)
def test_bad_input_is_one_line(args, says):
    done = mcf("doctor", *args)
    assert (done.code, done.out, done.left) == (2, "", [])
    assert says in done.error


def test_save_without_measure_or_toml_is_refused_before_any_work(tmp_path):
    done = mcf("doctor", "--save", str(tmp_path / "c.toml"))
    assert (done.code, done.out) == (2, "")
    assert "--save without --measure" in done.error
    assert "ends in .toml" in mcf("doctor", "--measure", "--save", str(tmp_path / "c.txt")).error
    assert "no directory" in mcf("doctor", "--measure", "--save", str(tmp_path / "no" / "c.toml")).error
