"""Wrong toolpacks, each with what `check` says of it; `…` stands for any text, FILE for the toolpack's file."""

from typing import NamedTuple


class Wrong(NamedTuple):
    code: str
    said: list[str]


HEAD = '''"""A pack."""
from typing import Annotated, Any
from pydantic import BaseModel, Field, PrivateAttr
from server import Depends, TaskEnvironment, Toolpack, EmptyEnv
'''

ENVIRONMENT = (
    HEAD
    + """


class Env(TaskEnvironment):
    seen: list[str] = []
    count: int = 0
    names: dict[str, int] = {}


toolpack = Toolpack("p", Env)
Seen = Annotated[list[str], Depends("seen")]
TheEnv = Annotated[Env, Depends(lambda env: env)]
"""
)


FUNCTION = '''
@toolpack.function
def ok():
    """Do it."""
'''


WRONG = {
    "no_docstring": Wrong(
        ENVIRONMENT
        + r"""
@toolpack.function
def f(): ...
""",
        [
            "FILE:18: f: there is no docstring: add one whose first line says what the function does.",
        ],
    ),
    "no_short": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(x: int):
    """
    :param x: X.
    """
''',
        [
            "FILE:18: f: the docstring has no short description: say in its first line what the function does.",
        ],
    ),
    "undocumented": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(x: int):
    """Do it."""
''',
        [
            "FILE:18: f: parameter `x` has no default and isn't described: describe it.",
        ],
    ),
    "extra_doc": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f():
    """Do it.

    :param y: Y.
    """
''',
        [
            "FILE:18: f: the docstring describes `y`, which is no parameter: correct or remove it.",
        ],
    ),
    "empty_desc": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(x: int):
    """Do it.

    :param x:
    """
''',
        [
            "FILE:18: f: the docstring says nothing of parameter `x`: describe it.",
        ],
    ),
    "doc_dep": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(s: Seen):
    """Do it.

    :param s: S.
    """
''',
        [
            (
                "FILE:18: f: the docstring describes `s`, which comes from the environment: remove it, agents don't "
                "pass it."
            ),
        ],
    ),
    "no_hint": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(x):
    """Do it.

    :param x: X.
    """
''',
        [
            "FILE:18: f: parameter `x` has no type hint: add one.",
        ],
    ),
    "star_args": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(*args):
    """Do it."""
''',
        [
            "FILE:18: f: `*args` takes any argument: name each parameter.",
        ],
    ),
    "kwargs": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(**kw):
    """Do it."""
''',
        [
            "FILE:18: f: `**kw` takes any argument: name each parameter.",
        ],
    ),
    "pos_only": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(x: int, /):
    """Do it.

    :param x: X.
    """
''',
        [
            "FILE:18: f: parameter `x` is positional-only, but agents pass names: remove the `/`.",
        ],
    ),
    "dep_missing": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(s: Annotated[list, Depends("sen")]):
    """Do it."""
''',
        [
            (
                "FILE:18: f: parameter `s` depends on `sen`, which Env doesn't have: correct the name in Depends or "
                "add the field."
            ),
        ],
    ),
    "bad_hint_name": Wrong(
        HEAD
        + r'''
toolpack=Toolpack("p")
@toolpack.function
def f(x: "Nowhere"):
    """Do it.

    :param x: X.
    """
''',
        [
            ("FILE:7: f: its type hints can't be read (name 'Nowhere' is not defined): import or correct the names."),
        ],
    ),
    "bad_type": Wrong(
        ENVIRONMENT
        + r'''
class C: pass
@toolpack.function
def f(x: C):
    """Do it.

    :param x: X.
    """
''',
        [
            (
                "FILE:19: f: no JSON Schema can be made of parameter `x` (nothing is known of its type `C`): use a "
                "pydantic model, a dataclass or plain types."
            ),
        ],
    ),
    "model_config_param": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(model_config: str):
    """Do it.

    :param model_config: X.
    """
    return model_config
''',
        [
            "FILE:18: f: pydantic takes no parameter with the name `model_config`: rename it.",
        ],
    ),
    "underscore_param": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(_x: str):
    """Do it.

    :param _x: X.
    """
    return _x
''',
        [
            "FILE:18: f: pydantic takes no parameter with the name `_x`: rename it.",
        ],
    ),
    "self_param": Wrong(
        ENVIRONMENT
        + r'''
class T:
    @toolpack.function
    def f(self, x: int):
        """Do it.

        :param x: X.
        """
        return x
''',
        [
            (
                "FILE:19: T.f: `self` shows that it is a method: register a function, or make a toolpack of its class"
                " with Toolpack.from_class."
            ),
        ],
    ),
    "bound_method": Wrong(
        ENVIRONMENT
        + r'''
class T:
    n = 0
    def f(self, x: int):
        """Do it.

        :param x: X.
        """
        self.n += x
        return self.n
toolpack.register_function(T().f)
''',
        [
            (
                "FILE:20: T.f: it is bound to an object, whose state all sessions would share: register a function "
                "and keep the state in the environment, or make a toolpack of the class with Toolpack.from_class."
            ),
        ],
    ),
    "bound_classmethod": Wrong(
        ENVIRONMENT
        + r'''
class T:
    n = 0
    @classmethod
    def f(cls, x: int):
        """Do it.

        :param x: X.
        """
        cls.n += x
        return cls.n
toolpack.register_function(T.f)
''',
        [
            (
                "FILE:20: T.f: it is bound to an object, whose state all sessions would share: register a function "
                "and keep the state in the environment, or make a toolpack of the class with Toolpack.from_class."
            ),
        ],
    ),
    "lambda": Wrong(
        ENVIRONMENT
        + r"""
toolpack.register_function(lambda: 1)
""",
        [
            "FILE:18: <lambda>: it is a lambda, which has no name and no docstring: write a function with `def`.",
        ],
    ),
    "partial": Wrong(
        ENVIRONMENT
        + r'''
import functools
def g(x: int):
    """Do it.

    :param x: X.
    """
toolpack.register_function(functools.partial(g, 1))
''',
        [
            (
                "FILE:24: Toolpack('p'): functools.partial(<function g at …>, 1) has no name: wrap it in a function "
                "with `def`."
            ),
        ],
    ),
    "callable_instance": Wrong(
        ENVIRONMENT
        + r'''
class T:
    """Do it."""
    def __call__(self): return 1
toolpack.register_function(T())
''',
        [
            ("FILE:21: Toolpack('p'): <toolpacks.MODULE.T object at …> has no name: wrap it in a function with `def`."),
        ],
    ),
    "registers_class": Wrong(
        ENVIRONMENT
        + r'''
class T:
    """Do it."""
toolpack.register_function(T)
''',
        [
            "FILE:18: T: it is a class: register functions, or make a toolpack of it with Toolpack.from_class.",
        ],
    ),
    "registers_string": Wrong(
        ENVIRONMENT
        + r"""
toolpack.register_function("f")
""",
        [
            "FILE:18: Toolpack('p'): 'f' is no function: register a function.",
        ],
    ),
    "decorator_args_pos": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function(True)
