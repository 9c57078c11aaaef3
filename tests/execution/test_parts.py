"""Parts of environments: a call loads and stores only the parts in its footprint, with the same results."""

from functools import cached_property
from typing import Annotated, Any

import pytest
import serving
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, PrivateAttr

from toolpack_server import Depends, FunctionCall, FunctionsRuntime, TaskEnvironment, Toolpack
from toolpack_server.execution.call import call
from toolpack_server.execution.codec import Codec
from toolpack_server.execution.parts import divide, environments, holds, toolpack_of
from toolpack_server.execution.runtime import SessionRuntime
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.world import ExecutionContext
from toolpack_server.packs.catalog import Catalog
from toolpack_server.snapshots.comparison import difference
from toolpack_server.snapshots.pickling import freeze, thaw


class Note(BaseModel):
    text: str = ""
    replies: list["Note"] = Field(default_factory=list)


class Desk(TaskEnvironment):
    notes: list[Note] = Field(default_factory=list)
    pinned: list[Note] = Field(default_factory=list)
    drafts: list[Note] = Field(default_factory=list)
    names: set[str] = Field(default_factory=set)
    unused: list[int] = Field(default_factory=lambda: [1])
    _counter: list[int] = PrivateAttr(default_factory=lambda: [7])


Notes = Annotated[list[Note], Depends("notes")]
Pinned = Annotated[list[Note], Depends("pinned")]
Drafts = Annotated[list[Note], Depends("drafts")]
Names = Annotated[set[str], Depends("names")]


def add_note(notes: Notes, text: str) -> int:
    """Add a note.

    :param text: Its text.
    """
    notes.append(Note(text=text))
    return len(notes)


def last_note(notes: Notes) -> Note:
    """Return the last note itself, not a copy."""
    return notes[-1]


def pin(pinned: Pinned, note: Any) -> int:
    """Pin a note.

    :param note: The note.
    """
    pinned.append(note)
    return len(pinned)


def reply(note: Any, text: str) -> str:
    """Reply to a note, the result of an inner call.

    :param note: The note.
    :param text: The reply.
    """
    note.replies.append(Note(text=text))
    return note.text


def edit_pinned(pinned: Pinned, text: str) -> list[str]:
    """Edit all pinned notes.

    :param text: The text to add to each.
    """
    for note in pinned:
        note.text += text
    return [note.text for note in pinned]


def add_draft(drafts: Drafts, names: Names, name: str) -> int:
    """Add a draft and remember its name.

    :param name: Its name.
    """
    drafts.append(Note(text=name))
    names.add(name)
    if name == "bad":
        raise ValueError("bad")
    return len(names)


def count_notes(notes: Notes) -> int:
    """Count the notes."""
    return len(notes)


FUNCTIONS = [add_note, last_note, pin, reply, edit_pinned, add_draft]


def desk(*functions: Any, environment: Any = Desk) -> Toolpack:
    toolpack = Toolpack("desk", environment, [*FUNCTIONS, *functions])
    toolpack.function(read_only=True)(count_notes)
    return toolpack


def fields(parts: dict[str, Any]) -> set[str]:
    return {part.partition("/")[2] for part in parts}


def test_fields_used_by_one_function_are_one_part():
    assert fields(divide(desk(), Desk())) == {"notes", "pinned", "drafts,names", "unused"}


def test_fields_that_share_an_object_are_one_part():
    note = Note()
    shared = Desk(notes=[note], drafts=[Note(replies=[note])])
    shared.notes[0].replies.append(shared.drafts[0])
    assert shared.notes[0] is shared.drafts[0].replies[0]
    assert fields(divide(desk(), shared)) == {"notes,drafts,names", "pinned", "unused"}


def test_a_private_attribute_joins_the_part_of_a_shared_object():
    class Counting(Desk):
        pass

    environment = Counting()
    environment._counter = environment.names  # type: ignore[assignment]
    assert fields(divide(desk(environment=Counting), environment)) == {"notes", "pinned", "drafts,names,unused"}


def test_immutable_objects_may_be_shared_between_parts():
    assert len(divide(desk(), Desk(notes=[Note(text="a" * 50)], pinned=[Note(text="a" * 50)]))) == 4


class Knotted(TaskEnvironment):
    notes: list[Any] = Field(default_factory=list)
    pinned: list[Note] = Field(default_factory=list)
    drafts: list[Note] = Field(default_factory=list)
    names: set[str] = Field(default_factory=set)


def test_a_back_reference_makes_an_environment_one_part():
    environment = Knotted()
    environment.notes.append(environment)
    assert list(divide(desk(environment=Knotted), environment)) == ["desk"]


class Counted(Knotted):
    count: int = 0


def count_up(count: Annotated[int, Depends("count")]) -> int:
    """Return the count."""
    return count


def test_a_back_reference_reaches_immutable_fields_too():
    environment = Counted()
    environment.notes.append(environment)
    assert list(divide(desk(count_up, environment=Counted), environment)) == ["desk"]


def callable_dependency(desk: Annotated[Any, Depends(lambda env: env)]) -> int:
    """Return the whole environment."""
    return len(desk.notes)


