"""Trial calls of functions on a throw-away environment, with findings on their mistakes.

A trial call takes the same path through the code as a call in a session, so it runs into the same problems. An
exception that the made-up arguments might have caused isn't a finding. An exception such as NameError is a finding,
because no arguments should cause it.
"""

import dis
import gc
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from toolpack_author.checking.examples import example_arguments, example_options, known_values
from toolpack_author.checking.shared_state import SharedState
from toolpack_server import ToolpackServerError
from toolpack_server.base.errors import SnapshotError
from toolpack_server.base.settings import load_settings
from toolpack_server.execution.call import Outcome, call
from toolpack_server.execution.codec import PlainCodec
from toolpack_server.execution.initial import Built, build
from toolpack_server.execution.parts import environments
from toolpack_server.execution.read_only_checks import ReadOnlyChecks
from toolpack_server.execution.runtime import SessionRuntime
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.volumes import READ_ONLY
from toolpack_server.execution.world import ExecutionContext, World
from toolpack_server.features.api.core import InvalidParamsError, TooLargeError
from toolpack_server.features.authoring.checking.findings import Finding
from toolpack_server.functions.leftovers import Watch
from toolpack_server.functions.steps import Steps
from toolpack_server.functions.tracebacks import leave_out
from toolpack_server.jsonio.strict import dumps
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.pack_function import PackFunction
from toolpack_server.packs.registration import location_of, qualified_name
from toolpack_server.packs.toolpack import Toolpack
from toolpack_server.volumes.volume import is_piece
from toolpack_server.wiring.service import create_volumes

MAX_BYTES = 32 * 2**20
MAX_RESULT_BYTES = 2**20
SHOWN_ARGUMENTS = 200

MISTAKES = ("NameError", "UnboundLocalError", "AttributeError", "TypeError", "ImportError", "ModuleNotFoundError")
"""Exceptions that valid arguments should never cause."""
ENDS = ("SystemExit", "KeyboardInterrupt", "GeneratorExit")  # exceptions that would terminate a thread or a process
NO_FIELD = 'object has no field "'  # part of pydantic's ValueError for an unknown field


leave_out(Path(__file__).parent)


class _TrialRuntime(SessionRuntime):
    """Runtime that stores the function's result, and weak references to the objects that the call lent it."""

    returned: Any = None
    lent: "Sequence[tuple[str, weakref.ref[Any]]]" = ()  # objects that must not outlive the call, with their type names

    def run(self, env: World, function: Any, arguments: dict[str, Any]) -> Steps[Any]:
        """Run a function in steps. The caller drives this generator; its value is the function's result."""
        self.returned = yield from super().run(env, function, arguments)
        volumes = () if env.volumes is None else env.volumes.bound.values()
        self.lent = [(_type_of(volume, lent), weakref.ref(lent)) for volume in volumes for lent in volume.resources()]
        return self.returned