def f():
    """Do it."""
''',
        [
            "FILE:18: Toolpack('p'): True is no function: write @toolpack.function(read_only=True).",
        ],
    ),
    "decorator_typo": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function(readonly=True)
def f():
    """Do it."""
''',
        [
            "FILE:18: TypeError: …: correct it or move it away.",
        ],
    ),
    "timeout_zero": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function(timeout_seconds=0)
def f():
    """Do it."""
''',
        [
            "FILE:18: f: timeout_seconds is 0: give a number of seconds above 0.",
        ],
    ),
    "timeout_str": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function(timeout_seconds="5")
def f():
    """Do it."""
''',
        [
            "FILE:18: f: timeout_seconds is '5': give a number of seconds above 0.",
        ],
    ),
    "timeout_nan": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function(timeout_seconds=float("nan"))
def f():
    """Do it."""
''',
        [
            "FILE:18: f: timeout_seconds is nan: give a number of seconds above 0.",
        ],
    ),
    "twice": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def ok():
    """Do it."""
'''
        + FUNCTION,
        [
            "FILE:22: ok: toolpack 'p' has a function 'ok' already: rename one.",
        ],
    ),
    "two_packs_same_name": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def ok():
    """Do it."""
other = Toolpack("p")
''',
        [
            "FILE:21: Toolpack('p'): the name 'p' is taken by FILE:14: Toolpack('p'): rename one.",
        ],
    ),
    "no_functions": Wrong(
        ENVIRONMENT
        + r"""

""",
        [
            "note: FILE:14: Toolpack('p'): it has no function: register some with @toolpack.function.",
        ],
    ),
    "no_toolpack": Wrong(
        r'''"""Nothing."""
x = 1
''',
        [
            "FILE: it binds no Toolpack at module level: add one, or begin the file's name with `_`.",
            "No toolpack was found: put modules into the folder, or name bundled ones: --packs bank,workspace.",
        ],
    ),
    "toolpack_in_list": Wrong(
        HEAD
        + r"""
packs=[Toolpack("p")]
""",
        [
            "FILE: it binds no Toolpack at module level: add one, or begin the file's name with `_`.",
            "No toolpack was found: put modules into the folder, or name bundled ones: --packs bank,workspace.",
        ],
    ),
    "toolpack_in_function": Wrong(
        HEAD
        + r"""
def make():
    return Toolpack("p")
""",
        [
            "FILE: it binds no Toolpack at module level: add one, or begin the file's name with `_`.",
            "No toolpack was found: put modules into the folder, or name bundled ones: --packs bank,workspace.",
        ],
    ),
    "env_instance": Wrong(
        HEAD
        + r"""
class Env(TaskEnvironment): pass
toolpack = Toolpack("p", Env())
"""
        + FUNCTION,
        [
            (
                "FILE:7: Toolpack('p'): the environment is an instance of Env, which all sessions would share: give "
                "the class, or a function that makes one."
            ),
        ],
    ),
    "env_plain_class": Wrong(
        HEAD
        + r"""
class Env: pass
toolpack = Toolpack("p", Env)
"""
        + FUNCTION,
        [
            (
                "FILE:7: Toolpack('p'): Env is not a pydantic model: derive it from TaskEnvironment, or use "
                "Toolpack.from_class."
            ),
        ],
    ),
    "env_dict": Wrong(
        HEAD
        + r"""
toolpack = Toolpack("p", {"a": 1})
"""
        + FUNCTION,
        [
            (
                "FILE:6: Toolpack('p'): the environment is neither a pydantic model class nor a factory function of "
                "one: give a class derived from TaskEnvironment, or a function that makes one."
            ),
        ],
    ),
    "env_required": Wrong(
        HEAD
        + r"""
class Env(TaskEnvironment):
    a: int
toolpack = Toolpack("p", Env)
"""
        + FUNCTION,
        [
            (
                "FILE:6: Env: the initial environment of 'p' can't be used: Toolpack 'p' can't build its environment:"
                " a: Field required: give each field a default that fits, or build it in a factory."
            ),
        ],
    ),
    "env_none": Wrong(
        HEAD
        + r"""
toolpack = Toolpack("p", None)
"""
        + FUNCTION,
        [
            (
                "FILE:6: Toolpack('p'): the environment is neither a pydantic model class nor a factory function of "
                "one: give a class derived from TaskEnvironment, or a function that makes one."
            ),
        ],
    ),
    "env_bad_default": Wrong(
        HEAD
        + r"""
class Env(TaskEnvironment):
    a: int = "x"
toolpack = Toolpack("p", Env)
"""
        + FUNCTION,
        [
            (
                "note: FILE:6: Env: the field `a` starts with a value that doesn't fit its type (Input should be a "
                "valid integer, unable to parse string as an integer): correct one of the two."
            ),
        ],
    ),
    "env_unannotated": Wrong(
        HEAD
        + r"""
class Env(TaskEnvironment):
    a = []
toolpack = Toolpack("p", Env)
"""
        + FUNCTION,
        [
            "FILE:6: PydanticUserError: …: correct it or move it away.",
        ],
    ),
    "factory_no_return": Wrong(
        HEAD
        + r"""
def make():
    return EmptyEnv()
toolpack = Toolpack("p", make)
"""
        + FUNCTION,
        [
            "FILE:6: make: the factory's return annotation is not a pydantic model class: annotate it with one.",
        ],
    ),
    "factory_wrong_return": Wrong(
        HEAD
        + r'''
