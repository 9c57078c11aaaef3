"""Checks of initial environments, which a command makes before any session uses a toolpack.

A check builds the environment, tests it and discards it. `serve` skips slow checks, and checks that find only harmless
problems. `toolpack-server check` makes all checks (`thorough`).
"""

import inspect
import traceback
from contextvars import Context

from pydantic import BaseModel

from toolpack_server.base.errors import InvalidParamsError, RegistrationError, ResultError, SnapshotError
from toolpack_server.jsonio.view import to_json
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.import_timeout import TimeLimitExceeded, time_limit
from toolpack_server.packs.registration import location_of
from toolpack_server.packs.toolpack import Toolpack
from toolpack_server.snapshots.comparison import difference
from toolpack_server.snapshots.pickling import freeze, thaw
from toolpack_server.volumes.volume import Limits, take_out

BUILD_SECONDS = 10.0  # time limit for building one initial environment


def initial_problem(pack: Toolpack, catalog: Catalog, *, thorough: bool = False) -> RegistrationError | None:
    """Build the initial environment, and return the problem if it can't be built or can't be restored exactly.

    Return None if there is no problem. An environment that can't be shown as JSON is a problem only if it holds
    instances of the author's classes, or if the check is `thorough`.
    """
    classes = catalog.classes
    name = f"the initial environment of {pack.name!r}"
    text = f"{location_of(pack.factory)}: {name}"
    if requires(pack.options):
        return None  # the environment can't be built here, because only the creator of a session gives the options
    try:
        with time_limit(BUILD_SECONDS, f"building {name}", "make it faster, or do this in a function"):
            environment = Context().run(pack.build, {})
            for volume in take_out(environment, of_instances=pack.holds_instances).values():
                volume.build(Limits())
        loss = difference(environment, thaw(freeze(environment, classes), classes))
        if thorough or pack.holds_instances:
            to_json(environment, catalog.plain)
    except (InvalidParamsError, SnapshotError) as error:
        reason = " ".join(str(error).partition("For further information visit")[0].split()).rstrip(".")
        text += f" can't be used: {reason}{_raised_at(pack, error)}."
        if isinstance(error, SnapshotError) and error.undeclared:
            text += " Add its class to state_types, or store another value."
        return RegistrationError(text)
    except ResultError as error:
        return RegistrationError(
            f"{text} can be stored but not shown, so get_environment and diff_environment would fail: {error}: keep it "
            "in a private attribute (PrivateAttr), or use another type."
        )
    except TimeLimitExceeded as error:
        return RegistrationError(f"{location_of(pack.factory)}: {error}")
    return RegistrationError(f"{text} can't be stored exactly: {loss}") if loss else None


def _raised_at(pack: Toolpack, error: Exception) -> str:
    """Return the end of a message: the line of the factory that raised. Return "" if another file raised."""
    file = inspect.getsourcefile(pack.factory) if inspect.isfunction(pack.factory) else None
    frames = traceback.extract_tb(error.__cause__.__traceback__) if error.__cause__ else []
    lines = [frame.lineno for frame in frames if frame.filename == file]
    return f", raised at {file}:{lines[-1]}: correct it" if lines else ""


def requires(model: type[BaseModel] | None) -> bool:
    """Return whether a model of arguments has a required field."""
    return model is not None and any(field.is_required() for field in model.model_fields.values())