def test_a_callable_dependency_makes_an_environment_one_part():
    assert list(divide(desk(callable_dependency), Desk())) == ["desk"]


class WithProperty(Desk):
    @property
    def both(self):
        return [self.notes, self.pinned]


def property_dependency(both: Annotated[Any, Depends("both")]) -> int:
    """Return a value that a property computes."""
    return len(both)


def test_a_property_dependency_makes_an_environment_one_part():
    assert list(divide(desk(property_dependency, environment=WithProperty), WithProperty())) == ["desk"]


class Remembering(Desk):
    @cached_property
    def count(self):
        return len(self.notes)


class Slotted(Desk):
    __slots__ = ("cursor",)


def remembering():
    environment = Remembering()
    assert environment.count == 0
    return environment


def slotted():
    environment = Slotted()
    object.__setattr__(environment, "cursor", 5)
    return environment


def in_another_order():
    environment = Desk()
    names = environment.__dict__.pop("names")
    environment.__dict__ = {"names": names, **environment.__dict__}
    return environment


def with_a_field_set_that_is_gone():
    environment = Desk()
    object.__setattr__(environment, "__pydantic_fields_set__", {"gone"})
    return environment


@pytest.mark.parametrize("make", [remembering, slotted, in_another_order, with_a_field_set_that_is_gone])
def test_an_environment_with_state_beside_its_fields_is_one_part(make):
    environment = make()
    toolpack = desk(environment=type(environment))
    parts = divide(toolpack, environment)
    assert list(parts) == ["desk"]
    assert parts["desk"] is environment
    assert len(divide(toolpack, type(environment)())) == (1 if make is slotted else 4)


def test_joined_parts_equal_the_environment():
    toolpack = desk()
    catalog = Catalog({"desk": toolpack})
    environment = Desk(notes=[Note(text="x")], names={"a", "b"})
    parts = divide(toolpack, environment)
    assert len(parts) == 4
    restored = {part: thaw(freeze(objects, catalog.classes), catalog.classes) for part, objects in parts.items()}
    assert difference(environment, environments(restored)["desk"]) is None


def test_parts_know_which_of_their_fields_were_set():
    environment = Desk(notes=[Note(text="x")], names={"a"})
    environment.unused = [2]
    parts = divide(desk(), environment)
    assert {part.partition("/")[2]: objects.model_fields_set for part, objects in parts.items()} == {
        "notes": {"notes"},
        "pinned": set(),
        "drafts,names": {"names"},
        "unused": {"unused"},
    }
    for order in (parts, dict(reversed(parts.items()))):
        desk_environment = environments(order)["desk"]
        assert desk_environment.model_fields_set == {"notes", "names", "unused"}
        assert list(desk_environment.__dict__) == list(Desk.model_fields)
        assert desk_environment._counter == [7]
    assert environment.model_fields_set == {"notes", "names", "unused"}


def test_a_session_in_parts_keeps_which_fields_were_set(parted):
    session = parted.create("desk", environment={"desk": {"notes": [{"text": "a"}], "names": ["n"]}})
    desk_environment = parted.world(session, 0)["desk"]
    assert (desk_environment.model_fields_set, desk_environment.notes[0].model_fields_set) == (
        {"notes", "names"},
        {"text"},
    )
    parted.result(session, "add_note", text="b")
    parted.result(session, "add_draft", name="c")
    desk_environment = parted.world(session, 2)["desk"]
    assert desk_environment.model_fields_set == {"notes", "names"}
    assert desk_environment.model_dump(exclude_unset=True) == {
        "notes": [{"text": "a"}, {"text": "b"}],
        "names": {"n", "c"},
    }


def test_a_part_is_named_after_its_toolpack_and_fields():
    assert toolpack_of("desk/notes,pinned") == toolpack_of("desk") == "desk"
    assert holds("desk", "anything")
    assert holds("desk/notes,pinned", "pinned")
    assert not holds("desk/notes,pinned", "note")


@pytest.fixture
def parted():
    with serving.Bench(Catalog({"desk": desk()})) as bench:
        yield bench


def sizes(bench, session_id):
    """Return the names of the parts that the last call wrote."""
    before = bench.store.parts_at(session_id, bench.version(session_id) - 1)
    after = bench.store.get(session_id)[1].parts
    return {part.partition("/")[2] for part in after if before[part] != after[part]}


def test_a_call_writes_only_what_it_reaches(parted):
    session = parted.create("desk")
    parted.result(session, "add_note", text="a")
    assert sizes(parted, session) == {"notes"}
    parted.result(session, "add_draft", name="b")
    assert sizes(parted, session) == {"drafts,names"}


def test_nested_calls_can_make_parts_share_objects(parted):
    session = parted.create("desk")
    parted.result(session, "add_note", text="a")
    parted.result(session, "pin", note={"$call": {"function": "last_note", "args": {}}})
    parted.result(session, "edit_pinned", text="!")
    world = parted.rpc("get_environment", session_id=session)["desk"]
    assert world["notes"][0]["text"] == world["pinned"][0]["text"] == "a!"
    parted.result(session, "add_note", text="b")
    assert parted.result(session, "count_notes") == 2