class Env(TaskEnvironment): pass
def make() -> Env:
    """Make."""
    return EmptyEnv()
toolpack = Toolpack("p", make)
'''
        + FUNCTION,
        [
            (
                "FILE:7: make: the initial environment of 'p' can't be used: Toolpack 'p' built a EmptyEnv, not the "
                "Env that its factory's return annotation names: correct one of the two."
            ),
        ],
    ),
    "factory_returns_none": Wrong(
        HEAD
        + r'''
class Env(TaskEnvironment): pass
def make() -> Env:
    """Make."""
toolpack = Toolpack("p", make)
'''
        + FUNCTION,
        [
            (
                "FILE:7: make: the initial environment of 'p' can't be used: Toolpack 'p' built a NoneType, not the "
                "Env that its factory's return annotation names: correct one of the two."
            ),
        ],
    ),
    "factory_raises": Wrong(
        HEAD
        + r'''
class Env(TaskEnvironment): pass
def make() -> Env:
    """Make."""
    return {}["x"]
toolpack = Toolpack("p", make)
'''
        + FUNCTION,
        [
            (
                "FILE:7: make: the initial environment of 'p' can't be used: Toolpack 'p' can't build its "
                "environment: KeyError: 'x', raised at FILE:9: correct it."
            ),
        ],
    ),
    "factory_undocumented": Wrong(
        HEAD
        + r'''
class Env(TaskEnvironment): pass
def make(n: int) -> Env:
    """Make."""
    return Env()
toolpack = Toolpack("p", make)
'''
        + FUNCTION,
        [
            "FILE:7: make: parameter `n` has no default and isn't described: describe it.",
        ],
    ),
    "factory_depends": Wrong(
        ENVIRONMENT
        + r'''
def make(n: Seen) -> Env:
    """Make."""
    return Env()
other = Toolpack("q", make)
''',
        [
            "FILE:18: make: the factory has a Depends parameter: there is no environment yet to depend on.",
        ],
    ),
    "factory_never_ends": Wrong(
        HEAD
        + r'''
import time
class Env(TaskEnvironment): pass
def make() -> Env:
    """Make."""
    time.sleep(1000)
toolpack = Toolpack("p", make)
'''
        + FUNCTION,
        [
            (
                "FILE:8: make: the initial environment of 'p' isn't built: the initial environment takes longer than "
                "… s at FILE:10: do this in a function, or not at all."
            ),
        ],
    ),
    "factory_random": Wrong(
        HEAD
        + r'''
import random
class Env(TaskEnvironment):
    a: float = 0
def make() -> Env:
    """Make."""
    return Env(a=random.random())
toolpack = Toolpack("p", make)
'''
        + FUNCTION,
        [
            (
                "note: FILE:9: make: two initial environments from the same options differ (a: values differ: …): use"
                " a random.Random with a seed and fixed times, so that sessions start alike."
            ),
        ],
    ),
    "env_lambda": Wrong(
        HEAD
        + r"""
class Env(TaskEnvironment):
    a: Any = lambda: 1
toolpack = Toolpack("p", Env)
"""
        + FUNCTION,
        [
            (
                "FILE:6: Env: the initial environment of 'p' can't be used: `a` can't be stored, its type is "
                "`function`: code isn't state; store its name and look the function up."
            ),
        ],
    ),
    "env_lock": Wrong(
        HEAD
        + r"""
import threading
class Env(TaskEnvironment):
    a: Any = Field(default_factory=threading.Lock)
toolpack = Toolpack("p", Env)
"""
        + FUNCTION,
        [
            (
                "FILE:7: Env: the initial environment of 'p' can't be used: `a` can't be stored, its type is "
                "`_thread.lock`: it has state that can't be read; make it in the functions that need it."
            ),
        ],
    ),
    "env_plain_object": Wrong(
        HEAD
        + r"""
class Thing: pass
class Env(TaskEnvironment):
    a: Any = Field(default_factory=Thing)
toolpack = Toolpack("p", Env)
"""
        + FUNCTION,
        [
            (
                "FILE:7: Env: the initial environment of 'p' can't be used: `a` can't be stored, its type is "
                "`toolpacks.MODULE.Thing`: its class is neither in the environment's annotations nor in the "
                "toolpack's `state_types`, nor a plain type. Name its class in state_types, or keep something else."
            ),
        ],
    ),
    "env_generator": Wrong(
        HEAD
        + r"""
class Env(TaskEnvironment):
    a: Any = Field(default_factory=lambda: (i for i in ()))
toolpack = Toolpack("p", Env)
"""
        + FUNCTION,
        [
            (
                "FILE:6: Env: the initial environment of 'p' can't be used: `a` can't be stored, its type is "
                "`generator`: it has state that can't be read; make it in the functions that need it."
            ),
        ],
    ),
    "env_not_shown": Wrong(
        HEAD
        + r"""
import random
class Env(TaskEnvironment, arbitrary_types_allowed=True):
    r: random.Random = Field(default_factory=lambda: random.Random(1))
toolpack = Toolpack("p", Env)
"""
        + FUNCTION,
        [
            (
                "FILE:7: Env: the initial environment of 'p' can be stored but not shown, so get_environment and "
                "diff_environment would fail: a value of type Env has no JSON form: …: keep it in a private attribute"
                " (PrivateAttr), or use another type."
            ),
        ],
    ),
    "env_cycle": Wrong(
        HEAD
        + r'''
