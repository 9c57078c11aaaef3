"""A table of toolpacks with one mistake each, and of the lines that `check` prints about them."""

import re

from command_line import invoke

IMPORTS = """\
from typing import Annotated, Any, ClassVar; from pydantic import AfterValidator, BaseModel, Field, PrivateAttr
from toolpack_server import Database, Depends, EmptyEnv, Files, TaskEnvironment, Toolpack
class Words(TaskEnvironment): seen: list[str] = []
"""
"""The beginning of each toolpack in the table."""

UNNAMED = 'toolpack = Toolpack("p")\n'
"""The next line of a toolpack that uses `toolpack` without creating it."""

CASE = re.compile(r"^=== (\w+)\n((?:(?:says|call): .*\n(?:      .*\n)*)*)", re.MULTILINE)
"""The head of a case: its name, and its findings."""

FINDING = re.compile(r"(says|call): (.*\n(?:      .*\n)*)")
"""A line that `check` prints of the file: in any case, or only where it calls the functions."""

SUMMARY = re.compile(r"\d+ toolpacks? with \d+ functions?: no problems\.")


def check(*arguments):
    """Run `check`; return its exit status, its lines without details and summary, and all its output."""
    result = invoke("check", *arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    lines = [line for line in result.output.splitlines() if not line.startswith("    ")]
    return result.exit_code, [line for line in lines if not SUMMARY.fullmatch(line)], result.output


def assert_findings(folder, name, *, called):
    """Write a toolpack of `WRONG` under an unused module name, check it, and compare the printed lines."""
    code, findings = WRONG[name]
    file = folder / f"wrong_{name}.py"
    file.write_text(code, encoding="utf-8")
    expected = [text for when, text in findings if called or when == "says"]
    status, lines, output = check("--pack-dir", folder, "--calls" if called else "--no-calls")
    assert len(lines) == len(expected), output
    for line, text in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern(text, file), line), f"\n{line}\n{text}"
    assert status == (0 if all(text.startswith("note: ") for text in expected) else 1)
    assert bool(expected) == (output != "1 toolpack with 1 function: no problems.\n")
    assert "/toolpack_server/" not in output.partition("ImportError")[0]
    return expected


def pattern(finding, file):
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if mark := re.search(r"# (HERE|THERE)$", line):
            finding = re.sub(rf"\b{mark[1]}\b", f"FILE:{number}", finding)
    text = finding.replace("FILE", str(file)).replace("MODULE", file.stem)
    return ".*".join(map(re.escape, text.split("…")))


def read_table(table):
    """Return the code and the findings of each case, by its name."""
    _, *parts = CASE.split(table)
    cases = {}
    for name, findings, code in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        assert name not in cases, name
        begin = IMPORTS + (UNNAMED if "toolpack." in code and "toolpack = " not in code else "")
        texts = [(when, text.replace("\n      ", " ").strip()) for when, text in FINDING.findall(findings)]
        cases[name] = begin + code, texts
    return cases


def write(folder, name, code):
    folder.mkdir(exist_ok=True)
    (folder / f"wrong_{name}.py").write_text(code)
    return folder


def headed(name, code=""):
    return f'from toolpack_server import Toolpack\n\ntoolpack = Toolpack("{name}")\n{code}'


def sound(name):
    return headed(name, f'\n\n@toolpack.function\ndef f_{name}():\n    """Do it."""\n')


