"""Forged bytes: reading them raises `StateDamagedError` or returns objects of admitted classes, and changes nothing
else.

In service the keyed hash is checked first. These attacks assume that the attacker has the key.
"""

import copyreg
import enum
import io
import pickle
import pickletools
import random
import resource
import struct
import sys
from decimal import Decimal

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, PrivateAttr

from toolpack_server.base.errors import ClassesChangedError, StateDamagedError
from toolpack_server.snapshots import operators
from toolpack_server.snapshots.classes import ClassTable
from toolpack_server.snapshots.pickling import freeze, thaw
from toolpack_server.snapshots.seal import seal, unseal

ran: list[str] = []
KEY = b"key" * 10
MARK = "ab" * 16
PLACE = "blob part"


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"

    @classmethod
    def _missing_(cls, _value):
        ran.append("_missing_")
        return cls.RED


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Guarded(BaseModel):
    number: int = 1
    color: Color = Color.RED
    rights: Rights = Rights.READ
    anything: object = None
    _private: int = PrivateAttr(1)

    @pydantic.field_validator("number")
    @classmethod
    def check(cls, value):
        ran.append("validator")
        return value

    def __init__(self, **data):
        ran.append("__init__")
        super().__init__(**data)

    def model_post_init(self, _context, /):
        ran.append("model_post_init")

    def __setattr__(self, name, value):
        ran.append("__setattr__")
        super().__setattr__(name, value)

    @property
    def trap(self):
        return 1

    @trap.setter
    def trap(self, _value):
        ran.append("property")


class Thing:
    def __init__(self):
        ran.append("__init__")

    @property
    def trap(self):
        return 1

    @trap.setter
    def trap(self, _value):
        ran.append("property")


class Slim:
    __slots__ = ("value",)


class Word(str):
    __slots__ = ()


class Outside(BaseModel):
    pass


ALL_RIGHTS = [Rights(number) for number in range(4)]  # created here, because an enum caches every combination
STATE_TYPES = (Thing, Slim, Word)
CLASSES = ClassTable([Guarded], STATE_TYPES)
HERE = __name__


def shape():
    """Return everything that an attack might alter: the fixture classes, their members and the operators."""
    classes = (Color, Rights, Guarded, Thing, Slim, Word, Outside, BaseModel, enum.Enum, Decimal)
    members = (*Color, *Rights)
    table = operators.operators_of(CLASSES)
    return (
        [dict(vars(cls)) for cls in classes],
        [dict(vars(member)) for member in members],
        [(dir(each), type(each), dict(vars(type(each)))) for each in table.find.values()],
        dict(table.find),
        dict(CLASSES.names),
    )


@pytest.fixture(autouse=True)
def _nothing_alters():
    before = shape()
    ran.clear()
    yield
    assert ran == []
    assert shape() == before


# A small assembler


def text(value):
    data = value.encode()
    return pickle.BINUNICODE + struct.pack("<I", len(data)) + data


def put(value):
    """Return opcodes that push a plain value, or opcodes passed as bytes."""
    if isinstance(value, bytes):
        return value
    code = pickle.dumps(value, 5)[2:-1]
    return code[9:] if code.startswith(pickle.FRAME) else code


def op(name):
    return pickle.GLOBAL + f"toolpack\n{name}\n".encode()


def call(name, *args):
    return op(name) + pickle.MARK + b"".join(map(put, args)) + pickle.TUPLE + pickle.REDUCE


def build(target, state):
    return target + put(state) + pickle.BUILD


def raw(opcodes):
    return pickle.PROTO + b"\x05" + opcodes + pickle.STOP


def named(cls):
    return put(f"{HERE}:{cls.__qualname__}")


RED = call("member", named(Color), "RED")
NEW_GUARDED = call("new", named(Guarded))
FILLED = ({"number": 2}, set(), None, {"_private": 5})