def test_a_function_may_change_an_inner_calls_result(parted):
    session = parted.create("desk")
    parted.result(session, "add_note", text="a")
    assert parted.result(session, "reply", note={"$call": {"function": "last_note", "args": {}}}, text="r") == "a"
    assert parted.rpc("get_environment", session_id=session, pointer="/desk/notes/0/replies/0/text") == "r"


def move_pins(notes: Notes, pinned: Pinned) -> int:
    """Move the pinned notes to the notes."""
    notes.extend(pinned)
    return len(notes)


def peek(notes: Notes, pinned: Pinned) -> int:
    """Count both."""
    return len(notes) + len(pinned)


def test_a_session_continues_when_an_edit_joins_two_parts(tmp_path, make_bench):
    url = f"sqlite:///{tmp_path / 'sessions.db'}"
    first = make_bench(Catalog({"desk": desk()}), url)
    session = first.create("desk")
    first.result(session, "add_note", text="a")
    first.result(session, "pin", note={"text": "p"})
    first.close()
    edited = desk(move_pins)
    edited.function(read_only=True)(peek)
    second = make_bench(Catalog({"desk": edited}), url)
    version = second.version(session)
    assert second.result(session, "peek") == 2
    assert second.version(session) == version
    assert second.result(session, "move_pins") == 2
    assert second.result(session, "add_note", text="c") == 3
    assert second.result(session, "peek") == 4
    world = second.rpc("get_environment", session_id=session)["desk"]
    assert [len(world[field]) for field in ("notes", "pinned", "unused")] == [3, 1, 1]
    assert second.rpc("reset_session", session_id=session, version=1)["version"] > version
    assert second.result(session, "peek") == 1


def remember(value: Any) -> Any:
    """Return the argument.

    :param value: Any value.
    """
    return value


@pytest.mark.parametrize(
    ("function", "kwargs"),
    [
        ("remember", {"value": {"$call": {"function": "peek", "args": {}}}}),
        ("peek", {}),
        ("move_pins", {}),
        ("add_note", {"text": "b"}),
        ("pin", {"note": {"$call": {"function": "last_note", "args": {}}}}),
    ],
)
def test_objects_after_a_call_equal_their_snapshot(function, kwargs):
    edited = desk(move_pins)
    edited.function(read_only=True)(peek)
    catalog = Catalog({"desk": edited, "other": Toolpack("other", functions=[remember])})
    codec = Codec(catalog, serving.KEY, 2**20, serving.NO_VOLUMES)
    parts = divide(desk(), Desk(notes=[Note(text="a")], pinned=[Note(text="p")]))
    blobs = {part: codec.encode(part, objects) for part, objects in parts.items()}
    assert len(blobs) == 4
    plan = SessionRuntime(catalog.functions(("desk", "other")), 30).plan(function, kwargs)
    ids, held_bytes = ({part: blob[index] for part, blob in blobs.items()} for index in (0, 1))
    outcome = call(plan, Snapshot(ids, held_bytes), ExecutionContext(codec, 2**20))
    assert outcome.failure is None
    assert outcome.live
    for part, objects in outcome.live.items():
        assert difference(objects, codec.decode(part, *outcome.blobs.get(part, blobs[part]))) is None


CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("add_note"), st.fixed_dictionaries({"text": st.sampled_from("abc")})),
        st.tuples(st.just("edit_pinned"), st.fixed_dictionaries({"text": st.sampled_from("xyz")})),
        st.tuples(st.just("add_draft"), st.fixed_dictionaries({"name": st.sampled_from(["n", "m", "bad"])})),
        st.tuples(st.just("count_notes"), st.just({})),
        st.tuples(st.just("pin"), st.just({"note": ("last_note", {})})),
        st.tuples(st.just("reply"), st.fixed_dictionaries({"note": st.just(("last_note", {})), "text": st.just("r")})),
    ),
    max_size=12,
)


@given(CALLS, st.sampled_from([0, 2**20]))
def test_a_session_in_parts_equals_a_whole_environment(calls, cache_bytes):
    bench = serving.Bench(Catalog({"desk": desk()}), cache_bytes=cache_bytes)
    environment, runtime = Desk(), FunctionsRuntime()
    for function in [*FUNCTIONS, count_notes]:
        runtime.register_function(function)
    try:
        session = bench.create("desk")
        catalog = bench.sessions.catalog
        for name, kwargs in calls:
            inner = {
                k: FunctionCall(function=v[0], args=v[1]) if isinstance(v, tuple) else v for k, v in kwargs.items()
            }
            wire = {
                k: {"$call": {"function": v[0], "args": v[1]}} if isinstance(v, tuple) else v for k, v in kwargs.items()
            }
            snapshot_bytes = freeze(environment, catalog.classes)
            _, error = runtime.run_function(environment, name, inner)
            if error:  # a session discards a failed call's changes
                environment = thaw(snapshot_bytes, catalog.classes)
            assert bench.call(session, name, **wire)["error"] == error
        version = bench.version(session)
        snapshot_bytes = bench.world(session, version)["desk"]
        assert difference(environment, snapshot_bytes) is None
    finally:
        bench.close()
