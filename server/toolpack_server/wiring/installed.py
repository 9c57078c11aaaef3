"""Discovery, selection and order of the installed features.

Distributions register features as entry points. The server's own features use the same mechanism and are listed nowhere
else. `TOOLPACK_FEATURES` excludes features.
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
"""Entry point group for distributions' features."""

VARIABLE = f"{PREFIX}FEATURES"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def installed_features() -> dict[str, EntryPoint]:
    """Return the entry points of all installed features by name, sorted by name.

    Raises:
        StartError: Two distributions register features of the same name, or no feature is installed.
    """
    points: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        other = points.setdefault(point.name, point)
        if other.value != point.value:
            raise StartError(
                f"{origin(other)} and {origin(point)} both have a feature {point.name!r}: uninstall one of them."
            )
    if not points:
        raise StartError("No features are installed, not even the server's own: reinstall toolpack-server.")
    return points


def origin(point: EntryPoint) -> str:
    """Return the distribution of an entry point and its version, or the import path if there is no distribution."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value


def load_features(chosen: Sequence[str] | None = None) -> list[type[Feature]]:
    """Import the installed features, and return them in loading order.

    Args:
        chosen: `-NAME` excludes a feature, `+NAME` requires one. Default: the value of `TOOLPACK_FEATURES`.

    Raises:
        StartError: A feature can't be imported or used.
    """
    points = installed_features()
    for choice in split_list(os.environ.get(VARIABLE, ""), ",") if chosen is None else chosen:
        sign, name = choice[:1], choice[1:]
        if sign not in {"+", "-"} or not name:
            raise SettingsError(
                f"{VARIABLE}: {choice!r} must have the form -NAME, which excludes a feature, or +NAME, which requires "
                "one."
            )
        if name not in points:
            raise SettingsError(
                f"{VARIABLE}: no feature {name!r} is installed; `toolpack-server features` lists the installed ones."
            )
        if sign == "-":
            points[name] = _EXCLUDED
    return in_order([_import(point) for point in points.values() if point is not _EXCLUDED])


_EXCLUDED = EntryPoint("", "", GROUP)  # stands for an excluded feature, so that its name remains known


def _import(point: EntryPoint) -> type[Feature]:
    """Import a feature.

    Raises:
        StartError: The import fails, or the object isn't a feature with the name of its entry point.
    """
    remedy = f"correct or uninstall it, or exclude it with {VARIABLE}=-{point.name}"
    try:
        feature = point.load()
    except Exception as error:
        raise StartError(
            f"The feature {point.name!r} of {origin(point)} can't be imported ({type(error).__name__}: {error}): "
            f"{remedy}."
        ) from error
    if not (isinstance(feature, type) and issubclass(feature, Feature)):
        raise StartError(f"The feature {point.name!r} of {origin(point)} isn't a subclass of `Feature`: {remedy}.")
    if getattr(feature, "name", None) != point.name:
        raise StartError(
            f"The entry point {point.name!r} of {origin(point)} has a feature named "
            f"{getattr(feature, 'name', None)!r}: give both the same name, or exclude it with {VARIABLE}=-{point.name}."
        )
    return feature


_MAPPINGS = ("routes", "cookies", "isolations", "stores", "views")
_REPLACEABLE = {"record_kinds"}  # two features can add the same kind: see `service.all_record_kinds`
_SINGLE = ("named_addresses", "tracer")  # only one feature can declare these


def in_order(features: Iterable[type[Feature]]) -> list[type[Feature]]:
    """Check features, and return them in loading order.

    Raises:
        StartError: A required feature is missing, features wait for each other, two features add the same thing, or
            a feature has an invalid declaration.
    """
    by_name = {feature.name: feature for feature in features}
    owners: dict[tuple[str, str], str] = {}  # the feature that adds something, by attribute and name of the addition
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for name, feature in sorted(by_name.items()):
        _check(feature)
        additions = ((kind, keys) for kind, keys in _additions(feature).items() if kind not in _REPLACEABLE)
        for kind, key in ((kind, key) for kind, keys in additions for key in keys):
            other = owners.setdefault((kind, key), name)
            is_same_route = kind == "routes" and by_name[other].routes[key] == feature.routes[key]
            if other != name and not is_same_route:
                raise StartError(
                    f"The features {other!r} and {name!r} both add {key!r} to {kind}: exclude one of them, for example "
                    f"with {VARIABLE}=-{name}."
                )
        for kind in _SINGLE:
            other = name if getattr(feature, kind) is None else owners.setdefault((kind, ""), name)
            if other != name:
                raise StartError(
                    f"The features {other!r} and {name!r} both have {kind}, but a server can have only one: exclude "
                    f"one of them, for example with {VARIABLE}=-{name}."
                )
        missing = [each for each in feature.needs if each not in by_name]
        if missing:
            raise StartError(
                f"The feature {name!r} needs the feature {missing[0]!r}, which is missing: install it, or exclude "
                f"{name!r}, too, with {VARIABLE}=-{name}."
            )
        sorter.add(name, *(each for each in (*feature.needs, *feature.after) if each in by_name))
    try:
        return [by_name[name] for name in sorter.static_order()]
    except CycleError as error:
        cycle = " after ".join(reversed(error.args[1]))
        raise StartError(
            f"The features have no loading order, because each must come after another: {cycle}."
        ) from None


def _check(feature: type[Feature]) -> None:
    """Check a feature's declaration.

    Raises:
        StartError: An attribute is unknown, a name is invalid, or a record kind or volume has no name.
    """
    declared = {name for name in (*dir(Feature), *Feature.__annotations__) if not name.startswith("_")}
    for name in sorted({name for name in dir(feature) if not name.startswith("__")} - declared):
        raise StartError(
            f"The feature {feature.__qualname__} has an attribute {name!r}, which `Feature` doesn't declare. Its "
            f"attributes are {', '.join(sorted(declared))}."
        )
    if not _NAME.fullmatch(feature.name):
        raise StartError(
            f"The name of the feature {feature.name!r} is invalid: use lower-case letters, digits and underscores, "
            "beginning with a letter."
        )
    for attribute, classes in (("name", feature.record_kinds), ("kind", feature.volumes)):
        for cls in classes:
            if not getattr(cls, attribute, ""):
                raise StartError(f"{cls.__qualname__} of the feature {feature.name!r} needs a `{attribute}`: a word.")


def describe_features(features: Iterable[type[Feature]]) -> list[dict[str, Any]]:
    """Return each feature's distribution and additions, for the OpenRPC document and the command `features`."""
    points = installed_features()
    return [_describe(feature, points.get(feature.name)) for feature in features]