REFUSED = {
    # names that no snapshot can fetch
    "os.system": b"cos\nsystem\n(S'true'\ntR",
    "builtins.eval": b"cbuiltins\neval\n(S'1'\ntR",
    "a class by its module": f"c{HERE}\nGuarded\n(tR".encode(),
    "a loaded module's attribute": b"csys\nmodules\n",
    "dotted names": b"ctoolpack\nnew.__class__\n",
    "an unknown operator": b"ctoolpack\nexec\n",
    "STACK_GLOBAL": text("os") + text("system") + pickle.STACK_GLOBAL,
    "STACK_GLOBAL of other things": put(1) + put(2) + pickle.STACK_GLOBAL,
    "INST": b"(S'true'\nios\nsystem\n",
    "INST of a class": f"(i{HERE}\nGuarded\n".encode(),
    "persistent id": b"Pid\n",
    "binary persistent id": put("id") + pickle.BINPERSID,
    "extension code": pickle.EXT1 + b"\xf0",
    "extension code 2": pickle.EXT2 + b"\xf0\xf0",
    "extension code 4": pickle.EXT4 + b"\xf0\xf0\0\0",
    "out-of-band buffer": pickle.NEXT_BUFFER,
    # operators that the bytes treat as classes or objects
    "NEWOBJ on an operator": op("new") + pickle.EMPTY_TUPLE + pickle.NEWOBJ,
    "NEWOBJ_EX on an operator": op("new") + pickle.EMPTY_TUPLE + pickle.EMPTY_DICT + pickle.NEWOBJ_EX,
    "NEWOBJ on an instance": NEW_GUARDED + pickle.EMPTY_TUPLE + pickle.NEWOBJ,
    "OBJ on an operator": pickle.MARK + op("new") + put(1) + pickle.OBJ,
    "BUILD an operator": build(op("new"), {"__call__": 1}),
    "BUILD an operator's slots": build(op("fill"), (None, {"__call__": 1})),
    "BUILD an operator's class": build(op("fill"), (None, {"__class__": 1})),
    "APPEND to an operator": op("new") + put(1) + pickle.APPEND,
    "SETITEM on an operator": op("new") + put(1) + put(1) + pickle.SETITEM,
    "ADDITEMS to an operator": op("new") + pickle.MARK + put(1) + pickle.ADDITEMS,
    # members and constants, which live as long as the process
    "BUILD an enum member": build(RED, {"_value_": "green"}),
    "BUILD an enum member's slots": build(RED, (None, {"_value_": "green"})),
    "BUILD an enum member with nothing": build(RED, None),
    "BUILD a flag": build(call("flags", named(Rights), 3), {"_value_": 1}),
    "BUILD UTC": build(call("constant", "utc"), (None, {"x": 1})),
    "BUILD a time zone": build(call("plain", "ZoneInfo", "UTC", True), (None, {"key": "x"})),
    "BUILD the empty mark": build(call("constant", "unset"), {"x": 1}),
    "BUILD a pattern": build(call("plain", "Pattern", "a", 32), {"pattern": "b"}),
    "fill an enum member": op("fill") + RED + put(({},)) + pickle.TUPLE2 + pickle.REDUCE,
    "fill an operator": op("fill") + op("new") + put(({},)) + pickle.TUPLE2 + pickle.REDUCE,
    "fill a dict": call("fill", {}, {"a": 1}),
    "fill a constant": op("fill") + call("constant", "utc") + put(({},)) + pickle.TUPLE2 + pickle.REDUCE,
    # operators with invalid arguments
    "new without a name": call("new"),
    "new of a number": call("new", 1),
    "new of bytes": call("new", pickle.BINBYTES + b"\1\0\0\0a"),
    "new of a class that isn't admitted": call("new", named(Outside)),
    "new of an enum": call("new", named(Color)),
    "new of a builtin": call("new", "builtins:int"),
    "new of BaseModel": call("new", "pydantic.main:BaseModel"),
    "new of an immutable type": call("new", named(Word)),
    "new with a string subclass": call("new", call("make", named(Word), f"{HERE}:Guarded")),
    "new with too much": call("new", named(Guarded), 1),
    "call an instance": NEW_GUARDED + pickle.EMPTY_TUPLE + pickle.REDUCE,
    "call a string": put("new") + pickle.EMPTY_TUPLE + pickle.REDUCE,
    "arguments that are no tuple": op("new") + put([1]) + pickle.REDUCE,
    "fill with a list": call("fill", NEW_GUARDED, [1]),
    "fill with too little": call("fill", NEW_GUARDED, ({},)),
    "fill with a wrong __dict__": call("fill", NEW_GUARDED, ([], set(), None, None)),
    "fill nothing": call("fill"),
    "make without state": call("make", named(Guarded)),
    "make a word of a number": call("make", named(Word), 1),
    "make a word of nothing": call("make", named(Word)),
    "make an enum": call("make", named(Color), {}),
    "a member by value": call("member", named(Color), "red"),
    "a member that isn't": call("member", named(Color), "_missing_"),
    "a member of a model": call("member", named(Guarded), "number"),
    "a member of no class": call("member", 1, 2),
    "flags of an enum": call("flags", named(Color), 1),
    "flags by text": call("flags", named(Rights), "red"),
    "flags out of range": call("flags", named(Rights), 64),
    "an unknown constant": call("constant", "__builtins__"),
    "an unknown plain type": call("plain", "type", "x"),
    "a plain type without name": call("plain"),
    "a date of text": call("plain", "date", "2024"),
    "a month out of range": call("plain", "date", b"C\x04\x07\xe8\x0f\x01"),
    "a day out of range": call("plain", "date", b"C\x04\x07\xe8\x01\xff"),
    "an hour out of range": call("plain", "datetime", b"C\x0a\x07\xe8\x01\x01\xff\x00\x00\x00\x00\x00"),
    "a minute out of range": call("plain", "time", b"C\x06\x01\xff\x00\x00\x00\x00"),
    "a zone that is a model": call("plain", "datetime", b"C\x0a\x07\xe8\x01\x01\x01\x00\x00\x00\x00\x00", NEW_GUARDED),
    "a zone file elsewhere": call("plain", "ZoneInfo", "../../etc/passwd", True),
    "a decimal of a float": call("plain", "Decimal", 1.5),
    "a decimal of letters": call("plain", "Decimal", "abc"),
    "a fraction over zero": call("plain", "Fraction", 1, 0),
    "a range of zero steps": call("plain", "range", 1, 2, 0),
    "a deque of items": call("plain", "deque", [1], 1),
    "a Random of anything": call("plain", "Random", (1, 2), None),
    "a UUID of text": call("plain", "UUID", "x", None),
    "a Url without scheme": call("plain", "Url", "::"),
    "a path of parts": call("plain", "PosixPath", "a", "b"),
    "an OrderedDict of pairs": call("plain", "OrderedDict", [(1, 2)]),
    "a pattern that doesn't compile": call("plain", "Pattern", "(", 32),
    "a default factory that isn't admitted": call("defaultdict", f"{HERE}:Outside"),
    "a default factory by operator": call("defaultdict", op("new")),
    # the stack and the memo
    "nothing at all": b"",
    "an empty stack": pickle.REDUCE,
    "a memo entry that isn't": pickle.BINGET + b"\xc8",
    "a mark that isn't": pickle.TUPLE,
    "unhashable members": pickle.EMPTY_SET + pickle.MARK + put([]) + pickle.ADDITEMS,
    "an unhashable key": pickle.EMPTY_DICT + put([]) + put(1) + pickle.SETITEM,
    "an unknown opcode": b"\xff",
    "a later protocol": pickle.PROTO + b"\x63",
    "a length beyond the end": pickle.BINBYTES8 + b"\xff" * 7 + b"\x0f",
    "a frame beyond the end": pickle.FRAME + b"\xff" * 7 + b"\x0f",
}


