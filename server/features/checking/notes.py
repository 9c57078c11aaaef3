"""Notes on toolpacks that can be used, by looking at them and by building their environments.

The rule: a note may be intentional, so it stops no server.
"""

import re
from collections.abc import Iterable
from contextvars import Context

from pydantic import ValidationError

from server.base.errors import InvalidParamsError
from server.packs.checks import BUILD_SECONDS, requires
from server.packs.patience import Impatience, patience
from server.packs.registration import place
from server.packs.toolpack import Toolpack
from server.snapshots.comparison import difference

PORTABLE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def notes_on(packs: Iterable[Toolpack]) -> list[str]:
    """Warn about likely mistakes in toolpacks without problems."""
    return [note for pack in packs for note in [*_of_environment(pack), *_of_functions(pack)]]


def _of_environment(pack: Toolpack) -> list[str]:
    if requires(pack.options):
        return []
    try:
        with patience(BUILD_SECONDS, "the initial environment"):
            first, second = Context().run(pack.build, {}), Context().run(pack.build, {})
    except (InvalidParamsError, Impatience):
        return []
    notes = []
    for name, value in first.__dict__.items():
        try:
            type(first).__pydantic_validator__.validate_assignment(first.model_copy(), name, value)
        except ValidationError as error:
            what = error.errors(include_url=False)[0]["msg"]
            notes.append(
                f"{place(pack.source)}: the field `{name}` starts with a value that doesn't fit its type ({what}): "
                "correct one of the two."
            )
        except Exception:  # noqa: BLE001, S112 - a validator of the author's may raise anything
            continue
    changing = difference(first, second)
    if changing:
        notes.append(
            f"{place(pack.factory)}: two initial environments from the same options differ ({changing}): use a "
            "random.Random with a seed and fixed times, so that sessions start alike."
        )
    return notes


def _of_functions(pack: Toolpack) -> list[str]:
    notes = [] if pack.functions else [f"{pack.place}: it has no function: register some with @toolpack.function."]
    return notes + [
        f"{place(function.function)}: agents of several providers can't call a function with this name: use at most 64 "
        "of the characters A-Z, a-z, 0-9, `_` and `-`."
        for function in pack.functions.values()
        if not PORTABLE_NAME.fullmatch(function.name)
    ]