class Trial:
    """Calls the functions of toolpacks in this process. `check` creates one in each child process.

    Args:
        called: Callback before each call.
        returned: Callback after a function has returned, before its environment is compared.
    """

    def __init__(self, catalog: Catalog, called: Callable[[], None], returned: Callable[[], None]) -> None:
        self._catalog = catalog
        self._called, self._returned = called, returned
        volumes = create_volumes(load_settings())
        self._scratch = volumes.scratch
        self._codec = PlainCodec(catalog, MAX_BYTES, volumes)
        self._context = ExecutionContext(self._codec, MAX_RESULT_BYTES)
        self._built: dict[str, Built | None] = {}
        self._known: dict[str, Mapping[str, list[Any]]] = {}
        self._environments: dict[str, Any] = {}
        self._unprepared: dict[str, Mapping[str, Any]] = {}  # by toolpack: made-up options that the toolpack refused
        self._unset: dict[tuple[str, str], str] = {}  # by toolpack and setting method: a function
        functions = [
            function.function.run for pack in catalog.toolpacks.values() for function in pack.functions.values()
        ]
        self._shared = SharedState(inspect.unwrap(function) for function in functions)

    def run(self, toolpack: str, name: str) -> list[Finding]:
        """Call a function with each set of arguments, and return the findings on it.

        Return no findings if no environment can be built, for example because made-up options are invalid.
        """
        pack = self._catalog.toolpacks[toolpack]
        function = pack.functions[name]
        where = location_of(function.function)
        try:
            built = self._environment(pack)
        except ToolpackServerError as error:  # the environment has a volume of an unknown feature
            return [Finding(pack.location, f"no session of {pack.name!r} can be created: {error}", is_problem=True)]
        if built is None:
            return []
        argument_sets = [*example_arguments(function.function.parameters, self._known[pack.name])]
        if not argument_sets:
            return [
                Finding(
                    where,
                    "it wasn't called, because no arguments could be made from its schema: give examples, such as "
                    "Annotated[str, Field(examples=['a'])].",
                )
            ]
        declarations = _declaration_findings(function, self._environments[pack.name], where)
        findings = {finding.what: finding for finding in declarations}
        for arguments in argument_sets:
            for finding in self._call(pack, function, arguments, built, where):
                findings.setdefault(finding.what, finding)
        return [*findings.values()]

    def close(self) -> None:
        """Remove the files in the scratch folder."""
        self._scratch.close()

    def _environment(self, pack: Toolpack) -> Built | None:
        """Return the environment for the calls of a toolpack's functions, or None if building it fails.

        Options that prepare instances of classes get made-up values. If the toolpack refuses these values, the default
        options are used.
        """
        if pack.name not in self._built:
            self._built[pack.name], self._known[pack.name] = None, {}  # stays so if building fails
            needed_options = example_options(pack.options)
            built = self._build(pack, needed_options) if needed_options else None
            if built is None:
                built = self._build(pack, next(example_arguments(pack.options, {}), {}) if pack.options else {})
                if needed_options and built is not None:
                    self._unprepared[pack.name] = needed_options
            if built is None:
                return None
            parts = {part: self._codec.decode(part, *blob) for part, blob in built.items() if not is_piece(part)}
            restored = environments(parts)
            self._environments[pack.name] = restored[pack.name]
            self._built[pack.name], self._known[pack.name] = built, known_values(restored[pack.name])
            self._shared.changes()  # discarded, because the toolpack's setup made them, not a call
        return self._built[pack.name]

    def _build(self, pack: Toolpack, options: Mapping[str, Any]) -> Built | None:
        """Build the environment with these options, or return None if that fails."""
        try:
            return build(self._context, pack.name, options)
        except (InvalidParamsError, SnapshotError, TooLargeError):
            return None

    def _call(
        self, pack: Toolpack, function: PackFunction, arguments: dict[str, Any], built: Built, where: str
    ) -> list[Finding]:
        """Call a function with these arguments on a new copy of the environment, and return the findings."""
        runtime = _TrialRuntime(pack.functions, 30.0, ReadOnlyChecks(always=True), tracebacks=True)
        blobs = {part: blob for part, (_, blob) in built.items()}
        # Decode before `_called`, because the time after `_called` counts as the function's time.
        live = {part: self._codec.decode(part, *blob) for part, blob in built.items() if not is_piece(part)}
        snapshot = Snapshot({part: blob_id for part, (blob_id, _) in built.items()}, blobs, live)
        plan = runtime.plan(function.name, arguments)
        plan.comparing = self._returned
        watch = Watch()
        self._called()
        outcome = call(plan, snapshot, self._context)
        called = f" (called with {_shown(arguments)})"
        findings = _failure_findings(outcome, where, called, made_up=bool(arguments))
        failure = outcome.failure
        if pack.name in self._unprepared and failure and failure.kind == "AttributeError":
            findings = self._unprepared_findings(pack)
        elif failure and findings:
            findings = self._unset_findings(pack, function.name, failure.cause, findings)
        if failure is None:
            findings += _type_findings(function, runtime.returned, where, called)
            findings += _kept_findings(runtime, where, called)
        if watch.leaves_work({pack.name: None}):
            advice = "wait for it, since what it does later is lost."
            findings.append(Finding(where, "it leaves a thread at work", advice, called))
        findings += [
            Finding(
                where,
                f"it changes `{changed.shown}`",
                "keep it in the environment.",
                f"{called}, which all sessions share and no reset restores",
                subject=changed.subject,
                function=qualified_name(function.function),
            )
            for changed in self._shared.changes()
        ]
        return findings

    def _unset_findings(
        self, pack: Toolpack, function: str, error: BaseException | None, findings: list[Finding]
    ) -> list[Finding]:
        """Return the findings. If the function needs an attribute that only one method sets, advise on this method.

        Each such method is reported only for the first function that needs it.
        """
        setter = _setter(type(error.obj), error.name or "") if isinstance(error, AttributeError) else ""
        if not pack.holds_instances or not setter:
            return findings
        if self._unset.setdefault((pack.name, setter), function) != function:
            return []
        option = f'pass options="{setter}" to the toolpack, or ' if setter.startswith("_") else ""
        advice = (
            f"`{setter}` sets it, but wasn't called: {option}set it in `__init__`. Other functions might also need it."
        )
        return [replace(finding, advice=advice) for finding in findings]

    def _unprepared_findings(self, pack: Toolpack) -> list[Finding]:
        """Return a finding that the toolpack refuses all made-up options, but only once per toolpack."""
        options, self._unprepared[pack.name] = self._unprepared[pack.name], {}
        if not options:
            return []
        return [
            Finding(
                pack.location,
                f"functions of {pack.name!r} can't be tried, because made-up options such as {_shown(options)} don't "
                "fit: make the toolpack with options= of a function whose options have defaults.",
            )
        ]


