"""Serialisation of errors that an executor sends to the worker.

An error that refuses a request must keep its class. Otherwise the worker would mistake the error for a failure of the
function. The executor sends the class's name, the message, and those attributes that are strings or other plain values.
The worker sets all other attributes to their defaults.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from toolpack_server.base.errors import CallError, RequestError, shown

MAX_TEXT = 16_384
_KINDS = {"oldest": int, "not_finite": bool}  # types of the attributes that aren't strings


def _classes(base: type[Exception]) -> Iterator[type[Exception]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _classes(kind)


def refusals() -> Mapping[str, type[Exception]]:
    """Return the classes of errors that an executor can send, by name, including classes of features imported later."""
    return {kind.__name__: kind for base in (CallError, RequestError) for kind in _classes(base)}


def write_refusal(error: CallError | RequestError) -> dict[str, Any]:
    """Return the head of an executor's answer for an error."""
    attributes = {name: getattr(error, name, None) for name in _parameters(type(error))}
    return {"refused": type(error).__name__, "text": str(error), "more": _plain(attributes)}


def read_refusal(head: Mapping[str, Any]) -> Exception:
    """Rebuild an error from the head of an executor's answer. Raise `KeyError` if its class is unknown."""
    kind = refusals()[head["refused"]]
    error = kind.__new__(kind)  # without the constructor, because its parameters differ from class to class
    error.args = (str(head["text"])[:MAX_TEXT],)
    for name, parameter in _parameters(kind).items():
        setattr(error, name, None if parameter.default is parameter.empty else parameter.default)
    for name, value in _plain(head.get("more", {})).items():
        if name in _parameters(kind):
            setattr(error, name, shown(value) if isinstance(value, str) else value)
    return error


def _parameters(kind: type[Exception]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of an error's constructor, without the message."""
    if kind.__init__ is Exception.__init__:
        return {}
    return dict([*inspect.signature(kind).parameters.items()][1:])


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return only the values of allowed types, because the values might come from untrusted code."""
    return {name: value for name, value in attributes.items() if type(value) is _KINDS.get(name, str)}
