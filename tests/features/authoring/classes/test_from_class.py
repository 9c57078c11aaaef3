"""Toolpacks made from plain classes: their functions, options, environments, and read-only declarations."""

import copy
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import foreign_classes as foreign
import pytest
import serving

from toolpack_server import Task, Toolpack
from toolpack_server.base.errors import RegistrationError
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.checks import initial_problem

FILES = Toolpack.from_class(
    "files", foreign.FileSystem, options="_load_scenario", read_only=["pwd", "ls", "cat", "find"]
)
SHOP = Toolpack.from_class(
    "shop",
    foreign.ShopTools,
    options=lambda: foreign.ShopTools(foreign.ShopDB.load()),
    exclude=lambda m: not hasattr(m, "__tool__"),
    read_only=lambda m: not m.__mutates_state__,
)
OFFICE = Toolpack.from_class("office", foreign.Office, read_only=["describe", "add"])
BOTH = Toolpack.from_classes(
    "both",
    {"files": foreign.FileSystem, "mail": foreign.MailBox},
    options={"files": "_load_scenario"},
    read_only=["files.ls", "pwd"],
)
LARGE = Toolpack.from_class("large", foreign.Large)
PACKS = {pack.name: pack for pack in (FILES, SHOP, OFFICE, BOTH, LARGE)}
CATALOG = Catalog(PACKS)
SCENARIO = {"root": {"home": {"a.txt": "b\na", "docs": {".hidden": "", "old.txt": "1\n2\n3"}}}}


@pytest.fixture(scope="module")
def bench():
    with serving.Bench(CATALOG) as server:
        yield server


def error(bench, session, function, **kwargs):
    return bench.call(session, function, **kwargs)["error"]


def environment(bench, session, **params):
    return bench.rpc("get_environment", session_id=session, **params)


@pytest.mark.parametrize("pack", PACKS.values(), ids=PACKS)
def test_initial_environment_can_be_stored_exactly_and_shown(pack):
    assert initial_problem(pack, CATALOG) is None


def test_functions_are_the_public_methods_with_a_docstring():
    names = "pwd ls cd mkdir touch echo cat find wc sort grep tail rm mv cp du"
    assert list(FILES.functions) == names.split()
    assert [name for name, f in FILES.functions.items() if f.read_only] == ["pwd", "ls", "cat", "find"]
    assert {name: f.read_only for name, f in SHOP.functions.items()} == {
        "cancel_order": False,
        "get_order": True,
        "calculate": True,
    }
    # Properties, other constructors and undocumented methods are left out. Inherited methods are included.
    assert set(OFFICE.functions) == {
        *("describe", "add", "how_many", "wait", "open_ticket", "block", "roll", "meet", "copy", "clean"),
    }
    assert len(LARGE.functions) == 120


def test_method_made_by_a_decorator_keeps_its_attribute_name():
    def offer(text):
        def call(self):
            return f"{text}, {type(self).__name__}"

        call.__doc__ = "Say something."
        return call

    class Box:
        say = offer("hello")

    function = Toolpack.from_class("box", Box).functions["say"].function
    assert (function.name, function.run.__name__) == ("say", "say")
    assert function.run.__qualname__.endswith("Box.say")