class Env(TaskEnvironment):
    a: list[Any] = []
def make() -> Env:
    """Make."""
    e = Env()
    e.a.append(e.a)
    return e
toolpack = Toolpack("p", make)
'''
        + FUNCTION,
        [
            (
                "FILE:8: make: the initial environment of 'p' can be stored but not shown, so get_environment and "
                "diff_environment would fail: a value that refers to itself or is nested too deeply has no JSON form:"
                " keep it in a private attribute (PrivateAttr), or use another type."
            ),
        ],
    ),
    "env_bytes": Wrong(
        HEAD
        + r"""
class Env(TaskEnvironment):
    a: bytes = b"\xff\xfe"
toolpack = Toolpack("p", Env)
"""
        + FUNCTION,
        [
            (
                "FILE:6: Env: the initial environment of 'p' can be stored but not shown, so get_environment and "
                "diff_environment would fail: a value of type Env has no JSON form: Error serializing to JSON: …: "
                "keep it in a private attribute (PrivateAttr), or use another type."
            ),
        ],
    ),
    "state_type_instance": Wrong(
        HEAD
        + r"""
class T: pass
toolpack = Toolpack("p", EmptyEnv, state_types=[T()])
"""
        + FUNCTION,
        [
            "FILE:7: Toolpack('p'): state_types is [<toolpacks.MODULE.T object at …>]: give a list of classes.",
        ],
    ),
    "state_type_single": Wrong(
        HEAD
        + r"""
class T: pass
toolpack = Toolpack("p", EmptyEnv, state_types=T)
"""
        + FUNCTION,
        [
            "FILE:7: Toolpack('p'): state_types is <class 'toolpacks.MODULE.T'>: give a list of classes.",
        ],
    ),
    "state_type_named": Wrong(
        HEAD
        + r"""
toolpack = Toolpack("p", EmptyEnv, state_types=[print])
"""
        + FUNCTION,
        [
            "FILE:6: Toolpack('p'): state_types is [<built-in function print>]: give a list of classes.",
        ],
    ),
    "bad_name": Wrong(
        HEAD
        + r"""
toolpack = Toolpack("my pack")
"""
        + FUNCTION,
        [
            (
                "FILE:6: Toolpack('my pack'): 'my pack' is no valid toolpack name: use 1-64 letters, digits, `_`, "
                "`.`, `-`."
            ),
        ],
    ),
    "name_not_str": Wrong(
        HEAD
        + r"""
toolpack = Toolpack(5)
"""
        + FUNCTION,
        [
            "FILE:6: Toolpack(5): 5 is no valid toolpack name: use 1-64 letters, digits, `_`, `.`, `-`.",
        ],
    ),
    "no_name": Wrong(
        HEAD
        + r"""
toolpack = Toolpack()
"""
        + FUNCTION,
        [
            "FILE:6: TypeError: …: correct it or move it away.",
        ],
    ),
    "functions_single": Wrong(
        HEAD
        + r'''
def f():
    """Do it."""
toolpack = Toolpack("p", EmptyEnv, f)
''',
        [
            "FILE:8: Toolpack('p'): functions is <function f at …>: give a list of functions.",
        ],
    ),
    "import_error": Wrong(
        r"""import nowhere_at_all
""",
        [
            (
                "FILE:1: ModuleNotFoundError: No module named 'nowhere_at_all': install the package that has it, or "
                "correct the name."
            ),
        ],
    ),
    "import_name_error": Wrong(
        HEAD
        + r"""
Toolpak("p")
""",
        [
            "FILE:6: NameError: …: correct it or move it away.",
        ],
    ),
    "from_server_wrong": Wrong(
        r"""from server import Toolpak
""",
        [
            "FILE:1: ImportError: …: correct it or move it away.",
        ],
    ),
    "relative_import": Wrong(
        HEAD
        + r"""
from .helper import x
""",
        [
            (
                "FILE:6: ModuleNotFoundError: No module named 'toolpacks.helper': there is no helper.py beside it: "
                "correct the name."
            ),
        ],
    ),
    "sibling_import": Wrong(
        HEAD
        + r"""
import shop_helper
""",
        [
            (
                "FILE:6: ModuleNotFoundError: No module named 'shop_helper': install the package that has it, or "
                "correct the name."
            ),
        ],
    ),
    "syntax": Wrong(
        HEAD
        + r"""
def f(:
""",
        [
            "FILE:6: SyntaxError: …: correct it or move it away.",
        ],
    ),
    "indent": Wrong(
        HEAD
        + r"""
def f():
return 1
""",
        [
            "FILE:7: IndentationError: …: correct it or move it away.",
        ],
    ),
    "tabs": Wrong(
        HEAD
        + r"""
if True:
	x=1
        y=2
""",
        [
            "FILE:8: TabError: …: correct it or move it away.",
        ],
    ),
    "sys_exit": Wrong(
        HEAD
        + r"""
import sys
sys.exit()
""",
        [
            (
                "FILE:7: SystemExit: the module ends the program when it is imported: put such code below `if "
                '__name__ == "__main__":`, or move the file out of the folder.'
            ),
        ],
    ),
    "sys_exit_0": Wrong(
        HEAD
        + r"""
raise SystemExit(0)
""",
        [
            (
                "FILE:6: SystemExit: the module ends the program when it is imported: put such code below `if "
                '__name__ == "__main__":`, or move the file out of the folder.'
            ),
        ],
    ),
    "os_exit": Wrong(
        HEAD
        + r"""
import os
os._exit(0)
""",
        [
            (
                "FILE:7: SystemExit: the module ends the program when it is imported: put such code below `if "
                '__name__ == "__main__":`, or move the file out of the folder.'
            ),
        ],
    ),
    "endless_import": Wrong(
        HEAD
        + r"""
while True: pass
""",
        [
            "FILE:6: its import takes longer than … s at FILE:6: do this in a function, or not at all.",
        ],
    ),
    "sleeping_import": Wrong(
        HEAD
        + r"""
import time
time.sleep(1000)
""",
        [
            "FILE:7: its import takes longer than … s at FILE:7: do this in a function, or not at all.",
        ],
    ),
    "import_cycle": Wrong(
        HEAD
        + r"""
from toolpacks.import_cycle import nothing
""",
        [
            (
                "FILE:6: ModuleNotFoundError: No module named 'toolpacks.import_cycle': there is no import_cycle.py "
                "beside it: correct the name."
            ),
        ],
    ),
    "recursion": Wrong(
        HEAD
        + r"""
def f(): return f()
f()
""",
        [
            "FILE:6: RecursionError: …: correct it or move it away.",
        ],
    ),
    "ro_append": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function(read_only=True)
def f(s: Seen) -> int:
    """Do it."""
    s.append("x")
    return len(s)
''',
        [
            (
                "FILE:18: f: it promises read_only=True but changes env.seen: [0] is new "
                "(called with no arguments): leave out read_only=True, or change a copy."
            ),
        ],
    ),
    "ro_with_args": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function(read_only=True)
