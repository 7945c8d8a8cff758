"""Plug-ins: what other packages offer under an entry point group, found by name and loaded when it is first used."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from mcf.errors import PlugInError


def names(group: str) -> tuple[str, ...]:
    """Names that installed packages offer in a group."""
    return tuple(sorted({point.name for point in entry_points(group=group)}))


def refuse_known(group: str, what: str, name: str) -> None:
    """Refuse a name of ours that an installed package claims too: nobody could tell which of the two has run.

    Raises PlugInError with the package.
    """
    for point in entry_points(group=group, name=name):
        raise PlugInError(
            f"{what} plug-in {name!r} of {_package(point)} has the name of a {what} of MCF: expected another name; "
            "rename it there, or uninstall the package"
        )


def find(group: str, what: str, name: str) -> Any | None:
    """Load the callable of a name, or None where no package offers it.

    Raises PlugInError, with the plug-in's name, when it cannot be imported, is no callable, or two packages claim the
    name.
    """
    points = list(dict.fromkeys(entry_points(group=group, name=name)))
    if not points:
        return None
    if len({point.value for point in points}) > 1:
        claims = " and ".join(sorted(f"{_package(point)} ({point.value})" for point in points))
        raise PlugInError(f"{what} plug-in {name!r} is claimed by {claims}: expected one; uninstall the other")
    return _load(points[0], what)


def _load(point: EntryPoint, what: str) -> Any:
    try:
        found = point.load()
    except (Exception, SystemExit) as error:  # whatever the module does when it is imported
        first = (str(error).splitlines() or [""])[0]
        raise PlugInError(
            f"{what} plug-in {point.name!r} of {_package(point)} cannot be loaded from {point.value!r} "
            f"({type(error).__name__}: {first}): repair or uninstall the package"
        ) from error
    if not callable(found):
        raise PlugInError(
            f"{what} plug-in {point.name!r} of {_package(point)} is {type(found).__name__} {point.value!r}: expected a "
            "function"
        )
    return found


def _package(point: EntryPoint) -> str:
    return f"package {point.dist.name}" if point.dist is not None else "some package"