@pytest.mark.parametrize("opcodes", REFUSED.values(), ids=REFUSED)
def test_forged_bytes_are_refused(opcodes):
    with pytest.raises(StateDamagedError):
        thaw(raw(opcodes), CLASSES)


def test_the_assembler_writes_readable_snapshots():
    """Otherwise the attacks above might fail only because they are malformed."""
    restored = thaw(raw(call("make", named(Guarded), *FILLED)), CLASSES)
    assert (restored.number, restored._private) == (2, 5)
    assert thaw(raw(RED), CLASSES) is Color.RED
    assert thaw(raw(call("flags", named(Rights), 3)), CLASSES) is Rights.READ | Rights.WRITE
    assert thaw(raw(call("make", named(Word), "a")), CLASSES) == "a"
    assert thaw(raw(call("plain", "Decimal", "1.5")), CLASSES) == Decimal("1.5")


def test_restored_state_sets_no_property_and_no_class_attribute():
    state = ({"trap": 2, "__class__": 3, "check": 4, "model_config": 5}, set(), None, None)
    restored = thaw(raw(call("make", named(Guarded), *state)), CLASSES)
    assert type(restored) is Guarded
    assert restored.trap == 1
    assert Guarded.model_config == {}


def test_build_changes_only_its_own_instance():
    restored = thaw(raw(build(NEW_GUARDED, {"__dict__": {"number": 9}})), CLASSES)
    assert restored.number == 9
    assert Guarded.model_fields["number"].default == 1


