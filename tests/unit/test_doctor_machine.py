"""What a node reads of its machine, from file trees of other machines; what it reads of its own."""

import json
import socket
from pathlib import Path

import pytest

from mcf.dist import interfaces, machine
from mcf.dist.fingerprint import fingerprint

KIB, MIB = 1 << 10, 1 << 20
MEMINFO = "MemTotal: 4096 kB\nMemFree: 1 kB\nMemAvailable: 2048 kB\nSwapTotal: 64 kB\nSwapFree: 60 kB\n"


def write(root: Path, **files: str) -> Path:
    """Files by path, `__` for a slash and `_` as it is."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("DOT", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_memory_without_control_groups(tmp_path):
    found = machine.memory(write(tmp_path, proc__meminfo=MEMINFO))
    assert (found["total_bytes"], found["available_bytes"], found["swap_used_bytes"]) == (4 * MIB, 2 * MIB, 4 * KIB)
    assert found["group_limit_bytes"] is found["group_left_bytes"] is None


@pytest.mark.parametrize("own_limit", ["max", "900"])
def test_the_tightest_control_group_of_version_2_counts(tmp_path, own_limit):
    root = write(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="0::/a/b\n",
        sys__fs__cgroup__a__memoryDOTmax="1000",
        sys__fs__cgroup__a__memoryDOTcurrent="300",
        sys__fs__cgroup__a__memoryDOTstat="anon 5\ninactive_file 100\n",
        sys__fs__cgroup__a__b__memoryDOTmax=own_limit,
        sys__fs__cgroup__a__b__memoryDOTcurrent="250",
        sys__fs__cgroup__a__b__cpuDOTmax="150000 100000",
        sys__fs__cgroup__a__cpuDOTmax="max 100000",
    )
    found = machine.memory(root)
    expected = (1000, 800) if own_limit == "max" else (900, 650)
    assert (found["group_limit_bytes"], found["group_left_bytes"]) == expected
    assert machine.cpu(root)["quota_cores"] == 1.5


def test_control_groups_of_version_1(tmp_path):
    root = write(
        tmp_path,
        proc__self__cgroup="3:memory:/x\n1:cpu,cpuacct:/\n0::/\n",
        sys__fs__cgroup__memory__x__memoryDOTlimit_in_bytes="5000",
        sys__fs__cgroup__memory__x__memoryDOTusage_in_bytes="1000",
        sys__fs__cgroup__memory__memoryDOTlimit_in_bytes="9223372036854771712",
        sys__fs__cgroup__cpu__cpuDOTcfs_quota_us="-1",
        sys__fs__cgroup__cpu__cpuDOTcfs_period_us="100000",
    )
    found = machine.memory(root)
    assert (found["group_limit_bytes"], found["group_left_bytes"]) == (5000, 4000)
    assert machine.cpu(root)["quota_cores"] is None


def test_processors_governor_and_load(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    root = write(
        tmp_path,
        proc__cpuinfo="model name\t: Good\nflags\t\t: fpu avx2 amx_bf16 avx512f\n\nmodel name\t: Bad\nflags : fpu\n",
        proc__loadavg="1.5 0.2 0.1 1/2 3",
        sys__devices__system__cpu__cpu0__cpufreq__scaling_governor="powersave\n",
        sys__devices__system__cpu__cpu1__cpufreq__scaling_governor="performance\n",
    )
    found = machine.cpu(root)
    assert (found["model"], found["flags"], found["load"]) == ("Good", ["avx2", "avx512f", "amx_bf16"], 1.5)
    assert (found["governor"], found["threads"]) == ("performance/powersave", 3)


def test_a_system_that_tells_nothing_is_not_guessed_at(tmp_path):
    assert set(machine.memory(tmp_path).values()) <= {None, machine.memory()["process_limit_bytes"]}
    found = machine.cpu(tmp_path)
    assert (found["flags"], found["governor"], found["load"], found["quota_cores"]) == ([], None, None, None)


def test_the_disk_of_a_folder_that_is_not_there_yet(tmp_path):
    found = machine.disk(tmp_path / "a" / "b")
    assert found["path"] == str(tmp_path / "a" / "b")
    assert found["free_bytes"] > 0
    assert found["is_writable"]


def test_a_file_is_no_folder_to_write_to(tmp_path):
    (tmp_path / "plain").write_text("")
    assert not machine.disk(tmp_path / "plain")["is_writable"]
    assert not machine.disk(tmp_path / "plain" / "below")["is_writable"]


def test_facts_are_plain_values(tmp_path):
    both = machine.facts(tmp_path) | interfaces.facts(["127.0.0.1"])
    assert json.loads(json.dumps(both)) == both
    assert both["memory"]["total_bytes"] > both["memory"]["available_bytes"] > 0
    assert both["machine"]


def test_the_loopback_interface_of_this_machine():
    found = {each.name: each for each in interfaces.interfaces()}
    assert set(found) == {name for _, name in socket.if_nameindex()}
    assert found["lo"].is_loopback
    assert "127.0.0.1" in found["lo"].addresses
    assert found["lo"].mtu_bytes > 0
    assert interfaces.source_address("127.0.0.1") == "127.0.0.1"
    assert interfaces.source_address("no address") == ""
    assert [interfaces.is_loopback(text) for text in ("127.0.1.1", "::1", "10.0.0.1", "x")] == [
        True,
        True,
        False,
        False,
    ]


def model_folder(folder: Path, data: bytes, config: str = '{"a": 1, "b": 2}') -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(config)
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    return folder


def test_fingerprints_tell_models_of_one_shape_apart(tmp_path):
    base = bytes(1 << 20)
    tuned = b"".join(bytes([1]) + base[i + 1 : i + 4096] for i in range(0, len(base), 4096))
    one = fingerprint(model_folder(tmp_path / "one", base))
    assert fingerprint(model_folder(tmp_path / "copy", base, '{"b":2,"a":1}')) == one
    assert fingerprint(model_folder(tmp_path / "tuned", tuned)) != one
    assert fingerprint(model_folder(tmp_path / "longer", base + b"0")) != one
    assert fingerprint(model_folder(tmp_path / "config", base, '{"a": 1}')) != one


def test_a_folder_without_weights_has_no_fingerprint(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="no safetensors"):
        fingerprint(tmp_path)