def f(s: Seen, word: str) -> int:
    """Do it.

    :param word: W.
    """
    s.append(word)
    return len(s)
''',
        [
            (
                "FILE:18: f: it promises read_only=True but changes env.seen: [0] is new "
                '(called with {"word":"text"}): leave out read_only=True, or change a copy.'
            ),
        ],
    ),
    "ro_int": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function(read_only=True)
def f(e: TheEnv) -> int:
    """Do it."""
    e.count += 1
    return e.count
''',
        [
            (
                "FILE:18: f: it promises read_only=True but changes env.count: values differ: … (called with no "
                "arguments): leave out read_only=True, or change a copy."
            ),
        ],
    ),
    "ro_setdefault": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function(read_only=True)
def f(n: Annotated[dict[str,int], Depends("names")], who: str) -> int:
    """Do it.

    :param who: W.
    """
    return n.setdefault(who, 0)
''',
        [
            (
                "FILE:18: f: it promises read_only=True but changes env.names: ['text'] is new "
                '(called with {"who":"text"}): leave out read_only=True, or change a copy.'
            ),
        ],
    ),
    "global_stmt": Wrong(
        ENVIRONMENT
        + r'''
N = 0
@toolpack.function
def f() -> int:
    """Do it."""
    global N
    N += 1
    return N
''',
        [
            (
                "note: FILE:23: f: it changes `N`, which all sessions share and no reset restores: keep it in the "
                "environment."
            ),
        ],
    ),
    "global_list": Wrong(
        ENVIRONMENT
        + r'''
LOG = []
@toolpack.function
def f() -> int:
    """Do it."""
    LOG.append(1)
    return len(LOG)
''',
        [
            (
                "note: FILE:22: f: it changes `LOG`, which all sessions share and no reset restores: keep it in the "
                "environment."
            ),
        ],
    ),
    "global_dict": Wrong(
        ENVIRONMENT
        + r'''
CACHE = {}
@toolpack.function
def f(k: str) -> int:
    """Do it.

    :param k: K.
    """
    CACHE[k] = 1
    return 1
''',
        [
            (
                "note: FILE:25: f: it changes `CACHE`, which all sessions share and no reset restores: keep it in the"
                " environment."
            ),
        ],
    ),
    "global_object": Wrong(
        ENVIRONMENT
        + r'''
class O:
    n = 0
STATE = O()
@toolpack.function
def f() -> int:
    """Do it."""
    STATE.n += 1
    return STATE.n
''',
        [
            (
                "note: FILE:24: f: it changes `STATE`, which all sessions share and no reset restores: keep it in the"
                " environment."
            ),
        ],
    ),
    "global_helper": Wrong(
        ENVIRONMENT
        + r'''
LOG = []
def note(x):
    LOG.append(x)
@toolpack.function
def f() -> int:
    """Do it."""
    note(1)
    return 1
''',
        [
            (
                "note: FILE:20: f: it changes `LOG`, which all sessions share and no reset restores: keep it in the "
                "environment."
            ),
        ],
    ),
    "global_class_attr": Wrong(
        ENVIRONMENT
        + r'''
class O:
    n = 0
@toolpack.function
def f() -> int:
    """Do it."""
    O.n += 1
    return O.n
''',
        [
            (
                "note: FILE:23: f: it changes `O`, which all sessions share and no reset restores: keep it in the "
                "environment."
            ),
        ],
    ),
    "global_counter": Wrong(
        ENVIRONMENT
        + r'''
import itertools
IDS = itertools.count()
@toolpack.function
def f() -> int:
    """Do it."""
    return next(IDS)
