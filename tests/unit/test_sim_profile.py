"""Profiles: presets with a source beside each number; a mistake in a file is one clear line."""

from pathlib import Path

import pytest

from mcf.errors import UnknownNameError, UserError
from mcf.sim import NAMES, load_profile
from mcf.sim.profile import NUMBERS, parse_profile

GOOD = 'name = "mine"\nphysical = true\n' + "".join(f'[{key}]\nvalue = 2.0\nsource = "mine"\n' for key in NUMBERS)


def test_the_presets() -> None:
    assert NAMES == ("cpu-1g", "cpu-50m", "gpu-100g", "gpu-10g", "kr260-physical", "paper16k-fitted")


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_a_preset_has_a_source(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert set(profile.sources) == set(NUMBERS)
    assert all(source.strip() for source in profile.sources.values())
    assert profile.physical == (name != "paper16k-fitted")


def test_the_board_has_the_published_numbers() -> None:
    board = load_profile("kr260-physical")
    assert (board.flops_s, board.memory_bytes_s, board.memory_bytes) == (100e9, 19.2e9, 4e9)
    assert board.link_bytes_s == 10e9 / 8


def test_the_fitted_profile_says_what_it_is() -> None:
    fitted = load_profile("paper16k-fitted")
    assert "not yet re-fitted with this simulator" in fitted.note
    assert (fitted.flops_s, fitted.link_bytes_s, fitted.link_latency_s) == (22.8e12, 0.6e9, 0.68e-3)


def test_an_unknown_preset_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'gpu-10g'"):
        load_profile("gpu-10gb")


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert load_profile(path).flops_s == 2.0
    with pytest.raises(UserError, match=r"no\.toml.*expected a TOML file"):
        load_profile(tmp_path / "no.toml")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("physical", "phisical", r"unknown key 'phisical' in f\.toml: did you mean 'physical'"),
        (
            "[link_bytes_s]\nvalue",
            "[link_bytes_s]\nvalu",
            r"unknown key 'link_bytes_s\.valu' in f\.toml.*'link_bytes_s\.va",
        ),
        ("[flops_s]", "[flop_s]", r"unknown key 'flop_s' in f\.toml: did you mean 'flops_s'"),
        ("physical = true\n", "", r"missing key 'physical' in f\.toml"),
        ("physical = true", "physical = 1", r"got physical = 1 in f\.toml: expected a bool"),
        ("[flops_s]\nvalue = 2.0", "[flops_s]\nvalue = 0", "flops_s = 0 .*more than 0"),
        ("[flops_s]\nvalue = 2.0", "[flops_s]\nvalue = true", r"flops_s\.value = True"),
        ('[flops_s]\nvalue = 2.0\nsource = "mine"', "[flops_s]\nvalue = 2.0", r"missing key 'flops_s\.source'"),
        ("[link_latency_s]\nvalue = 2.0", "[link_latency_s]\nvalue = -1.0", "link_latency_s = -1.0 .*at least 0"),
        ("[flops_s]\nvalue = 2.0", "[flops_s]\nvalue = inf", "flops_s = inf"),
        ("physical = true", "physical = ", r"cannot read f\.toml as TOML.*line 2"),
    ],
)
def test_a_mistake_is_one_clear_line(old: str, new: str, says: str) -> None:
    assert old in GOOD
    with pytest.raises(UserError, match=says) as caught:
        parse_profile(GOOD.replace(old, new), "f.toml")
    assert "\n" not in str(caught.value)
