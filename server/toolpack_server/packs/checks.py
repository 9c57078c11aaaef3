"""Checks of initial environments, which build them.

What a check builds is discarded. What takes long, or stops no server, is only looked at by `check`.
"""

import inspect
import traceback
from contextvars import Context

from pydantic import BaseModel

from toolpack_server.base.errors import InvalidParamsError, RegistrationError, ResultError, SnapshotError
from toolpack_server.jsonio.view import to_json
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.import_timeout import TimeLimitExceeded, time_limit
from toolpack_server.packs.registration import place
from toolpack_server.packs.toolpack import Toolpack
from toolpack_server.snapshots.comparison import difference
from toolpack_server.snapshots.pickling import freeze, thaw
from toolpack_server.volumes.volume import Limits, take_out

BUILD_SECONDS = 10.0


def initial_problem(pack: Toolpack, catalog: Catalog, *, thorough: bool = False) -> RegistrationError | None:
    """Build the initial environment, and check that its snapshot restores it exactly.

    That JSON can show it is checked of instances, or if the check is `thorough`: others can be used nevertheless.
    """
    classes = catalog.classes
    text = f"{place(pack.factory)}: the initial environment of {pack.name!r}"
    if requires(pack.options):
        return None  # only a session's own options can build it
    try:
        with time_limit(BUILD_SECONDS, "the initial environment"):
            environment = Context().run(pack.build, {})
            for volume in take_out(environment, of_instances=pack.holds_instances).values():
                volume.build(Limits())
        lost = difference(environment, thaw(freeze(environment, classes), classes))
        if thorough or pack.holds_instances:
            to_json(environment, catalog.plain)
    except (InvalidParamsError, SnapshotError) as error:
        reason = " ".join(str(error).partition("For further information visit")[0].split()).rstrip(".")
        text += f" can't be used: {reason}{_raised_at(pack, error)}."
        if isinstance(error, SnapshotError) and error.undeclared:
            text += " Name its class in state_types, or keep something else."
        return RegistrationError(text)
    except ResultError as error:
        return RegistrationError(
            f"{text} can be stored but not shown, so get_environment and diff_environment would fail: {error}: keep it "
            "in a private attribute (PrivateAttr), or use another type."
        )
    except TimeLimitExceeded as error:
        return RegistrationError(f"{text} isn't built: {error}")
    return RegistrationError(f"{text} can't be stored exactly: {lost}") if lost else None


def _raised_at(pack: Toolpack, error: Exception) -> str:
    file = inspect.getsourcefile(pack.factory) if inspect.isfunction(pack.factory) else None
    frames = traceback.extract_tb(error.__cause__.__traceback__) if error.__cause__ else []
    lines = [frame.lineno for frame in frames if frame.filename == file]
    return f", raised at {file}:{lines[-1]}: correct it" if lines else ""


def requires(model: type[BaseModel] | None) -> bool:
    """Whether a model of arguments has a required field."""
    return model is not None and any(field.is_required() for field in model.model_fields.values())