def _additions(feature: type[Feature]) -> dict[str, list[str]]:
    """Return the names of the things that a feature adds, by attribute of `Feature`."""
    return {
        "methods": [*dict.fromkeys(method.declared.name for method in feature.methods)],
        "parameters": [
            f"{method.declared.name}({name})"
            for method, parameters in feature.parameters.items()
            for name in parameters.model_fields
            if name not in method.model_fields
        ],
        "results": [
            f"{kind.__name__}.{name}" for kind, members in feature.results.items() for name in members.__annotations__
        ],
        "record_kinds": [kind.name for kind in feature.record_kinds],
        "volumes": [volume.kind for volume in feature.volumes],
        **{kind: [*getattr(feature, kind)] for kind in _MAPPINGS},
        "settings": [*feature_variables([feature])],
    }


def _describe(feature: type[Feature], point: EntryPoint | None) -> dict[str, Any]:
    """Return a feature's name, distribution and additions. Without an entry point, the distribution is null."""
    distribution = point.dist if point is not None else None
    return {
        "name": feature.name,
        "distribution": distribution and distribution.name,
        "version": distribution and distribution.version,
        **{kind: names for kind, names in _additions(feature).items() if names},
    }


def feature_variables(features: Iterable[type[Feature]] | None = None) -> dict[str, tuple[str, str]]:
    """Return the environment variables of features, in the form of `Settings.described`.

    Args:
        features: Features to describe. Default: the installed features.
    """
    kinds = [feature.settings for feature in (load_features() if features is None else features)]
    return {name: texts for kind in kinds if kind is not None for name, texts in kind.described().items()}