''',
        [
            (
                "note: FILE:23: f: it changes `IDS`, which all sessions share and no reset restores: keep it in the "
                "environment."
            ),
        ],
    ),
    "function_attr": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f() -> int:
    """Do it."""
    f.n = getattr(f, "n", 0) + 1
    return f.n
''',
        [
            (
                "note: FILE:21: f: it changes `f`, which all sessions share and no reset restores: keep it in the "
                "environment."
            ),
        ],
    ),
    "closure": Wrong(
        ENVIRONMENT
        + r'''
def make():
    seen = []
    def f() -> int:
        """Do it."""
        seen.append(1)
        return len(seen)
    return f
toolpack.register_function(make())
''',
        [
            (
                "note: FILE:22: make.<locals>.f: it changes `seen`, which all sessions share and no reset restores: "
                "keep it in the environment."
            ),
        ],
    ),
    "environ": Wrong(
        ENVIRONMENT
        + r'''
import os
@toolpack.function
def f() -> None:
    """Do it."""
    os.environ["A_THING"] = "1"
''',
        [
            (
                "note: FILE:22: f: it changes the state of the process with `os.environ`, which all sessions share: "
                "keep it in the environment."
            ),
        ],
    ),
    "chdir": Wrong(
        ENVIRONMENT
        + r'''
import os
@toolpack.function
def f() -> None:
    """Do it."""
    os.chdir("/")
''',
        [
            (
                "note: FILE:22: f: it changes the state of the process with `os.chdir`, which all sessions share: "
                "keep it in the environment."
            ),
        ],
    ),
    "seed": Wrong(
        ENVIRONMENT
        + r'''
import random
@toolpack.function
def f() -> None:
    """Do it."""
    random.seed(1)
''',
        [
            (
                "note: FILE:22: f: it changes the state of the process with `random.seed`, which all sessions share: "
                "keep it in the environment."
            ),
        ],
    ),
    "wrong_result": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f() -> int:
    """Do it."""
    return "x"
''',
        [
            (
                "note: FILE:18: f: it returns `str`, but its annotation says `int` (called with no arguments): "
                "correct one of the two."
            ),
        ],
    ),
    "none_result": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f() -> int:
    """Do it."""
''',
        [
            (
                "note: FILE:18: f: it returns `NoneType`, but its annotation says `int` (called with no arguments): "
                "correct one of the two."
            ),
        ],
    ),
    "no_json": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f() -> Any:
    """Do it."""
    return object()
''',
        [
            (
                "FILE:18: f: its result has no JSON form (called with no arguments): a value of type object has no "
                "JSON form: …: return plain values or models."
            ),
        ],
    ),
    "async_gen": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
async def f() -> Any:
    """Do it."""
    yield 1
''',
        [
            (
                "FILE:18: f: its result has no JSON form (called with no arguments): a value of type async_generator "
                "has no JSON form: …: return plain values or models."
            ),
        ],
    ),
    "coroutine_not_awaited": Wrong(
        ENVIRONMENT
        + r'''
async def g(): return 1
@toolpack.function
def f() -> Any:
    """Do it."""
    return [g()]
''',
        [
            (
                "FILE:19: f: its result has no JSON form (called with no arguments): a value of type list has no JSON"
                " form: …: return plain values or models."
            ),
        ],
    ),
    "return_type_no_schema": Wrong(
        ENVIRONMENT
        + r'''
class C: pass
@toolpack.function
def f() -> C:
    """Do it."""
    return C()
''',
        [
            (
                "FILE:19: f: its result has no JSON form (called with no arguments): a value of type C has no JSON "
                "form: …: return plain values or models."
            ),
        ],
    ),
    "huge_result": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f() -> str:
    """Do it."""
    return "x" * 3_000_000
''',
        [
            (
                "note: FILE:18: f: it fails (called with no arguments): the result has 3000002 bytes as JSON; 1048576"
                " are allowed. Return or keep less."
            ),
        ],
    ),
    "name_error": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f() -> int:
    """Do it."""
    return cuont
''',
        [
            "FILE:18: f: it raises NameError: … (called with no arguments): correct it.",
        ],
    ),
    "attr_error": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(e: TheEnv) -> int:
    """Do it."""
    return e.cuont
''',
        [
            "FILE:18: f: it raises AttributeError: … (called with no arguments): correct it.",
        ],
    ),
    "attr_set": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(e: TheEnv) -> None:
    """Do it."""
    e.cuont = 1
''',
        [
            (
                'FILE:18: f: it raises ValueError: "Env" object has no field "cuont" (called with no arguments): '
                "correct it."
            ),
        ],
    ),
    "type_error": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(s: Seen) -> int:
    """Do it."""
    return s + 1
''',
        [
            "FILE:18: f: it raises TypeError: … (called with no arguments): correct it.",
        ],
    ),
    "key_error": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(n: Annotated[dict[str,int], Depends("names")]) -> int:
    """Do it."""
    return n["x"]
''',
        [
            "note: FILE:18: f: it raises KeyError: 'x' in a new session.",
        ],
    ),
    "endless": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f() -> None:
    """Do it."""
    while True: pass
''',
        [
            (
                "note: FILE:18: f: it didn't end within … s when it was called with made-up arguments: give it a "
                "timeout_seconds, or examples in the schema that take less."
            ),
        ],
    ),
    "sleeps": Wrong(
        ENVIRONMENT
        + r'''
import time
@toolpack.function
def f() -> None:
    """Do it."""
    time.sleep(1000)
''',
        [
            (
                "note: FILE:19: f: it didn't end within … s when it was called with made-up arguments: give it a "
                "timeout_seconds, or examples in the schema that take less."
            ),
        ],
    ),
    "exits": Wrong(
        ENVIRONMENT
        + r'''
import sys
@toolpack.function
def f() -> None:
    """Do it."""
    sys.exit(3)
''',
        [
            "FILE:19: f: it raises SystemExit (called with no arguments): raise an ordinary exception.",
        ],
    ),
    "os_exits": Wrong(
        ENVIRONMENT
        + r'''
import os
@toolpack.function
def f() -> None:
    """Do it."""
    os._exit(3)
''',
        [
            (
                "FILE:19: f: it ended the process (status 3), and with it a whole worker of the server: raise an "
                "exception."
            ),
        ],
    ),
    "leaves_lambda": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(e: TheEnv) -> None:
    """Do it."""
    e.seen.append(lambda: 1)
''',
        [
            (
                "FILE:18: f: it leaves behind what can't be stored (called with no arguments): `seen[0]` can't be "
                "stored, its type is `function`: code isn't state; store its name and look the function up. Replace "
                "it by plain values."
            ),
        ],
    ),
    "dep_callable_raises": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(s: Annotated[Any, Depends(lambda env: env.nothing)]) -> None:
    """Do it."""
