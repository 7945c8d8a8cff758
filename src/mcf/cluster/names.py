"""Topologies by what stands on a command line, in a schedule or in a TOML file: text -> shape.

    switch                     every node has one port into a switch
    ring, ring:one-way         a link to the next node and one back, or only the first
    mesh:4x3, torus:4x3        width x height, row by row; without sizes as square as the number of nodes allows
    tree:3                     a complete tree, three children each (2 without a number)
    tree:0-1,0-2               a tree of these links
    graph:0-1,1-2,2>0          any graph: `-` is a link each way, `>` one in this direction
    NAME                       a plug-in of the entry point group `mcf.topologies`

Behind a tilde stand links that are out: `mesh:4x4~5-6`. Ways are then found breadth first, in the same order of
preference.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from mcf.cluster import plugins
from mcf.cluster.shapes import Edge, Graph, Grid, Ring, Shape, Switch, check_tree, tree_links
from mcf.errors import PlugInError, UnknownNameError, UserError

GROUP = "mcf.topologies"
_LINK = re.compile(r"\s*(\d+)\s*([->])\s*(\d+)\s*")
_SIZES = re.compile(r"(\d+)x(\d+)")


@lru_cache(maxsize=512)
def shape_of(spec: str, num_nodes: int) -> Shape:
    """Find the shape that a spec names. Raises UnknownNameError, and UserError for what does not fit `num_nodes`."""
    head, tilde, out = spec.partition("~")
    name, colon, rest = head.partition(":")
    if name in _SHAPES:
        plugins.refuse_known(GROUP, "topology", name)
        shape = _SHAPES[name](rest if colon else None, num_nodes)
    else:
        shape = _plugin(name, num_nodes)
    return _without(shape, read_links(out), num_nodes) if tilde else shape


def read_links(text: str) -> list[Edge]:
    """Read `0-1,1>2`: directed links; raises UserError for anything else."""
    out: list[Edge] = []
    for word in text.split(","):
        match = _LINK.fullmatch(word)
        if match is None:
            raise UserError(f"got {word.strip()!r} as a link: expected for example 0-1 (each way) or 0>1 (one way)")
        a, b = int(match[1]), int(match[3])
        out += [(a, b), (b, a)] if match[2] == "-" else [(a, b)]
    return out


def write_links(links: Iterable[Edge]) -> str:
    """The inverse of `read_links`, in order; a link each way is written once."""
    known = set(links)
    both = {edge for edge in known if edge[::-1] in known}
    once = [(a, b) for a, b in sorted(known) if (a, b) not in both or a < b]
    return ",".join(f"{a}{'-' if (a, b) in both else '>'}{b}" for a, b in once)


def _switch(rest: str | None, num_nodes: int) -> Shape:
    _no_more("switch", rest)
    return Switch(num_nodes)


def _ring(rest: str | None, num_nodes: int) -> Shape:
    if rest not in (None, "one-way", "two-way"):
        raise UserError(f"got topology 'ring:{rest}': expected ring, ring:two-way or ring:one-way")
    return Ring(num_nodes, one_way=rest == "one-way")


def _grid(name: str, rest: str | None, num_nodes: int) -> Shape:
    if rest is None:
        width = next(w for w in range(int(num_nodes**0.5), num_nodes + 1) if w and num_nodes % w == 0)
        width = max(width, num_nodes // width)
        return Grid(width, num_nodes // width, wraps=name == "torus")
    match = _SIZES.fullmatch(rest)
    if match is None or not int(match[1]) or not int(match[2]):
        raise UserError(f"got topology '{name}:{rest}': expected {name}:WIDTHxHEIGHT, for example {name}:4x4")
    width, height = int(match[1]), int(match[2])
    if width * height != num_nodes:
        raise UserError(
            f"got a {name} of {width}x{height} for {num_nodes} nodes: expected {width * height} nodes, or other sizes"
        )
    return Grid(width, height, wraps=name == "torus")


def _tree(rest: str | None, num_nodes: int) -> Shape:
    if rest is None or rest.isdigit():
        arity = 2 if rest is None else int(rest)
        if arity < 1:
            raise UserError(f"got topology 'tree:{rest}': expected at least 1 child each")
        return Graph(num_nodes, tree_links(num_nodes, arity))
    links = read_links(rest)
    check_tree(num_nodes, links)
    return Graph(num_nodes, links)


def _graph(rest: str | None, num_nodes: int) -> Shape:
    if not rest and num_nodes > 1:
        raise UserError("got topology 'graph' without links: expected for example graph:0-1,1-2")
    return Graph(num_nodes, read_links(rest) if rest else [])


def _no_more(name: str, rest: str | None) -> None:
    if rest is not None:
        raise UserError(f"got topology '{name}:{rest}': expected {name} alone")


_SHAPES: dict[str, Callable[[str | None, int], Shape]] = {
    "graph": _graph,
    "mesh": lambda rest, num_nodes: _grid("mesh", rest, num_nodes),
    "ring": _ring,
    "switch": _switch,
    "torus": lambda rest, num_nodes: _grid("torus", rest, num_nodes),
    "tree": _tree,
}
NAMES = tuple(_SHAPES)


def _plugin(name: str, num_nodes: int) -> Shape:
    """A topology of somebody else's: a function from the number of nodes to links (from, to)."""
    make = plugins.find(GROUP, "topology", name)
    if make is None:
        raise UnknownNameError("topology", name, (*NAMES, *plugins.names(GROUP)))
    try:
        links = [(int(a), int(b)) for a, b in make(num_nodes)]
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise PlugInError(
            f"topology plug-in {name!r} failed for {num_nodes} nodes ({type(error).__name__}: {error}): expected pairs "
            "(from, to)"
        ) from error
    try:
        return Graph(num_nodes, links)
    except UserError as error:
        raise PlugInError(f"topology plug-in {name!r}: {error}") from None


def _without(shape: Shape, out: list[Edge], num_nodes: int) -> Shape:
    for a, b in out:
        if not (0 <= a < num_nodes and 0 <= b < num_nodes and a != b and shape.has_link(a, b)):
            raise UserError(f"got link {a}>{b} as one that is out: expected a link of the topology")
    gone = set(out)
    links = ((a, b) for a in range(num_nodes) for b in shape.neighbours(a, 0) if (a, b) not in gone)
    return Graph(num_nodes, links, order=shape.neighbours, num_trees=shape.num_trees, walk=shape.walk())