def test_an_overwritten_memo_affects_only_its_own_bytes():
    """Forged bytes can replace the operators in pickle's memo, but only while these bytes are read."""
    opcodes = (
        op("new") + pickle.BINPUT + b"\0" + put("x") + pickle.BINPUT + b"\0" + pickle.POP * 2 + pickle.BINGET + b"\0"
    )
    assert thaw(raw(opcodes), CLASSES) == "x"
    assert thaw(freeze([Color.RED], CLASSES), CLASSES) == [Color.RED]


def test_an_extension_that_is_cached_stays_out_of_reach():
    """Pickle reads its cache of extensions before it calls `find_class`."""
    copyreg.add_extension("builtins", "eval", 0xF7)
    try:
        assert pickle.loads(raw(pickle.EXT1 + b"\xf7")) is eval
        with pytest.raises(StateDamagedError):
            thaw(raw(pickle.EXT1 + b"\xf7"), CLASSES)
    finally:
        copyreg.remove_extension("builtins", "eval", 0xF7)
        copyreg.clear_extension_cache()


def test_nothing_is_imported():
    name = "xml.sax.saxutils"
    assert name not in sys.modules
    with pytest.raises(StateDamagedError):
        thaw(raw(f"c{name}\nescape\n".encode()), CLASSES)
    assert name not in sys.modules


def test_bytes_after_the_end_are_refused():
    with pytest.raises(StateDamagedError):
        thaw(freeze([1], CLASSES) + b"N.", CLASSES)


def test_real_snapshots_name_only_operators():
    """A snapshot names no class and no module. It can only fetch names from a short list."""
    value = [Guarded(), Color.RED, Decimal(1), Rights(3), Word("w"), Thing.__new__(Thing)]
    ran.clear()
    names = {arg for opcode, arg, _ in pickletools.genops(freeze(value, CLASSES)) if "GLOBAL" in opcode.name}
    assert names == {f"toolpack {name}" for _, name in operators.operators_of(CLASSES).find}


def test_operators_have_no_state():
    for operator in operators.operators_of(CLASSES).find.values():
        assert not hasattr(operator, "__dict__")
        assert not hasattr(operator, "__setstate__")
        for name in ("__call__", "__class__", "__doc__", "anything"):
            with pytest.raises((AttributeError, TypeError)):
                setattr(operator, name, None)


# The seal


def payload():
    value = Guarded(anything=[Color.RED, Rights(3), {"a": Decimal(1)}, (1, 2.0, {3}), Word("w")])
    ran.clear()
    return freeze(value, CLASSES)


def test_every_truncation_and_changed_byte_is_detected():
    blob = seal(payload(), MARK, KEY, PLACE)
    assert unseal(blob, MARK, KEY, PLACE) == payload()
    for end in range(len(blob)):
        with pytest.raises(StateDamagedError):
            unseal(blob[:end], MARK, KEY, PLACE)
    for position in range(len(blob)):
        for flip in (1, 128, 255):
            changed = bytearray(blob)
            changed[position] ^= flip
            with pytest.raises(StateDamagedError):
                unseal(bytes(changed), MARK, KEY, PLACE)
    with pytest.raises(StateDamagedError):
        unseal(blob + b"\0", MARK, KEY, PLACE)


def test_the_hash_is_checked_before_the_fingerprint():
    blob = seal(payload(), MARK, KEY, PLACE)
    with pytest.raises(ClassesChangedError):
        unseal(blob, "cd" * 16, KEY, PLACE)
    with pytest.raises(StateDamagedError):
        unseal(blob, "cd" * 16, KEY + b"!", PLACE)