''',
        [
            "FILE:18: f: it raises AttributeError: … (called with no arguments): correct it.",
        ],
    ),
    "depends_no_annotated": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(s: list[str] = Depends("seen")) -> None:
    """Do it."""
    s.append("x")
''',
        [
            (
                "FILE:18: f: parameter `s` has its Depends in the wrong place: annotate it with Annotated[<type>, "
                "Depends(...)]."
            ),
        ],
    ),
    "depends_wrong_type": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(s: Annotated[dict[str,int], Depends("seen")]) -> int:
    """Do it."""
    return len(s)
''',
        [
            (
                "note: FILE:18: f: parameter `s` is annotated `dict[str, int]`, but env.seen is `list`: correct one "
                "of the two."
            ),
        ],
    ),
    "asyncio_run": Wrong(
        ENVIRONMENT
        + r'''
import asyncio
async def g(): return 1
@toolpack.function
async def f() -> int:
    """Do it."""
    return asyncio.run(g())
''',
        [
            "note: FILE:20: f: it raises RuntimeError: … in a new session.",
        ],
    ),
    "thread_left": Wrong(
        ENVIRONMENT
        + r'''
import threading,time
@toolpack.function
def f(s: Seen) -> None:
    """Do it."""
    threading.Thread(target=lambda: time.sleep(5), daemon=True).start()
''',
        [
            (
                "note: FILE:19: f: it leaves a thread at work (called with no arguments): wait for it, since what it "
                "does later is lost."
            ),
        ],
    ),
    "param_bad_default": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(n: int = "x") -> str:
    """Do it.

    :param n: N.
    """
    return str(n)
''',
        [
            (
                "note: FILE:18: f: the default of parameter `n` doesn't fit its type (Input should be a valid "
                "integer, unable to parse string as an integer): correct one of the two."
            ),
        ],
    ),
    "factory_async": Wrong(
        HEAD
        + r'''
async def make() -> EmptyEnv:
    """Make."""
    return EmptyEnv()
toolpack = Toolpack("p", make)
'''
        + FUNCTION,
        [
            "FILE:6: make: the factory is async: make it an ordinary function.",
        ],
    ),
    "factory_hint": Wrong(
        HEAD
        + r'''
def make() -> "Nowhere":
    """Make."""
    return EmptyEnv()
toolpack = Toolpack("p", make)
'''
        + FUNCTION,
        [
            (
                "FILE:6: make: its type hints can't be read (name 'Nowhere' is not defined): import or correct the "
                "names."
            ),
        ],
    ),
    "depends_bare": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(s: Depends("seen")) -> None:
    """Do it."""
''',
        [
            (
                "FILE:18: f: parameter `s` has its Depends in the wrong place: annotate it with Annotated[<type>, "
                "Depends(...)]."
            ),
        ],
    ),
    "depends_class_var": Wrong(
        HEAD
        + r'''
from typing import ClassVar
class Env(TaskEnvironment):
    log: ClassVar[list[str]] = []
toolpack = Toolpack("p", Env)
@toolpack.function
def f(log: Annotated[list[str], Depends("log")]) -> None:
    """Do it."""
    log.append("x")
''',
        [
            (
                "FILE:10: f: parameter `log` depends on `log`, a class variable, which all sessions share: make it a "
                "field."
            ),
        ],
    ),
    "class_var_written": Wrong(
        HEAD
        + r'''
from typing import ClassVar
class Env(TaskEnvironment):
    log: ClassVar[list[str]] = []
toolpack = Toolpack("p", Env)
@toolpack.function
def f(env: Annotated[Env, Depends(lambda env: env)]) -> None:
    """Do it."""
    env.log.append("x")
''',
        [
            (
                "note: FILE:10: f: it changes `toolpacks.MODULE.Env.log` (called with no arguments), which all "
                "sessions share and no reset restores: keep it in the environment."
            ),
        ],
    ),
    "hidden_global": Wrong(
        ENVIRONMENT
        + r'''
LOG = []
def lists():
    return LOG
@toolpack.function
def f() -> None:
    """Do it."""
    lists().append("x")
''',
        [
            (
                "note: FILE:21: f: it changes `toolpacks.MODULE.LOG` (called with no arguments), which all sessions "
                "share and no reset restores: keep it in the environment."
            ),
        ],
    ),
    "unportable_name": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def größe() -> int:
    """Get it."""
    return 1
''',
        [
            (
                "note: FILE:18: größe: agents of several providers can't call a function with this name: use at most "
                "64 of the characters A-Z, a-z, 0-9, `_` and `-`."
            ),
        ],
    ),
    "env_forward": Wrong(
        HEAD
        + r"""
class Env(TaskEnvironment):
    a: "Nowhere" = None
toolpack = Toolpack("p", Env)
"""
        + FUNCTION,
        [
            (
                "FILE:6: Env: the initial environment of 'p' can't be used: Toolpack 'p' can't build its environment:"
                " PydanticUserError: …"
            ),
        ],
    ),
    "ro_nested_model": Wrong(
        HEAD
        + r'''
class Account(BaseModel):
    id: int = 7
    reads: int = 0
class Env(TaskEnvironment):
    accounts: dict[str, Account] = {"ann": Account()}
toolpack = Toolpack("p", Env)
@toolpack.function(read_only=True)
def f(accounts: Annotated[dict[str, Account], Depends("accounts")], who: str) -> int:
    """Read.

    :param who: Who.
    """
    accounts[who].reads += 1
    return 1
''',
        [
            (
                "FILE:12: f: it promises read_only=True but changes env.accounts['ann'].reads: values differ: … "
                '(called with {"who":"ann"}): leave out read_only=True, or change a copy.'
            ),
        ],
    ),
    "ro_random": Wrong(
        HEAD
        + r'''
import random
class Env(TaskEnvironment):
    _random: random.Random = PrivateAttr(default_factory=lambda: random.Random(1))
toolpack = Toolpack("p", Env)
@toolpack.function(read_only=True)
def f(r: Annotated[random.Random, Depends("_random")]) -> float:
    """Draw."""
    return r.random()
''',
        [
            (
                "FILE:10: f: it promises read_only=True but changes env._random: values differ: Random became Random "
                "(called with no arguments): leave out read_only=True, or change a copy."
            ),
        ],
    ),
    "no_example": Wrong(
        ENVIRONMENT
        + r'''
from pydantic import AfterValidator
def never(v):
    raise ValueError("no")
@toolpack.function
def f(x: Annotated[str, AfterValidator(never)]) -> None:
    """Do it.

    :param x: X.
    """
''',
        [
            (
                "note: FILE:21: f: it wasn't called, because no arguments could be made from its schema: give "
                "examples, such as Annotated[str, Field(examples=['a'])]."
            ),
        ],
    ),
    "unbound_local": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(x: int) -> int:
    """Do it.

    :param x: X.
    """
    if x > 10**9:
        y = 1
    return y
