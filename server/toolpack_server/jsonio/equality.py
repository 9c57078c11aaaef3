"""Equality of JSON values by meaning: compares numbers by value, and all other values exactly.

The last digits of a sum of floats depend on the order of its terms. So if at least one of two numbers is a float, the
numbers are equal if they differ by at most a billionth of the larger number, or by at most 1e-9. Integers are compared
exactly. True and false aren't numbers.
"""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

TOLERANCE = 1e-9

_NUMERAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?", re.ASCII)  # "007" is a name, not a number


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def equal(one: Any, other: Any) -> bool:
    """Return whether two scalar JSON values are equal."""
    if not (is_number(one) and is_number(other)):
        return type(one) is type(other) and bool(one == other)
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    try:
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except OverflowError:  # an integer too large for a float
        return False


def equal_arguments(one: Any, other: Any) -> bool:
    """Return whether two JSON values mean the same as arguments: a string that spells a number equals the number."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal_arguments(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal_arguments, one, other))
    return equal(one, other) or _decimal(one) == _decimal(other) is not None


def argument_key(value: Any) -> Any:
    """Return a hashable value that is equal for arguments of the same meaning, such as the number 7 and the string "7".

    Unlike in `equal_arguments`, floats that differ only in their last digits aren't equal.
    """
    if isinstance(value, Mapping):
        return dict, frozenset((name, argument_key(each)) for name, each in value.items())
    if isinstance(value, list):
        return list, tuple(map(argument_key, value))
    number = _decimal(value)
    return (type(value), value) if number is None else number


def _decimal(value: Any) -> Decimal | None:
    """Return the exact value of a number, or of a string that spells a number. Return None for other values."""
    if is_number(value):
        return Decimal(str(value))
    return Decimal(value) if isinstance(value, str) and _NUMERAL.fullmatch(value) else None