def _setter(kind: type, attribute: str) -> str:
    """Return the name of a method that sets an attribute, or "". A private method is preferred.

    Also return "" if `__init__` sets the attribute, because then a missing call isn't the reason why it is missing.
    """
    names = [
        name
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if any(step.opname == "STORE_ATTR" and step.argval == attribute for step in dis.get_instructions(method))
    ]
    return "" if "__init__" in names else min(names, key=lambda name: not name.startswith("_"), default="")


def _type_of(volume: Any, lent: Any) -> str:
    shown_type = next((kind for kind in volume.alternative_types if isinstance(lent, kind)), type(lent))
    return f"{shown_type.__module__}.{shown_type.__qualname__}"


def _kept_findings(runtime: _TrialRuntime, where: str, called: str) -> list[Finding]:
    """Return a finding if the function kept an object lent to its call, such as a connection, which is closed now."""
    if runtime.lent:
        gc.collect()
    types = [name for name, lent in runtime.lent if lent() is not None]
    return [
        Finding(
            where,
            f"it keeps the `{name}` of its call, or a part of that such as a cursor, which is closed when the call "
            "ends",
            "take the one of each call.",
            called,
        )
        for name in types[:1]
    ]


def _failure_findings(outcome: Outcome, where: str, called: str, *, made_up: bool) -> list[Finding]:
    """Return the findings on a failed call.

    If its arguments were made up, they might have caused an ordinary exception, so that exception isn't a finding.
    """
    failure = outcome.failure
    if failure is None:
        return []
    kind, message, error = failure.kind, failure.message, failure.text
    if READ_ONLY in message:
        what, advice = "it promises read_only=True but writes to a database or to files", "omit read_only=True."
        return [Finding(where, what, advice, called, True, failure.traceback or "")]
    if outcome.comparison and outcome.comparison.broken:
        change = outcome.comparison.broken[2]
        what, advice = f"it promises read_only=True but changes {change}", "omit read_only=True, or change a copy."
        return [Finding(where, what, advice, called, is_problem=True)]
    if failure.traceback is None:
        texts = {
            "SnapshotError": ("it leaves behind what can't be stored", f"{message} Replace it by plain values."),
            "ResultError": ("its result has no JSON form", f"{message}: return plain values or models."),
            "TooLargeError": ("it fails", f"{message} Return or keep less."),
        }
        return [Finding(where, *texts[kind], called, is_problem=kind != "TooLargeError")] if kind in texts else []
    if kind in MISTAKES or NO_FIELD in message:
        return [Finding(where, f"it raises {_one_line(error)}", "correct it.", called, True, failure.traceback)]
    if kind in ENDS:
        return [Finding(where, f"it raises {kind}", "raise an ordinary exception.", called, True, failure.traceback)]
    text = f"it raises {_one_line(error)} in a new session."
    return [] if made_up else [Finding(where, text, details=failure.traceback)]