''',
        [
            'FILE:18: f: it raises UnboundLocalError: … (called with {"x":1}): correct it.',
        ],
    ),
    "late_import": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f() -> None:
    """Do it."""
    import a_module_nowhere
''',
        [
            (
                "FILE:18: f: it raises ModuleNotFoundError: No module named 'a_module_nowhere' (called with no "
                "arguments): correct it."
            ),
        ],
    ),
    "raises_exit_type": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f() -> None:
    """Do it."""
    raise KeyboardInterrupt
''',
        [
            "FILE:18: f: it raises KeyboardInterrupt (called with no arguments): raise an ordinary exception.",
        ],
    ),
    "model_no_field": Wrong(
        HEAD
        + r'''
class Account(BaseModel):
    balance: int = 1
class Env(TaskEnvironment):
    account: Account = Account()
toolpack = Toolpack("p", Env)
@toolpack.function
def f(account: Annotated[Account, Depends("account")], amount: int) -> None:
    """Pay.

    :param amount: A.
    """
    account.balence = amount
''',
        [
            (
                'FILE:11: f: it raises ValueError: "Account" object has no field "balence" (called with '
                '{"amount":1}): correct it.'
            ),
        ],
    ),
    "wrong_list_result": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f() -> list[int]:
    """Do it."""
    return [1, "x"]
''',
        [
            (
                "note: FILE:18: f: it returns `list` that doesn't fit at 1: Input should be a valid integer, but its "
                "annotation says `list[int]` (called with no arguments): correct one of the two."
            ),
        ],
    ),
    "args_docs_style": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(x: int, y: int):
    """Do it.

    Args:
        x: X.
        z: Z.
    """
''',
        [
            "FILE:18: f: the docstring describes `z`, which is no parameter: correct or remove it.",
        ],
    ),
    "subscript_env_write": Wrong(
        ENVIRONMENT
        + r'''
import os
@toolpack.function
def f() -> None:
    """Do it."""
    os.environ.pop("HOME", None)
''',
        [
            (
                "note: FILE:22: f: it changes the state of the process with `os.environ.pop`, which all sessions "
                "share: keep it in the environment."
            ),
        ],
    ),
    "toolpack_positional": Wrong(
        HEAD
        + r"""
class Env(TaskEnvironment): pass
toolpack = Toolpack(Env, "p")
"""
        + FUNCTION,
        [
            (
                "FILE:7: Toolpack(<class 'toolpacks.MODULE.Env'>): <class 'toolpacks.MODULE.Env'> is no valid "
                "toolpack name: use 1-64 letters, digits, `_`, `.`, `-`."
            ),
        ],
    ),
    "duplicate_param": Wrong(
        HEAD
        + r'''
toolpack = Toolpack("p")
@toolpack.function
def f(x, x):
    """Do it."""
''',
        [
            "FILE:8: SyntaxError: …: correct it or move it away.",
        ],
    ),
    "import_time_call": Wrong(
        HEAD
        + r'''
class Env(TaskEnvironment):
    a: int = 1
toolpack = Toolpack("p", Env)
@toolpack.function
def f(a: Annotated[int, Depends("a")]) -> int:
    """Do it."""
    return a
f()
''',
        [
            "FILE:13: TypeError: …: correct it or move it away.",
        ],
    ),
    "dep_number": Wrong(
        ENVIRONMENT
        + r'''
@toolpack.function
def f(s: Annotated[list, Depends(3)]) -> int:
    """Do it."""
    return 1
''',
        [
            (
                "FILE:18: f: parameter `s` depends on 3: give Depends the name of an attribute of the environment, or "
                "a function of the environment."
            ),
        ],
    ),
    "class_with_lock": Wrong(
        HEAD
        + r'''
import threading
class Bot:
    def __init__(self):
        self.lock = threading.Lock()
    def go(self) -> int:
        """Go."""
        return 1
toolpack = Toolpack.from_class("p", Bot)
''',
        [
            (
                "FILE:7: Bot: the initial environment of 'p' can't be used: `lock` can't be stored, its type is "
                "`_thread.lock`: it has state that can't be read; make it in the functions that need it."
            ),
        ],
    ),
    "null_bytes": Wrong(HEAD + "x = '\0'\n", ["FILE: it holds null bytes: save it as a text file in UTF-8."]),
    "main_thread": Wrong(
        ENVIRONMENT
        + r'''
import signal
@toolpack.function
def f() -> int:
    """Do it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return 1
''',
        [
            (
                "note: FILE:22: f: it changes the state of the process with `signal.signal`, which all sessions share: "
                "keep it in the environment."
            ),
            "note: FILE:19: f: it raises ValueError: signal only works in main thread … in a new session.",
        ],
    ),
}
