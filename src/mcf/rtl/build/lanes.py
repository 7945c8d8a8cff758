"""The C++ of a module, rewritten so that several instances run side by side, each in a lane of the machine's vectors.

CXXRTL writes one evaluation as assignments in the order in which they depend on each other, then what registers and
memories take at the edge. Here choices become selections of both sides (`pick`), an access to a memory becomes one
call, and memories are written last; `mesh/lanes.h` and `mesh/cells.h` give the rest its meaning. Code of any other
form is refused; it runs as CXXRTL wrote it, one instance at a time.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_CELLS = frozenset(
    """not_u not_s neg_u neg_s logic_not logic_and logic_or reduce_or reduce_bool reduce_and and_uu or_uu xor_uu and_ss
    or_ss xor_ss eq_uu eq_ss ne_uu ne_ss lt_uu lt_ss ge_uu ge_ss gt_uu gt_ss le_uu le_ss add_uu add_ss sub_uu sub_ss
    mul_uu mul_ss shr_uu shift_uu shiftx_uu sshr_su""".split()
)  # of cells.h
_METHODS = frozenset(("slice", "concat", "repeat", "val", "read", "update"))
_CLOCK = frozenset(("p_clk", "prev_p_clk", "p_rst"))
_MEMBER = re.compile(r"^\t(?:/\*(?:in|out)put\*/ )?(value|wire)<(\d+)> (\w+);$", re.MULTILINE)
_OUTPUT = re.compile(r"/\*output\*/ \w+<\d+> (\w+);")
_MEMORY = re.compile(r"^\tmemory<(\d+)> (\w+) \{ (\d+)u \};$", re.MULTILINE)
_RESET = re.compile(r"^\t(\w+) = wire<(\d+)>(\{.*\});$", re.MULTILINE)
_CONTENTS = re.compile(
    r"^\tstatic const value<(\d+)> (\w+)\[\d+\] \{\n(.*?)^\t\};\n\tstd::copy\([^\n]*, &(\w+)\.data\[0\]\);$",
    re.MULTILINE | re.DOTALL,
)
_EVAL = "bool p_top::eval(performer *performer) {"
_LEFT_OUT = ("//", "CXXRTL_ASSERT(", "bool converged = true;", "bool posedge_p_clk =", "return converged;")
_READ = re.compile(
    r"if ?\((tmp_\d+)\.valid\) \{\n"
    r"(?:value<\d+> (?P<held>tmp_\d+) = (?P<a>memory_\w+)\[\1\.index\];\n(?P<x>.+) = (?P=held);|(?P<y>.+) = (?P<b>memory_\w+)\[\1\.index\];)\n"
    r"\} else \{\n.+ = value<\d+> \{\};\n\}"
)
_ENABLED = re.compile(r"if ?\((?!tmp_\d+\.valid\)|posedge_p_clk\))(.*)\) \{\n(\w+)\.next = (memory_\w+\.read\(tmp_\d+\));\n\}")
_WRITE = re.compile(r"if ?\((tmp_\d+)\.valid\) \{\n(memory_\w+)\.update\(\1\.index, (.*), (\d+)\);\n\}")
_EDGE = re.compile(r"if ?\(posedge_p_clk\) \{\n((?:[^{}\n][^\n]*\n)*)\}\n")
_LOCAL = re.compile(r"^value<(\d+)> (\w+);$", re.MULTILINE)
_INDEX = re.compile(r"^auto (tmp_\d+) = memory_index\((.*), 0, \d+\);$", re.MULTILINE)
_STATEMENT = re.compile(r"(.+?) = (.+);")
_TARGET = re.compile(r"value<(\d+)>\(\)|(\w+)(\.next)?(?:\.slice<([\d,]+)>\(\))?")
_CALL = re.compile(r"(?<![.\w])([a-z]\w*)<[\d,]*>\(|\.(\w+)(?:<[\d,]*>)?\(")
_NAME = re.compile(r"\b[a-z_]\w*\b")


class UnknownFormError(Exception):
    """Generated code that is not rewritten."""


@dataclass(frozen=True, kw_only=True)
class _Logic:
    """A statement: the names that it assigns, and itself; `plain` assigns all of one name."""

    names: list[str]
    text: str
    plain: bool


def lanes_text(code: str, header: str) -> str:
    """Return `struct Top` in C++ for the two files that `write_cxxrtl` made. Raises UnknownFormError."""
    members = [(kind, width, name) for kind, width, name in _MEMBER.findall(header) if name not in _CLOCK]
    wires = {name: width for kind, width, name in members if kind == "wire"}
    ports = {name: width for kind, width, name in members if kind == "value"}
    reset, _, body = code.partition(_EVAL)
    local, logic, edge, written = _statements(body)
    memories = [(name, width, depth, name in written) for width, name, depth in _MEMORY.findall(header)]
    return _TEMPLATE.format(
        wires=_lines(f"value<{width}> {name};" for name, width in wires.items()),
        ports=_lines(f"value<{width}> {name};" for name, width in ports.items()),
        seen=_lines(f"value<{wires[name]}> &{name} = curr.{name};" for name in _OUTPUT.findall(header) if name in wires),
        memories=_lines(f"memory<{w}, {depth}, {str(not own).lower()}> {name};" for name, w, depth, own in memories),
        reset=_lines(_reset(reset)),
        edge=_lines([*_needed(logic, local, set(_NAME.findall(" ".join(edge)))), *edge]),
        outputs=_lines(_needed(logic, local, set(ports))),
    )


def _lines(lines: Iterable[str]) -> str:
    return "\n    ".join(lines)


def _reset(text: str) -> Iterator[str]:
    for name, width, init in _RESET.findall(text):
        yield f"curr.{name} = next.{name} = value<{width}>{init};"
    for width, name, rows, memory in _CONTENTS.findall(text):
        if re.search(r"[{,]0x0*[1-9a-f]", rows):
            yield f"static const word<{width}> {name}[] = {{{rows.replace('value<', 'word<')}}};\n    {memory}.fill({name});"


def _statements(body: str) -> tuple[dict[str, str], list[_Logic], list[str], set[str]]:
    """Widths of local names, logic, what stands at the edge, and the memories that are written."""
    lines = [line.strip() for line in body.partition("\n}\n")[0].splitlines()]
    text = "".join(f"{line}\n" for line in lines if line and not line.startswith(_LEFT_OUT))
    if "converged" in text:
        raise UnknownFormError("logic that feeds back into itself")
    text = _READ.sub(lambda at: f"{at['x'] or at['y']} = {at['a'] or at['b']}.read({at[1]});", text)
    text = _ENABLED.sub(r"\2.next = (\1 ? \3 : \2.curr);", text)
    writes = sorted(_WRITE.findall(text), key=lambda write: int(write[3]))
    text = _EDGE.sub(r"\1", _WRITE.sub("", text).replace("{\n\n", "{\n").replace("\n\n}", "\n}"))
    local = {name: width for width, name in _LOCAL.findall(text)}
    text = _INDEX.sub(r"const auto \1 = \2;", _LOCAL.sub("", text))
    logic, edge = [], []
    for line in filter(None, text.splitlines()):
        if (found := _STATEMENT.fullmatch(line)) is None:
            raise UnknownFormError(line)
        names, at_edge, statement = _assigned(found[1], _expression(found[2]))
        if at_edge:
            edge.append(statement)
        else:
            logic.append(_Logic(names=names, text=statement, plain=not statement.startswith(("spread(", "part<"))))
    edge += [f"changed |= {m}.write({at}, {_expression(what)}, awake);" for at, m, what, _ in writes]
    return local, logic, edge, {memory for _, memory, _, _ in writes}


def _assigned(target: str, value: str) -> tuple[list[str], bool, str]:
    """The names that an assignment sets, whether those are registers, and the assignment."""
    if target.startswith("const auto "):
        return [target.removeprefix("const auto ")], False, f"{target} = {value};"
    first, *rest = target.split(".concat(")
    parts = [_TARGET.fullmatch(part) for part in (first, *(part.removesuffix(")") for part in rest))]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        raise UnknownFormError(target)
    places = [f"skip<{part[1]}>()" if part[1] else _place(part) for part in found]
    names = [part[2] for part in found if part[2]]
    statement = f"spread({value}, {', '.join(places[::-1])});" if rest else f"{places[0]} = {value};"
    return names, any(part[3] for part in found), statement


def _place(target: re.Match[str]) -> str:
    name = f"next.{target[2]}" if target[3] else target[2]
    return f"part<{target[4]}>({name})" if target[4] else name


def _expression(text: str) -> str:
    """Choices as selections; registers by the place that holds them. Raises UnknownFormError for cells of other kinds."""
    for cell, method in _CALL.findall(text):
        if not (cell in _CELLS or cell == "value" or method in _METHODS):
            raise UnknownFormError(f"{cell or method} in {text}")
    out: list[str] = []
    opened: list[int] = []  # where the parentheses around this place stand
    for part in re.split(r"(\(|\)| \? | : )", text.replace(".val()", "")):
        if part == " ? ":
            out[opened[-1]] = "pick("
        if part == "(":
            opened.append(len(out))
        elif part == ")":
            opened.pop()
        out.append(", " if part in (" ? ", " : ") else part)
    return re.sub(r"(\w+)\.(curr|next)\b", r"\2.\1", "".join(out))


def _needed(logic: list[_Logic], local: dict[str, str], needed: set[str]) -> list[str]:
    """What the needed names depend on, as C++, with the local names that it wants."""
    loose = {name for statement in logic if not statement.plain for name in statement.names}
    out: list[str] = []
    made: set[str] = set()
    for statement in reversed(logic):
        if needed.isdisjoint(statement.names):
            continue
        needed = needed | set(_NAME.findall(statement.text))
        name = statement.names[0]
        own = statement.plain and name in local and name not in loose
        made |= {name} if own else set()
        out.append(f"const value<{local[name]}> {statement.text}" if own else statement.text)
    return [*(f"value<{local[name]}> {name};" for name in sorted(needed & set(local) - made)), *out[::-1]]


_TEMPLATE = """// Generated by mcf.rtl.build.lanes.
#include "cells.h"

namespace {{  // modules are loaded beside each other: none may take another's tables for its own

struct Registers {{
    {wires}
}};

struct Top {{
    static constexpr Never p_rst{{}};
    Registers curr, next;
    {ports}
    {seen}
    {memories}

    Top() {{
    {reset}
    }}

    uint32_t edge(uint32_t awake) {{
    uint32_t changed = 0;
    {edge}
    return changed | commit(curr, next, awake);
    }}

    void outputs() {{
    {outputs}
    }}
}};

}}
"""
