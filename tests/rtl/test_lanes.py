"""Instances side by side in the lanes of vectors: each does what it would do alone, whatever the others do."""

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")


from mcf.rtl.build.cxxrtl import compile_module, missing_compiler
from mcf.rtl.build.lanes import UnknownFormError, lanes_text
from rtl_mesh import Cross, Plan, beats, in_cxxrtl

needs_compiler = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))
MOST_LANES = 16
MANY = 19


def crowd(apart: int) -> Plan:
    """Instances that start, stall and stop at different times, `apart` from each other: between them nobody works."""
    loads = {node: beats(7 * node, node) for node in range(MANY) if node % 5}
    return Plan(
        num_instances=MANY * apart,
        links=[],
        sources=[((node * apart, f"inputs__{node % 2}"), node % 4 / 5, load) for node, load in loads.items()],
        sinks=[((node * apart, f"outputs__{1 - node % 2}"), node % 3 / 3) for node in range(MANY)],
    )


@needs_compiler
def test_an_instance_does_beside_others_what_it_does_alone() -> None:
    """Beat by beat; a lane that moved, or slept on, because of another differs."""
    library = compile_module(Cross(), name="cross")
    beside, alone = (in_cxxrtl(library, crowd(apart), 900) for apart in (1, MOST_LANES))
    assert beside == alone
    assert [len(taken) for taken in beside] == [7 * node if node % 5 else 0 for node in range(MANY)]


HEADER = "\twire<4> p_x;\n\t/*output*/ value<4> p_y;\n\tmemory<8> memory_p_m { 16u };\n"


def code(*lines: str) -> str:
    body = "".join(f"\t{line}\n" for line in ("bool converged = true;", *lines, "return converged;"))
    return f"bool p_top::eval(performer *performer) {{\n{body}}}\n\n}} // namespace\n"


def test_what_no_output_needs_is_not_evaluated_for_outputs() -> None:
    text = lanes_text(
        code(
            "value<4> i_a;",
            "value<4> i_b;",
            "i_a = add_uu<4>(p_x.curr, value<1>{0x1u});",
            "i_b = (reduce_or<1>(i_a) ? i_a : p_x.curr.slice<3,0>().val());",
            "p_y = i_a;",
            "if (posedge_p_clk) {",
            "\tp_x.next = (p_rst ? value<4>{0u} : i_b);",
            "}",
        ),
        HEADER,
    )
    edge, _, outputs = text.partition("void outputs()")
    assert "const value<4> i_b = pick(reduce_or<1>(i_a), i_a, curr.p_x.slice<3,0>());" in edge
    assert "next.p_x = pick(p_rst, value<4>{0u}, i_b);" in edge
    assert "i_b" not in outputs
    assert "p_y = i_a;" in outputs


@pytest.mark.parametrize(
    "line",
    [
        "converged = false;",  # feeds back into itself
        "p_y = divfloor_uu<4>(p_x.curr, p_x.curr);",
        "p_y = p_x.curr.bmux<4>(p_x.curr).val();",
        "if (negedge_p_clk) {",
        "performer->print(p_y);",
    ],
)
def test_code_of_another_form_is_left_as_it_is(line: str) -> None:
    with pytest.raises(UnknownFormError):
        lanes_text(code(line), HEADER)
