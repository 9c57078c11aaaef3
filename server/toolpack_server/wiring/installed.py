"""Which features the server has: those that installed distributions name, less what `TOOLPACK_FEATURES` leaves out.

The server's own features come by the same way as anybody else's, the entry points of a distribution, and
nothing else lists them.
"""

import os
import re
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from toolpack_server.base.errors import SettingsError, StartError
from toolpack_server.base.settings import PREFIX, split_list
from toolpack_server.wiring.feature import Feature

GROUP = "toolpack_server.features"
"""The group of entry points by which a distribution names its features."""

VARIABLE = f"{PREFIX}FEATURES"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def installed_features() -> dict[str, EntryPoint]:
    """Get the entry points of all installed features, by name, in the order of their names.

    Raises:
        StartError: Two distributions name one alike, or not even the server's own are named.
    """
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise StartError(
                f"{origin(other)} and {origin(point)} both have a feature {point.name!r}: uninstall one of them."
            )
    if not found:
        raise StartError("No features are installed, not even the server's own: install toolpack-server anew.")
    return found


def origin(point: EntryPoint) -> str:
    """Say which distribution an entry point belongs to."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value


def load_features(chosen: Sequence[str] | None = None) -> list[type[Feature]]:
    """Import the features that are installed, in the order in which they add to the server.

    Args:
        chosen: `-NAME` leaves one out, `+NAME` says that one must be there; default: what `TOOLPACK_FEATURES` says.

    Raises:
        StartError: A feature can't be imported, or can't be used.
    """
    points = installed_features()
    for each in split_list(os.environ.get(VARIABLE, ""), ",") if chosen is None else chosen:
        sign, name = each[:1], each[1:]
        if sign not in {"+", "-"} or not name:
            raise SettingsError(
                f"{VARIABLE}: {each!r} isn't of the form -NAME, which leaves a feature out, or +NAME, which says that "
                "it must be there."
            )
        if name not in points:
            raise SettingsError(
                f"{VARIABLE}: no feature {name!r} is installed; `toolpack-server features` lists those that are."
            )
        if sign == "-":
            points[name] = _LEFT_OUT
    return in_order([_imported(point) for point in points.values() if point is not _LEFT_OUT])


_LEFT_OUT = EntryPoint("", "", GROUP)


def _imported(point: EntryPoint) -> type[Feature]:
    remedy = f"correct or uninstall it, or leave it out by {VARIABLE}=-{point.name}"
    try:
        feature = point.load()
    except Exception as error:
        raise StartError(
            f"The feature {point.name!r} of {origin(point)} can't be imported ({type(error).__name__}: {error}): "
            f"{remedy}."
        ) from error
    if not (isinstance(feature, type) and issubclass(feature, Feature)):
        raise StartError(f"The feature {point.name!r} of {origin(point)} is no subclass of `Feature`: {remedy}.")
    if getattr(feature, "name", None) != point.name:
        raise StartError(
            f"The feature {point.name!r} of {origin(point)} calls itself {getattr(feature, 'name', None)!r}: name both "
            f"alike, or leave it out by {VARIABLE}=-{point.name}."
        )
    return feature


_MAPPINGS = ("routes", "cookies", "isolations", "stores", "views")
_SHARED = {"record_kinds"}  # one may take another's place: see `service.all_record_kinds`
_SINGLE = ("named_addresses", "tracer")  # of which a server has one


def in_order(features: Iterable[type[Feature]]) -> list[type[Feature]]:
    """Check features, and get them in the order in which they add to the server.

    Raises:
        StartError: One needs another that isn't there, two wait for each other or add the same thing, or one says what
            no feature can add.
    """
    by_name = {feature.name: feature for feature in features}
    owners: dict[tuple[str, str], str] = {}
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for name, feature in sorted(by_name.items()):
        _check(feature)
        for kind, key in ((kind, key) for kind, keys in _added(feature).items() if kind not in _SHARED for key in keys):
            other = owners.setdefault((kind, key), name)
            if other != name:
                raise StartError(
                    f"The features {other!r} and {name!r} both add {key!r} to {kind}: leave one of them out by "
                    f"{VARIABLE}=-{name}."
                )
        for kind in _SINGLE:
            other = name if getattr(feature, kind) is None else owners.setdefault((kind, ""), name)
            if other != name:
                raise StartError(
                    f"The features {other!r} and {name!r} both have {kind}, of which a server has one: leave one "
                    f"of them out by {VARIABLE}=-{name}."
                )
        missing = [each for each in feature.needs if each not in by_name]
        if missing:
            raise StartError(
                f"The feature {name!r} needs the feature {missing[0]!r}, which isn't there: install it, or leave out "
                f"{name!r}, too, by {VARIABLE}=-{name}."
            )
        sorter.add(name, *(each for each in (*feature.needs, *feature.after) if each in by_name))
    try:
        return [by_name[name] for name in sorter.static_order()]
    except CycleError as error:
        circle = " after ".join(reversed(error.args[1]))
        raise StartError(f"Features can't be put in an order, as each is to come after another: {circle}.") from None


def _check(feature: type[Feature]) -> None:
    declared = {name for name in (*dir(Feature), *Feature.__annotations__) if not name.startswith("_")}
    for name in sorted({name for name in dir(feature) if not name.startswith("__")} - declared):
        raise StartError(
            f"The feature {feature.__qualname__} has an attribute {name!r}, which `Feature` doesn't declare: use one "
            f"of {', '.join(sorted(declared))}."
        )
    if not _NAME.fullmatch(feature.name):
        raise StartError(f"The feature {feature.name!r} needs another name: a word of lower-case letters.")
    for attribute, classes in (("name", feature.record_kinds), ("kind", feature.volumes)):
        for each in classes:
            if not getattr(each, attribute, ""):
                raise StartError(f"{each.__qualname__} of the feature {feature.name!r} needs a `{attribute}`: a word.")


def described(features: Iterable[type[Feature]]) -> list[dict[str, Any]]:
    """Say of each feature where it comes from and what it adds, as the OpenRPC document and `features` have it."""
    points = installed_features()
    return [_described(feature, points.get(feature.name)) for feature in features]


def _added(feature: type[Feature]) -> dict[str, list[str]]:
    """Get the names of what a feature adds, by the attributes that say so."""
    return {
        "methods": [*dict.fromkeys(method.declared.name for method in feature.methods)],
        "parameters": [
            f"{method.declared.name}({name})"
            for method, more in feature.parameters.items()
            for name in more.model_fields
            if name not in method.model_fields
        ],
        "results": [
            f"{kind.__name__}.{name}" for kind, more in feature.results.items() for name in more.__annotations__
        ],
        "record_kinds": [kind.name for kind in feature.record_kinds],
        "volumes": [volume.kind for volume in feature.volumes],
        **{kind: [*getattr(feature, kind)] for kind in _MAPPINGS},
        "settings": [*feature_variables([feature])],
    }


def _described(feature: type[Feature], point: EntryPoint | None) -> dict[str, Any]:
    distribution = point.dist if point is not None else None
    return {
        "name": feature.name,
        "distribution": distribution and distribution.name,
        "version": distribution and distribution.version,
        **{kind: names for kind, names in _added(feature).items() if names},
    }


def feature_variables(features: Iterable[type[Feature]] | None = None) -> dict[str, tuple[str, str]]:
    """Get the environment variables of features, those that are installed by default, as `Settings.described` does."""
    kinds = [feature.settings for feature in (load_features() if features is None else features)]
    return {name: texts for kind in kinds if kind is not None for name, texts in kind.described().items()}
