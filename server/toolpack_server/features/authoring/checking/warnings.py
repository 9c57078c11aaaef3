"""Notes on likely mistakes in valid toolpacks.

The checks read each toolpack's definition, and build its initial environment twice. A note points to code that might be
intentional, so notes don't keep a server from starting.
"""

import inspect
import re
from collections.abc import Iterable
from contextvars import Context
from typing import Any

from pydantic import BaseModel, ValidationError

from toolpack_server.base.errors import InvalidParamsError
from toolpack_server.functions.docstrings import hidden_sections
from toolpack_server.functions_runtime import Function
from toolpack_server.packs.checks import BUILD_SECONDS, requires
from toolpack_server.packs.import_timeout import TimeLimitExceeded, time_limit
from toolpack_server.packs.lazy_obstacles import lazy_obstacle
from toolpack_server.packs.names import without_dots
from toolpack_server.packs.registration import location_of
from toolpack_server.packs.toolpack import Toolpack
from toolpack_server.snapshots.comparison import difference
from toolpack_server.snapshots.graph import holders

MAX_RECORDS = 10_000  # a larger container in an environment causes a note
MANY_RECORDS = 1_000  # environments with a container of at least this size should be loaded lazily
MAX_NAME = 64  # max length of a function's name that all model providers accept
PORTABLE_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_NAME}}}")


def notes_on(packs: Iterable[Toolpack]) -> list[str]:
    """Return notes on toolpacks. Errors in these toolpacks must have been excluded before."""
    return [note for pack in packs for note in [*_environment_notes(pack), *_function_notes(pack)]]


def _environment_notes(pack: Toolpack) -> list[str]:
    """Return notes on an initial environment: fields of the wrong type, values that change each time, and its size."""
    if requires(pack.options):
        return []
    try:
        with time_limit(BUILD_SECONDS, "building the initial environment"):
            first, second = Context().run(pack.build, {}), Context().run(pack.build, {})
    except (InvalidParamsError, TimeLimitExceeded):
        return []
    notes = []
    for name, value in first.__dict__.items():
        try:
            type(first).__pydantic_validator__.validate_assignment(first.model_copy(), name, value)
        except ValidationError as error:
            what = error.errors(include_url=False)[0]["msg"]
            notes.append(
                f"{location_of(pack.source)}: the field `{name}` starts with a value that doesn't fit its type "
                f"({what}): correct one of the two."
            )
        except Exception:  # noqa: BLE001, S112 - an author's validator can raise any exception
            continue
    changing = difference(first, second)
    if changing:
        notes.append(
            f"{location_of(pack.factory)}: two initial environments from the same options differ ({changing}): use a "
            "random.Random with a seed and fixed times, so that sessions start alike."
        )
    return notes + _size_notes(pack, first)


def _size_notes(pack: Toolpack, environment: BaseModel) -> list[str]:
    """Return a note if an environment is so large that each call is slow, but the author can make calls faster."""
    largest = max((len(held) for held in holders(environment) if type(held) in (dict, list)), default=0)
    if largest > MAX_RECORDS:
        text = (
            f"{location_of(pack.source)}: a container of the environment has {largest} items: keep them in a Database"
        )
        return [f"{text}, so that a call doesn't open all of them."]
    obstacle = lazy_obstacle(pack) if pack.lazy and largest >= MANY_RECORDS else None
    if obstacle is None:
        return []
    return [f"{obstacle}: so the environment can't be loaded lazily, and each call reads and writes all of it."]


def _function_notes(pack: Toolpack) -> list[str]:
    """Return notes on functions that agents can't call, and on parts of functions that agents don't see."""
    notes = [] if pack.functions else [f"{pack.location}: it has no function: register some with @toolpack.function."]
    notes += _section_notes(pack)
    for function in pack.functions.values():
        where, qualified = location_of(function.function), without_dots(f"{pack.name}.{function.name}")
        if not PORTABLE_NAME.fullmatch(function.name):
            notes.append(
                f"{where}: agents of several providers can't call a function with this name: use at most 64 of the "
                "characters A-Z, a-z, 0-9, `_` and `-`."
            )
        elif len(qualified) > MAX_NAME:
            notes.append(
                f"{where}: beside a toolpack with a function of the same name it is called `{qualified}`, which has "
                f"{len(qualified)} characters, and agents of several providers can call at most {MAX_NAME}: use a "
                "shorter name."
            )
        if not pack.holds_instances:
            notes += [
                f"{where}: agents don't see its optional parameter `{name}`, which has no description: describe it, or "
                "let its name begin with `_`."
                for name in _hidden_parameters(function.function)
            ]
    return notes


def _section_notes(pack: Toolpack) -> list[str]:
    """Return a note on sections of docstrings that agents don't see. Return no note if agents see all sections."""
    hidden = {each.name: hidden_sections(each.function.full_docstring) for each in pack.functions.values()}
    named = [name for name, sections in hidden.items() if sections]
    if not named:
        return []
    sections = ", ".join(sorted({section for names in hidden.values() for section in names}))
    where, others = (
        location_of(pack.functions[named[0]].function),
        f" and {len(named) - 1} more" if len(named) > 1 else "",
    )
    advice = "say what they need above the parameters."
    return [f"{where}: agents don't see the sections {sections} of the docstrings of `{named[0]}`{others}: {advice}"]


def _hidden_parameters(function: Any) -> list[str]:
    if not isinstance(function, Function):
        return []
    known = {*function.parameters.model_fields, *function.dependencies}
    return [name for name in inspect.signature(function.run).parameters if name not in known and name[0] != "_"]