@given(st.binary(max_size=200), st.text(max_size=40), st.binary(min_size=1, max_size=64))
@settings(max_examples=50, deadline=None)
def test_whatever_is_sealed_can_be_unsealed(data, mark, key):
    assert unseal(seal(data, mark, key, PLACE), mark, key, PLACE) == data


def test_the_whole_of_a_long_key_counts():
    sealed = seal(b"payload", MARK, b"k" * 64 + b"a", PLACE)
    assert unseal(sealed, MARK, b"k" * 64 + b"a", PLACE) == b"payload"
    for other in (b"k" * 64 + b"b", b"k" * 64, b"k" * 65):
        with pytest.raises(StateDamagedError):
            unseal(sealed, MARK, other, PLACE)


def test_without_a_key_nothing_is_sealed():
    with pytest.raises(ValueError, match="needs a secret key"):
        seal(b"payload", MARK, b"", PLACE)


@given(st.binary(max_size=200))
@settings(max_examples=50, deadline=None)
def test_bytes_without_a_seal_are_refused(blob):
    with pytest.raises(StateDamagedError):
        unseal(blob, MARK, KEY, PLACE)


# Fuzzing


@pytest.fixture
def _little_memory():
    """Limit the memory of the process.

    Bytes reach `thaw` here without the check of their keyed hash, so a few of them may request gigabytes. Such a
    request must fail.
    """
    with open("/proc/self/statm") as statm:  # noqa: PTH123 - a pseudo-file
        used = int(statm.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**27, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def read_or_refuse(data):
    try:
        thaw(data, CLASSES)
    except StateDamagedError:
        return False
    return True


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited the Linux way")
def test_mutated_bytes_are_refused_or_change_no_class():
    dice, original, outcomes = random.Random(1), payload(), set()
    for _ in range(15000):
        data = bytearray(original)
        for _ in range(dice.randint(1, 4)):
            start = dice.randrange(len(data))
            match dice.randrange(4):
                case 0:
                    data[start] = dice.randrange(256)
                case 1:
                    del data[start : start + dice.randint(1, 8)]
                case 2:
                    data[start:start] = data[dice.randrange(len(data)) :][: dice.randint(1, 20)]
                case _:
                    data[start] = dice.choice(b"bR\x81\x92euaos(t0Nhrq\x94\x93cij\x82PQ")
        outcomes.add(read_or_refuse(bytes(data)))
        ran.clear()  # pickle may call `__setattr__` of a new instance; only changes to classes matter
    assert outcomes == {True, False}


def test_random_opcodes_are_refused_or_change_no_class():
    names = [name for _, name in operators.operators_of(CLASSES).find]
    dice, outcomes = random.Random(2), set()
    pieces = [
        *(op(name) for name in names),
        *(
            getattr(pickle, name)
            for name in ["MARK", "POP", "POP_MARK", "DUP", "NONE", "NEWTRUE", "EMPTY_LIST", "EMPTY_TUPLE", "EMPTY_DICT"]
        ),
        *(
            getattr(pickle, name)
            for name in ["EMPTY_SET", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "LIST", "DICT", "FROZENSET", "MEMOIZE"]
        ),
        *(
            getattr(pickle, name)
            for name in ["APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD", "OBJ", "NEWOBJ", "NEWOBJ_EX"]
        ),
        *(pickle.BINGET + bytes([index]) for index in range(6)),
        *(named(cls) for cls in (Color, Rights, Guarded, Thing, Slim, Word, Outside)),
        *map(put, ("RED", "Decimal", "number", "trap", 1, 2.5, FILLED, (None, {"trap": 1}), {"_value_": 3})),
        *(RED, NEW_GUARDED, call("new", named(Slim)), call("plain", "deque", 3), call("defaultdict", None)),
        *[pickle.REDUCE] * 8,
    ]
    for _ in range(30000):
        data = raw(b"".join(dice.choices(pieces, k=dice.randint(1, 14))))
        outcomes.add(read_or_refuse(data))
        ran.clear()
    assert outcomes == {True, False}


def test_the_reader_admits_nothing_from_another_table():
    data = freeze(Slim(), CLASSES)
    with pytest.raises(StateDamagedError):
        thaw(data, ClassTable([Guarded]))
    assert isinstance(thaw(data, CLASSES), Slim)
    assert io.BytesIO(data).read(2) == pickle.PROTO + b"\x05"