def _type_findings(function: PackFunction, value: Any, where: str, called: str) -> list[Finding]:
    """Return a finding if a result doesn't match the function's return annotation."""
    annotated = function.function.return_type
    what = None if annotated is None or annotated is Any else _mismatch(annotated, value)
    if what is None:
        return []
    what = f"it returns {what}, but its annotation says `{_type_name(annotated)}`"
    return [Finding(where, what, "correct one of the two.", called)]


def _declaration_findings(function: PackFunction, environment: Any, where: str) -> list[Finding]:
    """Return findings on parameters with a dependency or a default that doesn't match the annotation."""
    findings = []
    try:
        hints = get_type_hints(function.function.run)
    except Exception:  # noqa: BLE001 - a function's annotations can be unreadable
        hints = {}
    for name, dependency in function.function.dependencies.items():
        attribute = getattr(dependency, "env_dependency", None)
        if not isinstance(attribute, str) or name not in hints or not hasattr(environment, attribute):
            continue
        what = _mismatch(hints[name], getattr(environment, attribute))
        if what:
            text = f"parameter `{name}` is annotated `{_type_name(hints[name])}`, but env.{attribute} is {what}"
            findings.append(Finding(where, f"{text}: correct one of the two."))
    for name, field in function.function.parameters.model_fields.items():
        if field.is_required() or field.default is None or field.default_factory is not None:
            continue
        try:
            function.function.parameters.model_validate({name: field.default})
        except ValidationError as error:
            wrong = [problem["msg"] for problem in error.errors() if problem["loc"][:1] == (name,)]
            if wrong:
                text = f"the default of parameter `{name}` doesn't fit its type ({wrong[0]}): correct one of the two."
                findings.append(Finding(where, text))
        except Exception:  # noqa: BLE001, S112 - an author's validator can raise any exception
            continue
    return findings


def _mismatch(annotated: Any, value: Any) -> str | None:
    """Return the description of a value that doesn't match a type, or None if it matches or can't be checked."""
    try:
        TypeAdapter(annotated).validate_python(value, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        inside = ".".join(str(step) for step in problem["loc"])
        where = f" that doesn't fit at {inside}: {problem['msg']}" if inside else ""
        return f"`{type(value).__name__}`{where}"
    except Exception:  # noqa: BLE001 - pydantic has no schema for the type
        return f"`{type(value).__name__}`" if isinstance(annotated, type) and not isinstance(value, annotated) else None
    return None


def _type_name(annotated: Any) -> str:
    if annotated is NoneType:
        return "None"
    return annotated.__name__ if type(annotated) is type else str(annotated).replace("typing.", "")


def _shown(arguments: Mapping[str, Any]) -> str:
    text = dumps(arguments).decode() if arguments else "no arguments"
    return text if len(text) <= SHOWN_ARGUMENTS else f"{text[:SHOWN_ARGUMENTS]}…"


def _one_line(error: str) -> str:
    text = " ".join(error.split()).removesuffix(":")
    return text if len(text) <= SHOWN_ARGUMENTS else f"{text[:SHOWN_ARGUMENTS]}…"