WRONG = read_table(r'''
=== args_docs_style
says: HERE: f: the docstring describes `z`, which isn't a parameter: correct or remove it.
@toolpack.function  # HERE
def f(x: int, y: int):
    """Do it.

    Args:
        x: X.
        z: Z.
    """
=== async_gen
call: HERE: f: its result has no JSON form (called with no arguments): a value of type async_generator has no JSON form:
      …: return plain values or models.
@toolpack.function  # HERE
async def f() -> Any:
    """Do it."""
    yield 1
=== asyncio_run
call: note: HERE: f: it raises RuntimeError: … in a new session.
import asyncio
async def g():
    return 1
@toolpack.function  # HERE
async def f() -> int:
    """Do it."""
    return asyncio.run(g())
=== attr_error
call: HERE: f: it raises AttributeError: … (called with no arguments): correct it.
toolpack = Toolpack("p", Words)
@toolpack.function  # HERE
def f(e: Annotated[Words, Depends(lambda env: env)]) -> int:
    """Do it."""
    return e.cuont
=== attr_set
call: HERE: f: it raises ValueError: "Words" object has no field "cuont" (called with no arguments): correct it.
toolpack = Toolpack("p", Words)
@toolpack.function  # HERE
def f(e: Annotated[Words, Depends(lambda env: env)]) -> None:
    """Do it."""
    e.cuont = 1
=== bad_hint_name
says: HERE: f: its type hints can't be read (name 'Nowhere' is not defined): import or correct the names.
@toolpack.function  # HERE
def f(x: "Nowhere"):
    """Do it.

    :param x: X.
    """
=== bad_name
says: HERE: Toolpack('my pack'): 'my pack' isn't a valid toolpack name: use 1-64 letters, digits, `_`, `.`, `-`.
toolpack = Toolpack("my pack")  # HERE
=== bad_type
says: HERE: f: no JSON Schema can be made of parameter `x` (pydantic doesn't know its type `C`): use a pydantic model, a
      dataclass or plain types.
class C: ...
@toolpack.function  # HERE
def f(x: C):
    """Do it.

    :param x: X.
    """
=== bound_classmethod
says: HERE: T.f: it is a method bound to an object, and all sessions would share that object: register a
      function and keep the state in the environment, or make a toolpack of the class with Toolpack.from_class.
class T:
    n = 0
    @classmethod  # HERE
    def f(cls, x: int):
        """Do it.

        :param x: X.
        """
        cls.n += x
        return cls.n
toolpack.register_function(T.f)
=== bound_method
says: HERE: T.f: it is a method bound to an object, and all sessions would share that object: register a
      function and keep the state in the environment, or make a toolpack of the class with Toolpack.from_class.
class T:
    n = 0
    def f(self, x: int):  # HERE
        """Do it.

        :param x: X.
        """
        self.n += x
        return self.n
toolpack.register_function(T().f)
=== cached_dict
call: note: HERE: note: it changes `toolpacks.MODULE.notes: what it caches`…, which all sessions share and no reset
      restores: keep it in the environment.
from functools import lru_cache
toolpack = Toolpack("cached_dict")
@lru_cache
def notes() -> dict:
    return {}
@lru_cache
def square(number: int) -> list:
    return [number * number]
@toolpack.function  # HERE
def note(word: str = "a") -> int:
    """Note a word in a cached dict.

    :param word: A word.
    """
    notes()[word] = len(notes()) + square(2)[0]
    return len(notes())
=== callable_instance
says: HERE: Toolpack('p'): <toolpacks.MODULE.T object at …> has no name: wrap it in a function with `def`.
class T:
    """Do it."""
    def __call__(self):
        return 1
toolpack.register_function(T())  # HERE
=== chdir
says: note: HERE: f: it changes the state of the process with `os.chdir`, which all sessions share: keep it in the
      environment.
import os
@toolpack.function
def f() -> None:
    """Do it."""
    os.chdir("/")  # HERE
=== class_var_written
call: note: HERE: f: it changes `toolpacks.MODULE.Env.log` (called with no arguments), which all sessions share and no
      reset restores: keep it in the environment.
class Env(TaskEnvironment):
    log: ClassVar[list[str]] = []
toolpack = Toolpack("p", Env)
@toolpack.function  # HERE
def f(env: Annotated[Env, Depends(lambda env: env)]) -> None:
    """Do it."""
    env.log.append("x")
=== class_with_lock
says: HERE: Bot: the initial environment of 'p' can't be used: `lock` can't be stored, its type is `_thread.lock`: it
      has state that can't be read; make it in the functions that need it.
import threading
class Bot:  # HERE
    def __init__(self):
        self.lock = threading.Lock()
    def go(self) -> int:
        """Go."""
        return 1
toolpack = Toolpack.from_class("p", Bot)
=== closure
says: note: HERE: make.<locals>.f: it changes `seen`, which all sessions share and no reset restores: keep it in the
      environment.
def make():
    seen = []
    def f() -> int:
        """Do it."""
        seen.append(1)  # HERE
        return len(seen)
    return f
toolpack.register_function(make())
=== coroutine_not_awaited
call: HERE: f: its result has no JSON form (called with no arguments): a value of type coroutine at /0 has no JSON form:
      …: return plain values or models.
async def g():
    return 1
@toolpack.function  # HERE
def f() -> Any:
    """Do it."""
    return [g()]
=== decorator_args_pos
says: HERE: Toolpack('p'): True isn't a function: write @toolpack.function(read_only=True).
@toolpack.function(True)  # HERE
def f(): """Do it."""
=== decorator_typo
says: HERE: TypeError: …: correct it, or move the file out of the folder.
@toolpack.function(readonly=True)  # HERE
def f(): """Do it."""
=== dep_callable_raises
call: HERE: f: it raises AttributeError: … (called with no arguments): correct it.
toolpack = Toolpack("p", Words)
@toolpack.function  # HERE
def f(s: Annotated[Any, Depends(lambda env: env.nothing)]) -> None: """Do it."""
=== dep_missing
says: HERE: f: parameter `s` depends on `sen`, which Words doesn't have: correct the name in Depends or add the field.
toolpack = Toolpack("p", Words)
@toolpack.function  # HERE
def f(s: Annotated[list, Depends("sen")]): """Do it."""
=== dep_nameless
says: HERE: f: parameter `s` has a Depends without a name: give the name of the attribute, such as Depends('seen').
toolpack = Toolpack("p", Words)
@toolpack.function  # HERE
def f(s: Annotated[list, Depends()]): """Do it."""
=== dep_number
says: HERE: f: parameter `s` depends on 3: give Depends the name of an attribute of the environment, or a function of
      the environment.
toolpack = Toolpack("p", Words)
@toolpack.function  # HERE
def f(s: Annotated[list, Depends(3)]) -> int:
    """Do it."""
    return 1
=== depends_bare
says: HERE: f: parameter `s` has its Depends in the wrong place: annotate it with Annotated[<type>, Depends(...)].
toolpack = Toolpack("p", Words)
@toolpack.function  # HERE
def f(s: Depends("seen")) -> None: """Do it."""
=== depends_class_var
says: HERE: f: parameter `log` depends on `log`, a class variable, which all sessions would share: make it
      a field.
class Env(TaskEnvironment):
    log: ClassVar[list[str]] = []
toolpack = Toolpack("p", Env)
@toolpack.function  # HERE
def f(log: Annotated[list[str], Depends("log")]) -> None:
    """Do it."""
    log.append("x")
=== depends_no_annotated
says: HERE: f: parameter `s` has its Depends in the wrong place: annotate it with Annotated[<type>, Depends(...)].
toolpack = Toolpack("p", Words)
@toolpack.function  # HERE
def f(s: list[str] = Depends("seen")) -> None:
    """Do it."""
    s.append("x")
=== depends_wrong_type
call: note: HERE: f: parameter `s` is annotated `dict[str, int]`, but env.seen is `list`: correct one of the two.
toolpack = Toolpack("p", Words)
@toolpack.function  # HERE
def f(s: Annotated[dict[str, int], Depends("seen")]) -> int:
    """Do it."""
    return len(s)
=== doc_dep
says: HERE: f: the docstring describes `s`, which comes from the environment: remove it, agents don't pass it.
toolpack = Toolpack("p", Words)
@toolpack.function  # HERE
def f(s: Annotated[list[str], Depends("seen")]):
    """Do it.

    :param s: S.
    """
=== duplicate_param
says: HERE: SyntaxError: …: correct it, or move the file out of the folder.
@toolpack.function
def f(x, x):  # HERE
    """Do it."""
=== empty_desc
says: HERE: f: the docstring doesn't describe parameter `x`: add a description.
@toolpack.function  # HERE
def f(x: int):
    """Do it.

    :param x:
    """
=== endless
call: note: HERE: f: it didn't end within … s when it was called with made-up arguments: set timeout_seconds, or add
      examples to the schema that take less time.
@toolpack.function  # HERE
def f() -> None:
    """Do it."""
    while True:
        pass
=== endless_import
says: HERE: its import takes longer than … s at HERE: do this in a function.
while True: pass  # HERE
=== env_bad_default
says: note: HERE: Env: the field `a` starts with a value that doesn't fit its type (Input should be a valid integer,
      unable to parse string as an integer): correct one of the two.
class Env(TaskEnvironment):  # HERE
    a: int = "x"
toolpack = Toolpack("p", Env)
@toolpack.function
def ok(): """Do it."""
=== env_bytes
says: HERE: Env: the initial environment of 'p' can be stored but not shown, so get_environment and diff_environment
      would fail: a value of type bytes at /a has no JSON form: Error serializing to JSON: …: keep it in a private
      attribute (PrivateAttr), or use another type.
class Env(TaskEnvironment):  # HERE
    a: bytes = b"\xff\xfe"
toolpack = Toolpack("p", Env)
=== env_cycle
says: HERE: make: the initial environment of 'p' can be stored but not shown, so get_environment and diff_environment
      would fail: a value of type list at /a/0 has no JSON form: it refers to itself: keep it in a private attribute
      (PrivateAttr), or use another type.
class Env(TaskEnvironment):
    a: list[Any] = []
def make() -> Env:  # HERE
    """Make."""
    e = Env()
    e.a.append(e.a)
    return e
toolpack = Toolpack("p", make)
=== env_dict
says: HERE: Toolpack('p'): the environment is neither a pydantic model class nor a factory function of one: give a class
      derived from TaskEnvironment, or a function that makes one.
toolpack = Toolpack("p", {"a": 1})  # HERE
=== env_forward
says: HERE: Env: the initial environment of 'p' can't be used: Toolpack 'p' can't build its environment:
      PydanticUserError: …
class Env(TaskEnvironment):  # HERE
    a: "Nowhere" = None
toolpack = Toolpack("p", Env)
=== env_frame
says: HERE: Unable to generate pydantic-core schema for <class 'queue.Queue'>: an environment holds plain values, models
      and dataclasses. Keep a data frame in `Files`, or create such an object in the functions that need it.
import queue
# Pydantic's own advice, arbitrary_types_allowed=True, leads to an environment that can't be stored.
class Env(TaskEnvironment):  # HERE
    a: queue.Queue
toolpack = Toolpack("p", Env)
=== env_generator
says: HERE: Env: the initial environment of 'p' can't be used: `a` can't be stored, its type is `generator`: it has
      state that can't be read; make it in the functions that need it.
class Env(TaskEnvironment):  # HERE
    a: Any = Field(default_factory=lambda: (i for i in ()))
toolpack = Toolpack("p", Env)
=== env_holds_lock
says: HERE: Env: the initial environment of 'p' can't be used: `a` can't be stored, its type is `queue.Queue`: in it
      `mutex`, a `_thread.lock`, can't be: it has state that can't be read; make it in the functions that need it.
import queue
class Env(TaskEnvironment):  # HERE
    a: Any = Field(default_factory=queue.Queue)
toolpack = Toolpack("p", Env)
=== env_instance
says: HERE: Toolpack('p'): the environment is an instance of Words, which all sessions would share: give the class, or a
      function that makes one.
toolpack = Toolpack("p", Words())  # HERE
=== env_lambda
says: HERE: Env: the initial environment of 'p' can't be used: `a` can't be stored, its type is `function`: code isn't
      state; store its name and look the function up.
class Env(TaskEnvironment):  # HERE
    a: Any = lambda: 1
toolpack = Toolpack("p", Env)
=== env_lock
says: HERE: Env: the initial environment of 'p' can't be used: `a` can't be stored, its type is `_thread.lock`: it has
      state that can't be read; make it in the functions that need it.
import threading
class Env(TaskEnvironment):  # HERE
    a: Any = Field(default_factory=threading.Lock)
toolpack = Toolpack("p", Env)
=== env_none
says: HERE: Toolpack('p'): the environment is neither a pydantic model class nor a factory function of one: give a class
      derived from TaskEnvironment, or a function that makes one.
toolpack = Toolpack("p", None)  # HERE
=== env_not_shown
says: HERE: Env: the initial environment of 'p' can be stored but not shown, so get_environment and diff_environment
      would fail: a value of type Random at /r has no JSON form: …: keep it in a private attribute (PrivateAttr), or use
      another type.
import random
class Env(TaskEnvironment, arbitrary_types_allowed=True):  # HERE
    r: random.Random = Field(default_factory=lambda: random.Random(1))
toolpack = Toolpack("p", Env)
=== env_plain_class
says: HERE: Toolpack('p'): Env is not a pydantic model: derive it from TaskEnvironment, or use Toolpack.from_class
      instead of Toolpack.
class Env: ...
toolpack = Toolpack("p", Env)  # HERE
=== env_plain_object
says: HERE: Env: the initial environment of 'p' can't be used: `a` can't be stored, its type is
      `toolpacks.MODULE.Thing`: its class is neither in the environment's annotations nor in the toolpack's
      `state_types`, nor a plain type. Add its class to state_types, or store another value.
class Thing: ...
class Env(TaskEnvironment):  # HERE
    a: Any = Field(default_factory=Thing)
toolpack = Toolpack("p", Env)
=== env_required
says: HERE: Env: the initial environment of 'p' can't be used: Toolpack 'p' can't build its environment: a: Field
      required: give each field a default that fits, or build it in a factory.
class Env(TaskEnvironment):  # HERE
    a: int
toolpack = Toolpack("p", Env)
=== env_unannotated
says: HERE: PydanticUserError: …: correct it, or move the file out of the folder.
class Env(TaskEnvironment):  # HERE
    a = []
toolpack = Toolpack("p", Env)
=== environ
says: note: HERE: f: it changes the state of the process with `os.environ`, which all sessions share: keep it in the
      environment.
import os
@toolpack.function
def f() -> None:
    """Do it."""
    os.environ["A_THING"] = "1"  # HERE
=== exits
call: HERE: f: it raises SystemExit (called with no arguments): raise an ordinary exception.
import sys
@toolpack.function  # HERE
def f() -> None:
    """Do it."""
    sys.exit(3)
=== extra_doc
says: HERE: f: the docstring describes `y`, which isn't a parameter: correct or remove it.
@toolpack.function  # HERE
def f():
    """Do it.

    :param y: Y.
    """
=== factory_async
says: HERE: make: the factory is async: make it an ordinary function.
async def make() -> EmptyEnv:  # HERE
    """Make."""
    return EmptyEnv()
toolpack = Toolpack("p", make)
=== factory_depends
says: HERE: make: the factory has a Depends parameter: there is no environment yet to depend on.
toolpack = Toolpack("p", Words)
def make(n: Annotated[list[str], Depends("seen")]) -> Words:  # HERE
    """Make."""
    return Words()
other = Toolpack("q", make)
=== factory_hint
says: HERE: make: its type hints can't be read (name 'Nowhere' is not defined): import or correct the names.
def make() -> "Nowhere":  # HERE
    """Make."""
    return EmptyEnv()
toolpack = Toolpack("p", make)
=== factory_never_ends
says: HERE: make: building the initial environment of 'p' takes longer than … s at THERE: make it faster, or do this in
      a function.
import time
def make() -> Words:  # HERE
    """Make."""
    time.sleep(1000)  # THERE
toolpack = Toolpack("p", make)
=== factory_no_return
says: HERE: make: the factory's return annotation is not a pydantic model class: annotate it with one.
def make():  # HERE
    return EmptyEnv()
toolpack = Toolpack("p", make)
=== factory_raises
says: HERE: make: the initial environment of 'p' can't be used: Toolpack 'p' can't build its environment: KeyError: 'x',
      raised at THERE: correct it.
def make() -> Words:  # HERE
    """Make."""
    return {}["x"]  # THERE
toolpack = Toolpack("p", make)
=== factory_random
says: note: HERE: make: two initial environments from the same options differ (a: values differ: …): use a random.Random
      with a seed and fixed times, so that sessions start alike.
import random
class Env(TaskEnvironment):
    a: float = 0
def make() -> Env:  # HERE
    """Make."""
    return Env(a=random.random())
toolpack = Toolpack("p", make)
@toolpack.function
def ok(): """Do it."""
=== factory_returns_none
says: HERE: make: the initial environment of 'p' can't be used: Toolpack 'p' built a NoneType, not the Words that its
      factory's return annotation names: correct one of the two.
def make() -> Words:  # HERE
    """Make."""
toolpack = Toolpack("p", make)
=== factory_undocumented
says: HERE: make: parameter `n` has no default and no description: add one to the docstring.
def make(n: int) -> Words:  # HERE
    """Make."""
    return Words()
toolpack = Toolpack("p", make)
=== factory_wrong_return
says: HERE: make: the initial environment of 'p' can't be used: Toolpack 'p' built a EmptyEnv, not the Words that its
      factory's return annotation names: correct one of the two.
def make() -> Words:  # HERE
    """Make."""
    return EmptyEnv()
toolpack = Toolpack("p", make)
=== from_server_wrong
says: HERE: ImportError: …: correct it, or move the file out of the folder.
from toolpack_server import Toolpak  # HERE
=== function_attr
says: note: HERE: f: it changes `f`, which all sessions share and no reset restores: keep it in the environment.
@toolpack.function
def f() -> int:
    """Do it."""
    f.n = getattr(f, "n", 0) + 1  # HERE
    return f.n
=== functions_single
says: HERE: Toolpack('p'): functions is <function f at …>: give a list of functions.
def f(): """Do it."""
toolpack = Toolpack("p", EmptyEnv, f)  # HERE
=== global_class_attr
says: note: HERE: f: it changes `Tally`, which all sessions share and no reset restores: keep it in the environment.
class Tally:
    n = 0
@toolpack.function
def f() -> int:
    """Do it."""
    Tally.n += 1  # HERE
    return Tally.n
=== global_counter
says: note: HERE: f: it changes `IDS`, which all sessions share and no reset restores: keep it in the environment.
import itertools
IDS = itertools.count()
@toolpack.function
def f() -> int:
    """Do it."""
    return next(IDS)  # HERE
=== global_dict
says: note: HERE: f: it changes `CACHE`, which all sessions share and no reset restores: keep it in the environment.
CACHE = {}
@toolpack.function
def f(k: str) -> int:
    """Do it.

    :param k: K.
    """
    CACHE[k] = 1  # HERE
    return 1
=== global_helper
says: note: HERE: f: it changes `LOG`, which all sessions share and no reset restores: keep it in the environment.
LOG = []
def note(x):
    LOG.append(x)  # HERE
@toolpack.function
def f() -> int:
    """Do it."""
    note(1)
    return 1
=== global_list
says: note: HERE: f: it changes `LOG`, which all sessions share and no reset restores: keep it in the environment.
LOG = []
@toolpack.function
def f() -> int:
    """Do it."""
    LOG.append(1)  # HERE
    return len(LOG)
=== global_object
says: note: HERE: f: it changes `STATE`, which all sessions share and no reset restores: keep it in the environment.
class Tally:
    n = 0
STATE = Tally()
@toolpack.function
def f() -> int:
    """Do it."""
    STATE.n += 1  # HERE
    return STATE.n
=== global_stmt
says: note: HERE: f: it changes `N`, which all sessions share and no reset restores: keep it in the environment.
N = 0
@toolpack.function
def f() -> int:
    """Do it."""
    global N
    N += 1  # HERE
    return N
=== helper_default
call: note: HERE: note: it changes `toolpacks.MODULE.remember: defaults`…, which all sessions share and no reset
      restores: keep it in the environment.
toolpack = Toolpack("helper_default")
def remember(word: str, words: list[str] = []) -> int:
    words.append(word)
    return len(words)
@toolpack.function  # HERE
def note(word: str = "a") -> int:
    """Note a word in the default of a helper.

    :param word: A word.
    """
    return remember(word)
=== hidden_global
call: note: HERE: f: it changes `toolpacks.MODULE.LOG` (called with no arguments), which all sessions share and no reset
      restores: keep it in the environment.
LOG = []
def lists():
    return LOG
@toolpack.function  # HERE
def f() -> None:
    """Do it."""
    lists().append("x")
=== hidden_sections
says: note: HERE: f: agents don't see the sections Examples, Raises, Returns of the docstrings of `f` and 1 more: say
      what they need above the parameters.
@toolpack.function  # HERE
def f(n: int) -> int:
    """Do it.

    Args:
        n: N.

    Returns:
        One more.

    Raises:
        ValueError: Never.

    Examples:
        >>> f(1)
    """
    return n + 1
@toolpack.function
def g() -> int:
    """Do it.

    :returns: One.
    """
    return 1
=== huge_result
call: note: HERE: f: it fails (called with no arguments): the result has 3000002 bytes as JSON; 1048576 are allowed.
      Return or keep less.
@toolpack.function  # HERE
def f() -> str:
    """Do it."""
    return "x" * 3_000_000
=== import_cycle
says: HERE: ModuleNotFoundError: No module named 'toolpacks.import_cycle': there is no import_cycle.py in the same
      folder: correct the name.
from toolpacks.import_cycle import nothing  # HERE
=== import_error
says: HERE: ModuleNotFoundError: No module named 'nowhere_at_all': install the package that has it, or correct the name.
import nowhere_at_all  # HERE
=== import_name_error
says: HERE: NameError: …: correct it, or move the file out of the folder.
Toolpak("p")  # HERE
=== import_time_call
says: HERE: TypeError: …: correct it, or move the file out of the folder.
class Env(TaskEnvironment):
    a: int = 1
toolpack = Toolpack("p", Env)
@toolpack.function
def f(a: Annotated[int, Depends("a")]) -> int:
    """Do it."""
    return a
f()  # HERE
=== indent
says: HERE: IndentationError: …: correct it, or move the file out of the folder.
def f():
return 1  # HERE
=== keeps_connection
call: note: HERE: f: it keeps the `sqlite3.Connection` of its call, or a part of that such as a cursor, which is closed
      when the call ends (called with no arguments): take the one of each call.
call: note: HERE: f: it changes `toolpacks.MODULE.READER` (called with no arguments), which all sessions share and no
      reset restores: keep it in the environment.
import sqlite3
class Env(TaskEnvironment):
    db: Database = Database("CREATE TABLE t (a)")
toolpack = Toolpack("p", Env)
class Reader:
    def __init__(self) -> None:
        def read(db: sqlite3.Connection) -> int:
            self.cursor = db.execute("SELECT count(*) FROM t")
            return self.cursor.fetchone()[0]
        self.read = read
READER = Reader()
@toolpack.function  # HERE
def f(db: Annotated[sqlite3.Connection, Depends("db")]) -> int:
    """Do it."""
    return READER.read(db)
=== key_error
call: note: HERE: f: it raises KeyError: 'x' in a new session.
class Env(TaskEnvironment):
    names: dict[str, int] = {}
toolpack = Toolpack("p", Env)
@toolpack.function  # HERE
def f(n: Annotated[dict[str, int], Depends("names")]) -> int:
    """Do it."""
    return n["x"]
=== kwargs
says: HERE: f: `**kw` takes any argument: name each parameter.
@toolpack.function  # HERE
def f(**kw): """Do it."""
=== lambda
says: HERE: <lambda>: it is a lambda, which has no name and no docstring: write a function with `def`.
toolpack.register_function(lambda: 1)  # HERE
=== late_import
call: HERE: f: it raises ModuleNotFoundError: No module named 'a_module_nowhere' (called with no arguments): correct it.
@toolpack.function  # HERE
def f() -> None:
    """Do it."""
    import a_module_nowhere
=== leaves_lambda
call: HERE: f: it leaves behind what can't be stored (called with no arguments): `seen[0]` can't be stored, its type is
      `function`: code isn't state; store its name and look the function up. Replace it by plain values.
toolpack = Toolpack("p", Words)
@toolpack.function  # HERE
def f(e: Annotated[Words, Depends(lambda env: env)]) -> None:
    """Do it."""
    e.seen.append(lambda: 1)
=== long_name
says: note: HERE: a_name_that_is_longer_than_the_names_that_several_providers_allow: agents of several providers can't
      call a function with this name: use at most 64 of the characters A-Z, a-z, 0-9, `_` and `-`.
@toolpack.function  # HERE
def a_name_that_is_longer_than_the_names_that_several_providers_allow() -> int:
    """Get it."""
    return 1
=== long_qualified_name
says: note: HERE: read_all_messages_of_the_oldest: beside a toolpack with a function of the same name it is called
      `a_collection_of_several_messengers__read_all_messages_of_the_oldest`, which has 67 characters, and agents of
      several providers can call at most 64: use a shorter name.
toolpack = Toolpack("a_collection_of_several_messengers")
@toolpack.function  # HERE
def read_all_messages_of_the_oldest() -> int:
    """Do it."""
    return 1
=== lost_parameter
says: note: HERE: f: agents don't see its optional parameter `m`, which has no description: describe it, or let its name
      begin with `_`.
@toolpack.function  # HERE
def f(n: int, m: int = 1, _l: int = 2) -> int:
    """Do it.

    :param n: N.
    """
    return n + m + _l
=== main_thread
says: note: HERE: f: it changes the state of the process with `signal.signal`, which all sessions share: keep it in the
      environment.
call: note: THERE: f: it raises ValueError: signal only works in main thread … in a new session.
import signal
@toolpack.function  # THERE
def f() -> int:
    """Do it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # HERE
    return 1
=== model_config_param
says: HERE: f: pydantic doesn't allow the parameter name `model_config`: rename it.
@toolpack.function  # HERE
def f(model_config: str):
    """Do it.

    :param model_config: X.
    """
    return model_config
=== model_no_field
call: HERE: f: it raises ValueError: "Account" object has no field "balence" (called with {"amount":1}): correct it.
class Account(BaseModel):
    balance: int = 1
class Env(TaskEnvironment):
    account: Account = Account()
toolpack = Toolpack("p", Env)
@toolpack.function  # HERE
def f(account: Annotated[Account, Depends("account")], amount: int) -> None:
    """Pay.

    :param amount: A.
    """
    account.balence = amount
=== name_error
call: HERE: f: it raises NameError: … (called with no arguments): correct it.
@toolpack.function  # HERE
def f() -> int:
    """Do it."""
    return cuont
=== name_not_str
says: HERE: Toolpack(5): 5 isn't a valid toolpack name: use 1-64 letters, digits, `_`, `.`, `-`.
toolpack = Toolpack(5)  # HERE
=== no_docstring
says: HERE: f: there is no docstring: add one whose first line says what the function does.
@toolpack.function  # HERE
def f(): ...
=== no_example
call: note: HERE: f: it wasn't called, because no arguments could be made from its schema: give examples, such as
      Annotated[str, Field(examples=['a'])].
def never(v):
    raise ValueError("no")
@toolpack.function  # HERE
def f(x: Annotated[str, AfterValidator(never)]) -> None:
    """Do it.

    :param x: X.
    """
=== no_functions
says: note: HERE: Toolpack('p'): it has no function: register some with @toolpack.function.
toolpack = Toolpack("p")  # HERE
=== no_hint
says: HERE: f: parameter `x` has no type hint: add one.
@toolpack.function  # HERE
def f(x):
    """Do it.

    :param x: X.
    """
=== no_json
call: HERE: f: its result has no JSON form (called with no arguments): a value of type object has no JSON form: …:
      return plain values or models.
@toolpack.function  # HERE
def f() -> Any:
    """Do it."""
    return object()
=== no_name
says: HERE: TypeError: …: correct it, or move the file out of the folder.
toolpack = Toolpack()  # HERE
=== no_short
says: HERE: f: the docstring has no short description: say in its first line what the function does.
@toolpack.function  # HERE
def f(x: int):
    """
    :param x: X.
    """
=== no_toolpack
says: FILE: the module has no Toolpack in a global variable: add one, or begin the file's name with `_`.
says: No toolpack was found: put modules into the folder, or name bundled ones: --packs bank,workspace.
x = 1
=== none_result
call: note: HERE: f: it returns `NoneType`, but its annotation says `int` (called with no arguments): correct one of the
      two.
@toolpack.function  # HERE
def f() -> int: """Do it."""
=== os_exit
says: HERE: SystemExit: the module ends the program when it is imported: put such code below `if __name__ ==
      "__main__":`, or move the file out of the folder.
import os
os._exit(0)  # HERE
=== os_exits
call: HERE: f: it ended the process (status 3), and with it a whole worker of the server: raise an exception.
import os
@toolpack.function  # HERE
def f() -> None:
    """Do it."""
    os._exit(3)
=== param_bad_default
call: note: HERE: f: the default of parameter `n` doesn't fit its type (Input should be a valid integer, unable to parse
      string as an integer): correct one of the two.
@toolpack.function  # HERE
def f(n: int = "x") -> str:
    """Do it.

    :param n: N.
    """
    return str(n)
=== partial
says: HERE: Toolpack('p'): functools.partial(<function g at …>, 1) has no name: wrap it in a function with `def`.
import functools
def g(x: int):
    """Do it.

    :param x: X.
    """
toolpack.register_function(functools.partial(g, 1))  # HERE
=== pos_only
says: HERE: f: parameter `x` is positional-only, but agents pass names: remove the `/`.
@toolpack.function  # HERE
def f(x: int, /):
    """Do it.

    :param x: X.
    """
=== raises_exit_type
call: HERE: f: it raises KeyboardInterrupt (called with no arguments): raise an ordinary exception.
@toolpack.function  # HERE
def f() -> None:
    """Do it."""
    raise KeyboardInterrupt
=== recursion
says: HERE: RecursionError: …: correct it, or move the file out of the folder.
def f():
    return f()  # HERE
f()
=== registers_class
says: HERE: T: it is a class: register functions, or make a toolpack of it with Toolpack.from_class.
class T:  # HERE
    """Do it."""
toolpack.register_function(T)
=== registers_string
says: HERE: Toolpack('p'): 'f' isn't a function: register a function.
toolpack.register_function("f")  # HERE
=== relative_import
says: HERE: ModuleNotFoundError: No module named 'toolpacks.helper': there is no helper.py in the same folder: correct
      the name.
from .helper import x  # HERE
=== return_type_no_schema
call: HERE: f: its result has no JSON form (called with no arguments): a value of type C has no JSON form: …: return
      plain values or models.
class C: ...
@toolpack.function  # HERE
def f() -> C:
    """Do it."""
    return C()
=== ro_append
call: HERE: f: it promises read_only=True but changes env.seen: [0] is new (called with no arguments): omit
      read_only=True, or change a copy.
toolpack = Toolpack("p", Words)
@toolpack.function(read_only=True)  # HERE
def f(s: Annotated[list[str], Depends("seen")]) -> int:
    """Do it."""
    s.append("x")
    return len(s)
=== ro_database
call: HERE: f: it promises read_only=True but writes to a database or to files (called with no arguments): omit
      read_only=True.
import sqlite3
class Env(TaskEnvironment):
    db: Database = Database("CREATE TABLE t (a)")
toolpack = Toolpack("p", Env)
@toolpack.function(read_only=True)  # HERE
def f(db: Annotated[sqlite3.Connection, Depends("db")]) -> None:
    """Do it."""
    db.execute("INSERT INTO t VALUES (1)")
=== ro_files
call: HERE: f: it promises read_only=True but writes to a database or to files (called with no arguments): omit
      read_only=True.
class Env(TaskEnvironment):
    papers: Files = Files({"a.txt": "a"})
toolpack = Toolpack("p", Env)
@toolpack.function(read_only=True)  # HERE
def f(papers: Annotated[Files, Depends("papers")]) -> None:
    """Do it."""
    papers.write_text("b.txt", "b")
=== ro_int
call: HERE: f: it promises read_only=True but changes env.count: values differ: … (called with no arguments): omit
      read_only=True, or change a copy.
class Env(TaskEnvironment):
    count: int = 0
toolpack = Toolpack("p", Env)
@toolpack.function(read_only=True)  # HERE
def f(e: Annotated[Env, Depends(lambda env: env)]) -> int:
    """Do it."""
    e.count += 1
    return e.count
=== ro_nested_model
call: HERE: f: it promises read_only=True but changes env.accounts['ann'].reads: values differ: … (called with
      {"who":"ann"}): omit read_only=True, or change a copy.
class Account(BaseModel):
    id: int = 7
    reads: int = 0
class Env(TaskEnvironment):
    accounts: dict[str, Account] = {"ann": Account()}
toolpack = Toolpack("p", Env)
@toolpack.function(read_only=True)  # HERE
def f(accounts: Annotated[dict[str, Account], Depends("accounts")], who: str) -> int:
    """Read.

    :param who: Who.
    """
    accounts[who].reads += 1
    return 1
=== ro_random
call: HERE: f: it promises read_only=True but changes env._random: values differ: Random became another Random (called
      with no arguments): omit read_only=True, or change a copy.
import random
class Env(TaskEnvironment):
    _random: random.Random = PrivateAttr(default_factory=lambda: random.Random(1))
toolpack = Toolpack("p", Env)
@toolpack.function(read_only=True)  # HERE
def f(r: Annotated[random.Random, Depends("_random")]) -> float:
    """Draw."""
    return r.random()
=== ro_setdefault
call: HERE: f: it promises read_only=True but changes env.names: ['text'] is new (called with {"who":"text"}): omit
      read_only=True, or change a copy.
class Env(TaskEnvironment):
    names: dict[str, int] = {}
toolpack = Toolpack("p", Env)
@toolpack.function(read_only=True)  # HERE
def f(n: Annotated[dict[str, int], Depends("names")], who: str) -> int:
    """Do it.

    :param who: W.
    """
    return n.setdefault(who, 0)
=== ro_with_args
call: HERE: f: it promises read_only=True but changes env.seen: [0] is new (called with {"word":"text"}): omit
      read_only=True, or change a copy.
toolpack = Toolpack("p", Words)
@toolpack.function(read_only=True)  # HERE
def f(s: Annotated[list[str], Depends("seen")], word: str) -> int:
    """Do it.

    :param word: W.
    """
    s.append(word)
    return len(s)
=== seed
says: note: HERE: f: it changes the state of the process with `random.seed`, which all sessions share: keep it in the
      environment.
import random
@toolpack.function
def f() -> None:
    """Do it."""
    random.seed(1)  # HERE
=== self_param
says: HERE: T.f: it is a method, as it has the parameter `self`: register a function, or make a toolpack of its class
      with Toolpack.from_class.
class T:
    @toolpack.function  # HERE
    def f(self, x: int):
        """Do it.

        :param x: X.
        """
        return x
=== sibling_import
says: HERE: ModuleNotFoundError: No module named 'shop_helper': install the package that has it, or correct the name.
import shop_helper  # HERE
=== sleeping_import
says: HERE: its import takes longer than … s at HERE: do this in a function.
import time
time.sleep(1000)  # HERE
=== sleeps
call: note: HERE: f: it didn't end within … s when it was called with made-up arguments: set timeout_seconds, or add
      examples to the schema that take less time.
import time
@toolpack.function  # HERE
def f() -> None:
    """Do it."""
    time.sleep(1000)
=== sound
toolpack = Toolpack("p", Words)
Seen = Annotated[list[str], Depends("seen")]
@toolpack.function
def ok(seen: Seen) -> int:
    """Do it."""
    return len(seen)
=== star_args
says: HERE: f: `*args` takes any argument: name each parameter.
@toolpack.function  # HERE
def f(*args): """Do it."""
=== state_type_instance
says: HERE: Toolpack('p'): state_types is [<toolpacks.MODULE.T object at …>]: give a list of classes.
class T: ...
toolpack = Toolpack("p", EmptyEnv, state_types=[T()])  # HERE
=== state_type_named
says: HERE: Toolpack('p'): state_types is [<built-in function print>]: give a list of classes.
toolpack = Toolpack("p", EmptyEnv, state_types=[print])  # HERE
=== state_type_single
says: HERE: Toolpack('p'): state_types is <class 'toolpacks.MODULE.T'>: give a list of classes.
class T: ...
toolpack = Toolpack("p", EmptyEnv, state_types=T)  # HERE
=== subscript_env_write
says: note: HERE: f: it changes the state of the process with `os.environ.pop`, which all sessions share: keep it in the
      environment.
import os
@toolpack.function
def f() -> None:
    """Do it."""
    os.environ.pop("HOME", None)  # HERE
=== syntax
says: HERE: SyntaxError: …: correct it, or move the file out of the folder.
def f(:  # HERE
=== sys_exit
says: HERE: SystemExit: the module ends the program when it is imported: put such code below `if __name__ ==
      "__main__":`, or move the file out of the folder.
import sys
sys.exit()  # HERE
=== sys_exit_0
says: HERE: SystemExit: the module ends the program when it is imported: put such code below `if __name__ ==
      "__main__":`, or move the file out of the folder.
raise SystemExit(0)  # HERE
=== tabs
says: HERE: TabError: …: correct it, or move the file out of the folder.
if True:
	x=1
        y=2  # HERE
=== thread_left
call: note: HERE: f: it leaves a thread at work (called with no arguments): wait for it, since what it does later is
      lost.
import threading
import time
toolpack = Toolpack("p", Words)
@toolpack.function  # HERE
def f(s: Annotated[list[str], Depends("seen")]) -> None:
    """Do it."""
    threading.Thread(target=lambda: time.sleep(5), daemon=True).start()
=== timeout_nan
says: HERE: f: timeout_seconds is nan: give a number of seconds above 0.
@toolpack.function(timeout_seconds=float("nan"))  # HERE
def f(): """Do it."""
=== timeout_str
says: HERE: f: timeout_seconds is '5': give a number of seconds above 0.
@toolpack.function(timeout_seconds="5")  # HERE
def f(): """Do it."""
=== timeout_zero
says: HERE: f: timeout_seconds is 0: give a number of seconds above 0.
@toolpack.function(timeout_seconds=0)  # HERE
def f(): """Do it."""
=== toolpack_in_function
says: FILE: the module has no Toolpack in a global variable: add one, or begin the file's name with `_`.
says: No toolpack was found: put modules into the folder, or name bundled ones: --packs bank,workspace.
def make():
    return Toolpack("p")
=== toolpack_in_list
says: FILE: the module has no Toolpack in a global variable: add one, or begin the file's name with `_`.
says: No toolpack was found: put modules into the folder, or name bundled ones: --packs bank,workspace.
packs = [Toolpack("p")]
=== toolpack_positional
says: HERE: Toolpack(<class 'toolpacks.MODULE.Words'>): <class 'toolpacks.MODULE.Words'> isn't a valid toolpack name:
      use 1-64 letters, digits, `_`, `.`, `-`.
toolpack = Toolpack(Words, "p")  # HERE
=== twice
says: HERE: ok: toolpack 'p' has a function 'ok' already: rename one.
@toolpack.function
def ok(): """Do it."""
@toolpack.function  # HERE
def ok(): """Do it."""
=== two_packs_same_name
says: HERE: Toolpack('p'): the name 'p' is taken by THERE: Toolpack('p'): rename one.
toolpack = Toolpack("p")  # THERE
@toolpack.function
def ok(): """Do it."""
other = Toolpack("p")  # HERE
=== type_error
call: HERE: f: it raises TypeError: … (called with no arguments): correct it.
toolpack = Toolpack("p", Words)
@toolpack.function  # HERE
def f(s: Annotated[list[str], Depends("seen")]) -> int:
    """Do it."""
    return s + 1
=== unbound_local
call: HERE: f: it raises UnboundLocalError: … (called with {"x":1}): correct it.
@toolpack.function  # HERE
def f(x: int) -> int:
    """Do it.

    :param x: X.
    """
    if x > 10**9:
        y = 1
    return y
=== underscore_param
says: HERE: f: pydantic doesn't allow the parameter name `_x`: rename it.
@toolpack.function  # HERE
def f(_x: str):
    """Do it.

    :param _x: X.
    """
    return _x
=== undocumented
says: HERE: f: parameter `x` has no default and no description: add one to the docstring.
@toolpack.function  # HERE
def f(x: int): """Do it."""
=== unportable_name
says: note: HERE: größe: agents of several providers can't call a function with this name: use at most 64 of the
      characters A-Z, a-z, 0-9, `_` and `-`.
@toolpack.function  # HERE
def größe() -> int:
    """Get it."""
    return 1
=== wrong_list_result
call: note: HERE: f: it returns `list` that doesn't fit at 1: Input should be a valid integer, but its annotation says
      `list[int]` (called with no arguments): correct one of the two.
@toolpack.function  # HERE
def f() -> list[int]:
    """Do it."""
    return [1, "x"]
=== wrong_result
call: note: HERE: f: it returns `str`, but its annotation says `int` (called with no arguments): correct one of the two.
@toolpack.function  # HERE
def f() -> int:
    """Do it."""
    return "x"
''')
"""Toolpacks that `check` finds fault with, but for `sound`.

A case has its name, what `check` prints, and the code after `IMPORTS`. HERE and THERE stand for the file and the number
of the line with that comment, FILE for the file, MODULE for its name, and `…` for any text.
"""
