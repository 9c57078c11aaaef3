"""Errors on their way from an executor to the worker.

Whatever may refuse a request, or end a call, crosses as what it is, or a refusal would become the failure of
a function. What crosses is the class, the texts and a few plain values; all else is as that class has it by default.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from toolpack_server.base.errors import CallError, RequestError, shown

MAX_TEXT = 16_384
_KINDS = {"oldest": int, "not_finite": bool}  # of what isn't text


def _classes(base: type[Exception]) -> Iterator[type[Exception]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _classes(kind)


def refusals() -> Mapping[str, type[Exception]]:
    """Get the classes of all errors that may cross, those of features that have been imported since, too, by name."""
    return {kind.__name__: kind for base in (CallError, RequestError) for kind in _classes(base)}


def write_refusal(error: CallError | RequestError) -> dict[str, Any]:
    """Get what an executor says where it refuses a request."""
    more = {name: getattr(error, name, None) for name in _parameters(type(error))}
    return {"refused": type(error).__name__, "text": str(error), "more": _plain(more)}


def read_refusal(head: Mapping[str, Any]) -> Exception:
    """Get the error that an executor names; a `KeyError` if there is none of that name."""
    kind = refusals()[head["refused"]]
    error = kind.__new__(kind)
    error.args = (str(head["text"])[:MAX_TEXT],)
    for name, parameter in _parameters(kind).items():
        setattr(error, name, None if parameter.default is parameter.empty else parameter.default)
    for name, value in _plain(head.get("more", {})).items():
        if name in _parameters(kind):
            setattr(error, name, shown(value) if isinstance(value, str) else value)
    return error


def _parameters(kind: type[Exception]) -> Mapping[str, inspect.Parameter]:
    """Get what an error is made of besides its text."""
    if kind.__init__ is Exception.__init__:
        return {}
    return dict([*inspect.signature(kind).parameters.items()][1:])


def _plain(more: Mapping[str, Any]) -> dict[str, Any]:
    """Get what is a text, or one of the values that aren't, as it may come from code that isn't trusted."""
    return {name: value for name, value in more.items() if type(value) is _KINDS.get(name, str)}
