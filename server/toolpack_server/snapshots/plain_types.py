"""Plain types that every snapshot can contain, each with functions that write and read its instances.

Pickle could write most of these types itself, but its bytes would contain names of classes. So each type has a function
that returns an instance's arguments, and a function that creates an instance from arguments. The reader accepts only
the listed argument types, so forged arguments can't make a constructor do anything else.
"""

import collections
import ipaddress
import itertools
import pathlib
import pickle
import random
import re
import uuid
import zoneinfo
from ast import literal_eval
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from pydantic_core import MultiHostUrl, TzInfo, Url

from toolpack_server.base.errors import UnsupportedObjectError


class Plain(NamedTuple):
    """A plain type, and the functions that write and read its instances.

    A container's content isn't among the arguments. The content is added after the container was created, because a
    container can contain itself.
    """

    cls: type
    arguments: Callable[[Any], tuple[Any, ...]]  # returns the arguments for an instance
    accepted: set[tuple[type, ...]]  # allowed types of the arguments
    make: Callable[..., Any]  # creates an instance from arguments
    items: Callable[[Any], Iterator[Any]] | None = None  # yields the content of a list-like container
    pairs: Callable[[Any], Iterator[tuple[Any, Any]]] | None = None  # yields keys and values of a dict-like container

    def checked(self, *args: Any) -> Any:
        """Create an instance from arguments that might be forged."""
        if tuple(map(type, args)) not in self.accepted:
            raise pickle.UnpicklingError(f"wrong arguments for {self.cls.__name__}")
        return self.make(*args)


def _no_attributes(value: Any, *allowed: str) -> tuple[()]:
    """Return no arguments.

    Refuse a value with attributes other than the allowed attributes, because they would be lost.
    """
    if vars(value).keys() - {*allowed}:
        raise UnsupportedObjectError("attributes were set on it")
    return ()


def _url_arguments(url: Any) -> tuple[str]:
    """Return the text of a URL. Refuse the URL if parsing its text yields a different URL."""
    text = str(url)
    if str(type(url)(text)) != text:
        raise UnsupportedObjectError("parsing its text again gives another URL")
    return (text,)


def _zone_arguments(zone: Any) -> tuple[str, bool]:
    """Return the name of a time zone, and whether the zone is the cached object for the name."""
    if zone.key is None:
        raise UnsupportedObjectError("it was read from a file and has no name")
    _make, (key, cached) = zone.__reduce__()
    return key, bool(cached)


def _zone(key: str, cached: bool) -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo(key) if cached else zoneinfo.ZoneInfo.no_cache(key)


def _uuid(number: int, safe: int | None) -> uuid.UUID:
    return uuid.UUID(int=number, is_safe=uuid.SafeUUID(safe))


def _count_arguments(count: Any) -> tuple[Any, ...]:
    """Return start and step of an `itertools.count`."""
    # In all Python versions, only the repr contains both numbers.
    start, step = (*literal_eval(repr(count).removeprefix("count").replace(")", ",)")), 1)[:2]
    if type(start) not in (int, float) or type(step) not in (int, float):
        raise UnsupportedObjectError("it counts something other than integers and floats")
    return start, step


def _random_arguments(generator: Any) -> tuple[Any, ...]:
    """Return the state of a random generator, without the version of the state's format."""
    _no_attributes(generator, "gauss_next")
    _version, state, gauss_next = generator.getstate()
    return state, gauss_next


def _random(state: tuple[Any, ...], gauss_next: float | None) -> random.Random:
    generator = random.Random(0)  # noqa: S311 - its state is set next
    generator.setstate((random.Random.VERSION, state, gauss_next))
    return generator


_ZONES = (timezone, zoneinfo.ZoneInfo, TzInfo)
_any_date: Any = date  # the constructors accept packed bytes, which their type stubs omit
_any_datetime: Any = datetime
_any_time: Any = time

NATIVE = (type(None), bool, int, float, str, bytes, bytearray, list, tuple, dict, set, frozenset)
"""Types that pickle writes with special opcodes instead of the name of a class."""

FACTORIES = {kind.__name__: kind for kind in (*NATIVE[1:], complex, Decimal, Fraction)}
"""Factories that a defaultdict can have, besides the classes of the table."""


# Dates and times are created with `replace()`, which checks every field, because their constructors hardly check packed
# bytes.
PLAIN = (
    Plain(complex, lambda v: (v.real, v.imag), {(float, float)}, complex),
    Plain(range, lambda v: (v.start, v.stop, v.step), {(int, int, int)}, range),
    Plain(Decimal, lambda v: (str(v),), {(str,)}, Decimal),
    Plain(Fraction, lambda v: (v.numerator, v.denominator), {(int, int)}, Fraction),
    Plain(timedelta, lambda v: (v.days, v.seconds, v.microseconds), {(int, int, int)}, timedelta),
    Plain(date, lambda v: v.__reduce__()[1], {(bytes,)}, lambda packed: _any_date(packed).replace()),
    Plain(
        datetime,
        lambda v: v.__reduce_ex__(4)[1],
        {(bytes,), *((bytes, zone) for zone in _ZONES)},
        lambda packed, *zone: _any_datetime(packed, *zone).replace(),
    ),
    Plain(
        time,
        lambda v: v.__reduce_ex__(4)[1],
        {(bytes,), *((bytes, zone) for zone in _ZONES)},
        lambda packed, *zone: _any_time(packed, *zone).replace(),
    ),
    Plain(timezone, lambda v: v.__getinitargs__(), {(timedelta,), (timedelta, str)}, timezone),
    Plain(TzInfo, lambda v: v.__reduce__()[1], {(int,), (float,)}, TzInfo),
    Plain(zoneinfo.ZoneInfo, _zone_arguments, {(str, bool)}, _zone),
    Plain(uuid.UUID, lambda v: (v.int, v.is_safe.value), {(int, int), (int, type(None))}, _uuid),
    Plain(re.Pattern, lambda v: (v.pattern, v.flags), {(str, int), (bytes, int)}, re.compile),
    Plain(random.Random, _random_arguments, {(tuple, float), (tuple, type(None))}, _random),
    Plain(itertools.count, _count_arguments, {(a, b) for a in (int, float) for b in (int, float)}, itertools.count),
    *(Plain(kind, _url_arguments, {(str,)}, kind) for kind in (Url, MultiHostUrl)),
    *(
        Plain(kind, lambda v: (str(v),), {(str,)}, kind)
        for kind in (
            *(pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path())),
            *(ipaddress.IPv4Address, ipaddress.IPv4Interface, ipaddress.IPv4Network),
            *(ipaddress.IPv6Address, ipaddress.IPv6Interface, ipaddress.IPv6Network),
        )
    ),
    Plain(
        collections.deque,
        lambda v: (v.maxlen,),
        {(int,), (type(None),)},
        lambda maxlen: collections.deque(maxlen=maxlen),
        items=iter,
    ),
    Plain(
        collections.OrderedDict,
        _no_attributes,
        {()},
        collections.OrderedDict,
        pairs=lambda v: iter(v.items()),
    ),
    Plain(collections.Counter, _no_attributes, {()}, collections.Counter, pairs=lambda v: iter(v.items())),
)
"""The plain types that aren't in `NATIVE`. `defaultdict` is missing, because its factory can be an author's class."""

PLAIN_TYPES = frozenset({*NATIVE, *(plain.cls for plain in PLAIN), collections.defaultdict})
"""All types that are always allowed."""