def test_descriptions_come_from_docstrings_and_type_hints(bench):
    described = {f["name"]: f for f in bench.rpc("list_functions", session_id=bench.create("files"))["result"]}
    assert described["cat"]["description"] == "Display the contents of a file."
    assert list(described["cat"]["parameters"]["properties"]) == ["file_name"]
    find = described["find"]["parameters"]["properties"]
    assert find["name"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert find["path"]["default"] == "."
    assert "type" not in described["touch"]["parameters"]["properties"]["file_name"]
    office = {f["name"]: f for f in bench.rpc("list_functions", session_id=bench.create("office"))["result"]}
    assert office["describe"]["description"] == "Describe the room."
    assert list(office["open_ticket"]["parameters"]["properties"]) == ["title", "priority", "tags"]
    assert office["clean"]["parameters"]["properties"]["thoroughly"]["description"].startswith("Whether")


def test_file_system_with_cyclic_references_is_stored_exactly(bench):
    session = bench.create("files", options={"files": {"scenario": SCENARIO}})
    assert bench.result(session, "ls") == {"current_directory_content": ["a.txt", "docs"]}
    assert bench.result(session, "sort", file_name="a.txt") == {"sorted_content": "a\nb"}
    bench.result(session, "cd", folder="docs")
    bench.result(session, "echo", content="new", file_name="new.txt")
    assert bench.result(session, "pwd") == {"current_working_directory": "/home/docs"}
    files_json = environment(bench, session)["files"]
    assert files_json == {
        "root": {
            "name": "home",
            "parent": None,
            "contents": {
                "a.txt": {"name": "a.txt", "content": "b\na"},
                "docs": {
                    "name": "docs",
                    "parent": {"$ref": "/root"},
                    "contents": {
                        ".hidden": {"name": ".hidden", "content": ""},
                        "old.txt": {"name": "old.txt", "content": "1\n2\n3"},
                        "new.txt": {"name": "new.txt", "content": "new"},
                    },
                },
            },
        },
        "long_context": False,
    }
    (change,) = bench.rpc("diff_environment", session_id=session, from_version=1)
    assert change["path"] == "/files/root/contents/docs/contents/new.txt"
    # The current folder is a private attribute. It remains the same object as the folder in the tree, also in a fork.
    (fork,) = bench.rpc("fork_session", session_id=session)
    bench.result(fork["session_id"], "rm", file_name="new.txt")
    assert environment(bench, session)["files"] == files_json
    assert "new.txt" not in str(environment(bench, fork["session_id"]))
    bench.rpc("reset_session", session_id=session, version=1)
    assert bench.result(session, "pwd") == {"current_working_directory": "/home"}


def test_options_method_runs_only_if_its_options_are_passed(bench):
    session = bench.create("files")
    assert environment(bench, session, pointer="/files/root/name") == "workspace"
    refused = serving.refused(-32602, bench.create, "files", options={"files": {"nope": 1}})
    assert "nope: Extra inputs are not permitted" in refused.data["detail"]
    session = bench.create("files", options={"files": {"scenario": SCENARIO, "long_context": True}})
    assert environment(bench, session, pointer="/files/long_context") is True


def test_tools_over_a_database_of_models(bench):
    session = bench.create("shop")
    assert bench.result(session, "calculate", expression="1 + 2") == "3.0"
    assert bench.result(session, "get_order", order_id="#1")["status"] == "pending"
    assert error(bench, session, "cancel_order", order_id="#9", reason="x") == "ValueError: Order not found"
    assert bench.result(session, "cancel_order", order_id="#1", reason="x")["status"] == "cancelled: x"
    assert environment(bench, session)["shop"]["db"]["orders"]["#1"]["status"] == "cancelled: x"
    assert bench.rpc("get_session", session_id=session)["version"] == 1


def test_documented_constructor_parameters_are_the_options(bench):
    described = {name: field.description for name, field in OFFICE.options.model_fields.items()}
    assert described == {"seed": "Of the dice.", "people": "Who works there."}
    session = bench.create("office", options={"office": {"people": ["eve"]}})
    assert bench.result(session, "describe") == "1 people"
    refused = serving.refused(-32602, bench.create, "office", options={"office": {"people": 5}})
    assert "people: Input should be a valid list" in refused.data["detail"]


def test_values_without_a_json_form_are_shown_by_their_type(bench):
    session = bench.create("office")
    assert environment(bench, session)["office"] == {
        "dice": {"$type": "random.Random"},
        "people": [
            {"friends": {"$ref": "/people"}, "name": "ann"},
            {"friends": [], "name": "bob"},
        ],
        "tickets": {},
        "grid": {"0,1": "desk"},
        "blob": {"$type": "bytes"},
        "cleaned": None,
    }
    rolls = [bench.result(session, "roll") for _ in range(5)]
    bench.rpc("reset_session", session_id=session, version=0)
    assert [bench.result(session, "roll") for _ in range(5)] == rolls


def test_methods_of_all_kinds_can_be_called(bench):
    session = bench.create("office")
    assert bench.result(session, "add", a=1) == 2
    assert bench.result(session, "how_many") == 10
    assert bench.result(session, "wait") == "done"
    assert environment(bench, session, pointer="/office/cleaned") == "waited"
    assert bench.result(session, "copy", json="a") == "a None"
    ticket = {"title": "t", "priority": 2, "tags": ["t"], "blocks": None}
    for _ in range(2):  # A mutable default is copied for each call.
        assert bench.result(session, "open_ticket", title="t", priority=2) == ticket
    assert bench.result(session, "meet", person={"name": "eve"}) == {"friends": [], "name": "eve"}
    bench.result(session, "open_ticket", title="u")
    bench.result(session, "block", title="t", by="u")
    assert environment(bench, session, pointer="/office/tickets/t/blocks/blocks") == {"$ref": "/tickets/t"}


def test_several_instances_in_one_toolpack(bench):
    assert {"files_ls", "mail_ls", "pwd", "send"} <= set(BOTH.functions)
    assert "ls" not in BOTH.functions
    assert [name for name, f in BOTH.functions.items() if f.read_only] == ["pwd", "files_ls"]
    options = {"both": {"files": {"scenario": SCENARIO}, "mail": {"owner": "eve"}}}
    session = bench.create("both", options=options)
    assert bench.result(session, "send", text="hi") == 1
    assert bench.result(session, "mail_ls") == [{"to": "bob", "text": "hi"}]
    assert bench.result(session, "files_ls") == {"current_directory_content": ["a.txt", "docs"]}
    both_json = environment(bench, session)["both"]
    assert both_json["mail"] == {"owner": "eve", "inbox": [{"to": "bob", "text": "hi"}]}
    assert both_json["files"]["root"]["contents"]["docs"].get("parent") == {"$ref": "/files/root"}
    # Each instance is its own part, so a call loads only the instance that it uses.
    assert environment(bench, bench.create("both"))["both"]["mail"]["owner"] == "ann"


def test_environment_of_a_plain_class_is_not_built_from_json(bench):
    refused = serving.refused(
        -32602, bench.rpc, "create_session", toolpacks=["files"], environment={"files": {"root": {}}}
    )
    assert "a FileSystem can't be made from JSON: use the toolpack's options" in refused.data["detail"]


def test_failed_call_changes_nothing(bench):
    session = bench.create("files", options={"files": {"scenario": SCENARIO}})
    assert error(bench, session, "mv", source="a.txt", destination=5).startswith("ValidationError: ")
    assert error(bench, session, "cat", file_name="nope") == "KeyError: 'nope'"
    assert bench.rpc("get_session", session_id=session)["version"] == 0


def test_from_class_leaves_the_class_unchanged():
    def attributes_of(kind):  # Since Python 3.14, reading annotations stores them in the class.
        return {name: value for name, value in vars(kind).items() if not name.startswith("__annot")}

    before = {kind: attributes_of(kind) for kind in vars(foreign).values() if isinstance(kind, type)}
    attributes = copy.copy(vars(foreign.FileSystem.ls))
    Catalog({"again": Toolpack.from_class("again", foreign.FileSystem)})
    enums = {foreign.Priority, foreign.ToolType}  # The members of enums are protected: see `ClassTable`.
    assert all(
        attributes_of(kind) == attributes_before for kind, attributes_before in before.items() if kind not in enums
    )
    assert vars(foreign.FileSystem.ls) == attributes


@dataclass
class Node:
    """A node of a ring."""

    following: "Node | None" = None

    def close(self) -> "Node":
        """Close the ring."""
        self.following = Node(self)
        return self


def test_dataclass_may_refer_to_itself(make_bench):
    bench = make_bench(Catalog({"ring": Toolpack.from_class("ring", Node)}))
    session = bench.create("ring", options={"ring": {}})
    assert bench.result(session, "close") == {"following": {"following": {"$ref": ""}}}
    assert environment(bench, session) == {"ring": {"following": {"following": {"$ref": ""}}}}


@dataclass
class Shelf:
    """A shelf.

    Attributes:
        books: What is on it.
    """

    books: list[str] = field(default_factory=list)
    _count: Iterator[int] = field(default_factory=itertools.count, repr=False)

    def add(self, title: str) -> int:
        """Add a book."""
        self.books.append(title)
        return next(self._count)


class Guarded:
    def __init__(self):
        self._lock = threading.Lock()
        self.handlers = {"go": self.go}
        self.went = 0

    def go(self):
        """Go."""
        with self._lock:
            self.went += 1
            return list(self.handlers)


class Storable(Guarded):
    _lock = property(lambda self: threading.Lock(), lambda self, lock: None)  # noqa: ARG005
    handlers = property(lambda self: {"go": self.go}, lambda self, handlers: None)  # noqa: ARG005


def test_default_factory_is_left_to_the_class(make_bench):
    bench = make_bench(Catalog({"shelf": Toolpack.from_class("shelf", Shelf)}))
    for books in ([], ["a"]):
        session = bench.create("shelf", options={"shelf": {"books": books} if books else {}})
        assert [bench.result(session, "add", title="b") for _ in range(2)] == [0, 1]
        assert environment(bench, session, pointer="/shelf/books") == [*books, "b", "b"]


def test_subclass_may_replace_unstorable_attributes(make_bench):
    packs = {"guarded": Toolpack.from_class("guarded", Guarded), "storable": Toolpack.from_class("storable", Storable)}
    bench = make_bench(Catalog(packs))
    assert "`_lock` can't be stored" in str(initial_problem(packs["guarded"], bench.service.sessions.catalog))
    session = bench.create("storable")
    assert bench.result(session, "go") == ["go"]
    assert environment(bench, session) == {"storable": {"went": 1}}


def test_task_compares_plain_objects(make_bench):
    files = Toolpack.from_class("files", foreign.FileSystem)
    files.add_task(Task("make", "Make a folder.", solution=[("mkdir", {"dir_name": "new"})]))
    bench = make_bench(Catalog({"files": files}))
    for name, reward in (("new", 1), ("other", 0)):
        session = bench.rpc("create_session", task="files/make")["session_id"]
        bench.result(session, "mkdir", dir_name=name)
        assert bench.rpc("evaluate_session", session_id=session)["reward"] == reward


def test_evaluator_gets_the_instance():
    instances = []

    def evaluate(rollout):
        instances.append(
            (rollout.initial, rollout.environment, rollout.at(0), rollout.replay([("mkdir", {"dir_name": "b"})]))
        )
        return True

    files = Toolpack.from_class("files", foreign.FileSystem)
    files.add_task(Task("make", "Make a folder.", evaluate=evaluate))
    bench = serving.Bench(Catalog({"files": files}))
    session = bench.rpc("create_session", task="files/make")["session_id"]
    bench.result(session, "mkdir", dir_name="a")
    assert bench.rpc("evaluate_session", session_id=session)["reward"] == 1
    bench.close()
    assert [[*files.root.contents] for files in instances[0]] == [[], ["a"], [], ["b"]]


class NoDefault:
    def __init__(self, db):
        self.db = db

    def go(self):
        """Go."""


class Holds:
    def __init__(self):
        self.now = {"callback": print}
        self.fields = {foreign.Person("x"): 1}

    def go(self):
        """Go."""


class KeyedByObjects:
    def __init__(self):
        self.fields = {foreign.Person("x"): 1}

    def go(self):
        """Go."""


class Odd:
    def anything(self, *names):
        """Take anything."""

    def positional(self, x, /):
        """Take one."""

    def typed(self, x: "Nowhere"):  # noqa: F821
        """Take a lock."""

    def item(self, x: type(lambda: 0)):
        """Take a function."""


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Toolpack.from_class("p", NoDefault), "parameter `db` has no default"),
        (lambda: Toolpack.from_class("p", NoDefault), "Pass options=: a function that returns an instance"),
        (lambda: Toolpack.from_class("p", foreign.MailBox("x")), "is not a class: pass the class itself"),
        (lambda: Toolpack.from_class("p", foreign.Person), "Person has no public method with a docstring"),
        (lambda: Toolpack.from_class("p", foreign.MailBox, read_only=["lss"]), "read_only names 'lss', which isn't a"),
        (lambda: Toolpack.from_class("p", foreign.MailBox, exclude="x"), "exclude names 'x', which isn't a method"),
        (lambda: Toolpack.from_class("p", foreign.MailBox, options="_load"), "options='_load': MailBox has no method"),
        (
            lambda: Toolpack.from_class("p", foreign.MailBox, read_only=lambda m: m.nope),
            "the predicate read_only fails for MailBox.ls (AttributeError: ",
        ),
        (lambda: Toolpack.from_class("p", Odd, exclude=["positional", "typed", "item"]), "`*names` takes any argument"),
        (lambda: Toolpack.from_class("p", Odd, exclude=["anything", "typed", "item"]), "`x` is positional-only"),
        (lambda: Toolpack.from_class("p", Odd, exclude=["anything", "positional", "item"]), "name 'Nowhere' is not"),
        (lambda: Toolpack.from_class("p", Odd, exclude=["anything", "positional", "typed"]), "exclude=['item']"),
        (lambda: Toolpack.from_classes("p", {"a b": foreign.MailBox}), "'a b' isn't a valid name of an instance"),
        (lambda: Toolpack.from_classes("p", {"a": foreign.MailBox}, options={"b": "x"}), "options has 'b'"),
        (
            lambda: Toolpack.from_classes("p", {"a": foreign.MailBox}, options="_load"),
            "options='_load' must be a dict by the names of the instances: write options={'a': '_load'}",
        ),
        (lambda: Toolpack.from_classes("p", [foreign.MailBox]), "give each instance a name"),
        (lambda: Toolpack.from_classes("p", {}), "give each instance a name"),
        (lambda: Toolpack.from_classes("p", {"a": foreign.MailBox}, exclude=["b.ls"]), "exclude names 'b.ls'"),
    ],
)
def test_unusable_class_is_rejected_with_the_remedy(make, says):
    with pytest.raises(RegistrationError) as refused:
        make()
    assert says in str(refused.value)
    assert str(refused.value).count(".py:") <= 2, "the location of the class and of the method, each once"


def test_unstorable_environment_is_rejected_with_its_path():
    packs = {
        "p": Toolpack.from_class("p", Holds),
        "q": Toolpack.from_class("q", KeyedByObjects, state_types=[foreign.Person]),
    }
    catalog = Catalog(packs)
    assert "`now['callback']` can't be stored" in str(initial_problem(packs["p"], catalog))
    assert "/fields has a key of type Person, which has no JSON form" in str(initial_problem(packs["q"], catalog))
