"""`FunctionsRuntime`, which runs functions in one process without a server, and refusals at registration.

Its names and their meanings are those of AgentDojo.
"""

import asyncio
import enum
import inspect
import threading
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError
from serving import nasty

from toolpack_server import (
    Depends,
    EmptyEnv,
    Function,
    FunctionCall,
    FunctionsRuntime,
    TaskEnvironment,
    ToolNotFoundError,
    Toolpack,
    make_function,
)
from toolpack_server.base.errors import RegistrationError
from toolpack_server.functions_runtime import is_ready


class Account(BaseModel):
    balance: float = 100.0


class World(TaskEnvironment):
    account: Account = Field(default_factory=Account)
    notes: list[str] = Field(default_factory=list)


TheAccount = Annotated[Account, Depends("account")]
Notes = Annotated[list[str], Depends(lambda world: world.notes)]


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Topping(BaseModel):
    name: str
    grams: int = 10


class Order(BaseModel):
    """An order."""

    size: Size
    toppings: list[Topping] = Field(default_factory=list, description="What is on it.")


def send(account: TheAccount, recipient: str, amount: Annotated[float, Field(gt=0)] = 1.0) -> float:
    """Send money.

    A transfer to None is refused.

    :param recipient: IBAN to credit.
    :param amount: Euros to send.
    """
    assert recipient
    account.balance -= amount
    return account.balance


def note(notes: Notes, text: str) -> list[str]:
    """Write a note.

    :param text: The text.
    """
    notes.append(text)
    return notes


def order(order: Order, extra: Topping | None = None, how: Literal["now", "later"] = "now", n: int | str = 1) -> Any:
    """Order something.

    :param order: What.
    :param extra: On top.
    :param how: When.
    :param n: How many.
    """
    return order, extra, how, n


async def slowly(account: TheAccount, amount: float) -> float:
    """Send money slowly.

    :param amount: How much.
    """
    await asyncio.sleep(0.001)
    account.balance -= amount
    return account.balance


def fail(account: TheAccount) -> None:
    """Change something, then fail."""
    account.balance = 0
    raise ValueError("no luck")


def describe(text: str) -> str:
    """Describe something.

    :param text: What.
    """
    return f"<{text}>"


@pytest.fixture
def runtime():
    runtime = FunctionsRuntime()
    for function in (send, note, order, slowly, fail, describe):
        assert runtime.register_function(function) is function
    return runtime


def test_a_function_changes_the_passed_environment(runtime):
    world = World()
    assert runtime.run_function(world, "send", {"recipient": "x", "amount": 30}) == (70.0, None)
    assert world.account.balance == 70
    assert runtime.run_function(world, "send", {"recipient": "x"}) == (69.0, None)


def test_a_dependency_may_be_a_callable(runtime):
    world = World()
    result, error = runtime.run_function(world, "note", {"text": "a"})
    assert (result, error) == (["a"], None)
    assert result is world.notes


def test_errors_are_texts_or_exceptions_and_partial_changes_stay(runtime):
    world = World()
    assert runtime.run_function(world, "fail", {}) == ("", "ValueError: no luck")
    assert world.account.balance == 0
    with pytest.raises(ValueError, match=r"^no luck$"):
        runtime.run_function(world, "fail", {}, raise_on_error=True)


def test_an_unknown_function_is_an_error_with_its_name(runtime):
    text = "The requested function `fly` is not available."
    assert runtime.run_function(EmptyEnv(), "fly", {}) == ("", f"ToolNotFoundError: {text}")
    with pytest.raises(ToolNotFoundError, match=f"^{text}$"):
        runtime.run_function(EmptyEnv(), "fly", {}, raise_on_error=True)


def test_arguments_are_validated_and_unknown_ones_named(runtime):
    world = World()
    for kwargs in ({}, {"recipient": 5}, {"recipient": "x", "amount": 0}, {"recipient": "x", "account": {}}):
        result, error = runtime.run_function(world, "send", kwargs)
        assert result == ""
        assert error.startswith("ValidationError: 1 validation error for Input schema for `send`\n")
        assert "errors.pydantic.dev" not in error
        with pytest.raises(ValidationError):
            runtime.run_function(world, "send", kwargs, raise_on_error=True)
    assert "\naccount\n" in error
    assert world == World()


def test_models_enums_literals_and_unions_arrive_as_annotated(runtime):
    kwargs = {"order": {"size": "large", "toppings": [{"name": "x"}]}, "extra": {"name": "y"}, "how": "later", "n": "3"}
    (order_result, extra, how, n), error = runtime.run_function(EmptyEnv(), "order", kwargs)
    assert error is None
    assert order_result == Order(size=Size.LARGE, toppings=[Topping(name="x")])
    assert type(order_result.toppings[0]) is type(extra) is Topping
    assert (how, n) == ("later", "3")
    assert runtime.run_function(EmptyEnv(), "order", {"order": order_result})[0][0] is order_result
    assert runtime.run_function(EmptyEnv(), "order", {"order": order_result, "how": "never"})[1].startswith(
        "ValidationError: "
    )


def test_async_functions_run_to_completion(runtime):
    world = World()
    assert runtime.run_function(world, "slowly", {"amount": 1}) == (99.0, None)

    async def inside():
        return runtime.run_function(world, "slowly", {"amount": 1})

    assert asyncio.run(inside()) == (98.0, None)
    results = []
    thread = threading.Thread(target=lambda: results.append(runtime.run_function(world, "slowly", {"amount": 1})))
    thread.start()
    thread.join()
    assert results == [(97.0, None)]


def test_an_argument_may_be_a_call(runtime):
    world = World()
    inner = FunctionCall(function="describe", args={"text": FunctionCall(function="describe", args={"text": "a"})})
    assert runtime.run_function(world, "note", {"text": inner}) == (["<<a>>"], None)
    unknown = FunctionCall(function="fly", args={})
    assert runtime.run_function(world, "note", {"text": unknown})[1].startswith("ToolNotFoundError: ")
    failing = FunctionCall(function="fail", args={}, id="x", placeholder_args={})
    assert runtime.run_function(world, "note", {"text": failing}) == ("", "ValueError: no luck")
    in_a_list = [FunctionCall(function="describe", args={"text": "a"})]
    assert runtime.run_function(world, "note", {"text": in_a_list})[1].startswith("ValidationError: ")
    assert world.notes == ["<<a>>"]


def test_calls_nest_16_deep(runtime):
    def nested(depth):
        call: Any = "x"
        for _ in range(depth):
            call = FunctionCall.model_construct(function="describe", args={"text": call})
        return runtime.run_function(EmptyEnv(), "describe", {"text": call})

    assert nested(16) == ("<" * 17 + "x" + ">" * 17, None)
    assert nested(17)[1].startswith("ValidationError: ")


def test_functions_can_be_replaced(runtime):
    runtime.update_functions({"describe": make_function(describe)})
    assert runtime.run_function(None, "describe", {"text": "x"}) == ("<x>", None)
    assert runtime.run_function(World(), "send", {"recipient": "x"})[1].startswith("ToolNotFoundError: ")
    assert FunctionsRuntime([make_function(describe)]).run_function(None, "describe", {"text": "x"})[0] == "<x>"


def test_without_an_environment_there_are_no_dependencies(runtime):
    for raise_on_error in (True, False):
        with pytest.raises(ValueError, match="Function send has dependencies but no environment was provided"):
            runtime.run_function(None, "send", {"recipient": "x"}, raise_on_error=raise_on_error)
    assert runtime.run_function(None, "send", {})[1].startswith("ValidationError: ")


def test_a_hidden_default_is_copied_per_call_if_possible():
    sentinel, lock = object(), threading.Lock()

    def collect(item: str, seen: list[str] = [], mark: Any = sentinel, guard: Any = lock) -> Any:  # noqa: B006
        """Collect something.

        :param item: What.
        """
        seen.append(item)
        return seen, mark is sentinel, guard is lock

    runtime = FunctionsRuntime([make_function(collect)])
    for item in "ab":
        assert runtime.run_function(None, "collect", {"item": item}) == (([item], True, True), None)
    assert collect.__defaults__[0] == []


def test_a_documented_default_is_not_shared_either():
    def collect(seen: list[str] = []) -> list[str]:  # noqa: B006
        """Collect something.

        :param seen: What was seen.
        """
        seen.append("x")
        return seen

    runtime = FunctionsRuntime([make_function(collect)])
    assert [runtime.run_function(None, "collect", {})[0] for _ in range(2)] == [["x"], ["x"]]


def test_parameters_may_be_named_like_methods_of_a_model():
    def odd(copy: int, json: int, model_validate: int = 3, schema: str = "s") -> Any:
        """Use odd names.

        :param copy: One.
        :param json: Two.
        :param model_validate: Three.
        :param schema: Four.
        """
        return copy, json, model_validate, schema

    runtime = FunctionsRuntime([make_function(odd)])
    assert runtime.run_function(None, "odd", {"copy": 1, "json": 2, "schema": "x"}) == ((1, 2, 3, "x"), None)


# Docstrings


def sphinx(x: int, y: str = "a", hidden: int = 0) -> None:
    """Do it.

    :param x: The first
        of them.
    :type x: int
    :param y: The second.
    :returns: Nothing.
    :raises ValueError: Never.
    """


def google(x: int, y: str = "a", hidden: int = 0) -> None:
    """Do it.

    Args:
        x (int): The first
            of them.
        y: The second.

    Returns:
        Nothing.

    Raises:
        ValueError: Never.
    """


def numpy(x: int, y: str = "a", hidden: int = 0) -> None:
    """Do it.

    Parameters
    ----------
    x : int
        The first
        of them.
    y : str, optional
        The second.

    Returns
    -------
    None
        Nothing.
    """


@pytest.mark.parametrize("function", [sphinx, google, numpy])
def test_every_style_of_docstring_gives_the_same_descriptions(function):
    function_made = make_function(function)
    properties = function_made.parameters.model_json_schema()["properties"]
    assert {name: field["description"] for name, field in properties.items()} == {
        "x": "The first\nof them.",
        "y": "The second.",
    }
    assert function_made.description == "Do it."


def test_numpy_style_may_describe_two_parameters_at_once():
    def add(x: int, y: int) -> int:
        """Add.

        Parameters
        ----------
        x, y : int
            What to add.
        """
        return x + y

    assert FunctionsRuntime([make_function(add)]).run_function(None, "add", {"x": 1, "y": 2}) == (3, None)


def test_annotations_may_be_strings():
    function = make_function(nasty.wish)
    assert set(function.parameters.model_fields) == {"name", "wish", "times"}
    assert function.parameters.model_fields["wish"].annotation is nasty.Wish
    assert function.parameters.model_fields["wish"].description == "The wish\nitself."
    assert set(function.dependencies) == {"by_name"}


def test_ready_functions_are_recognized_by_their_fields():
    assert is_ready(make_function(describe))
    assert not is_ready(describe)
    assert not is_ready(Function)
    assert make_function(describe)("x") == make_function(describe).run(text="x") == "<x>"


# Refusals


def undocumented(): ...


def blank():
    """ """


def undescribed():
    """:returns: Nothing."""


def no_such_parameter():
    """Do it.

    :param x: What.
    """


def no_description(x: int):
    """Do it.

    :param x:
    """


def not_documented(x: int):
    """Do it."""


def two_not_documented(x: int, account: TheAccount, y: int):
    """Do it."""


def documented_dependency(account: TheAccount):
    """Do it.

    :param account: The account.
    """


def any_arguments(*args: int):
    """Do it."""


def any_keywords(**kwargs: int):
    """Do it."""


def positional(x: int, /):
    """Do it.

    :param x: What.
    """


def no_hint(x):
    """Do it.

    :param x: What.
    """


def unknown_hint(x: "Nowhere"):  # noqa: F821
    """Do it.

    :param x: What.
    """


def no_schema(x: threading.Thread):
    """Do it.

    :param x: What.
    """


def not_serializable(x: Annotated[Any, Field(json_schema_extra=1)], y: type(lambda: 0)):
    """Do it.

    :param x: What.
    :param y: What else.
    """


REFUSED = [
    (undocumented, "there is no docstring: add one"),
    (blank, "there is no docstring: add one"),
    (undescribed, "no short description: say in its first line"),
    (no_such_parameter, "the docstring describes `x`, which isn't a parameter: correct or remove it."),
    (no_description, "the docstring doesn't describe parameter `x`: add a description."),
    (not_documented, "parameter `x` has no default and no description: add one to the docstring."),
    (two_not_documented, "parameters `x`, `y` have no default and no description: add one to the docstring."),
    (documented_dependency, "the docstring describes `account`, which comes from the environment: remove it"),
    (any_arguments, "`*args: int` takes any argument: name each parameter."),
    (any_keywords, "`**kwargs: int` takes any argument: name each parameter."),
    (positional, "parameter `x` is positional-only, but agents pass names: remove the `/`."),
    (no_hint, "parameter `x` has no type hint: add one."),
    (unknown_hint, "its type hints can't be read (name 'Nowhere' is not defined): import or correct the names."),
    (no_schema, "no JSON Schema can be made of parameter `x` ("),
    (not_serializable, "no JSON Schema can be made of parameter `y` ("),
]


@pytest.mark.parametrize(("function", "says"), REFUSED, ids=lambda value: getattr(value, "__name__", ""))
def test_an_unusable_function_is_refused_with_file_and_remedy(function, says):
    with pytest.raises(RegistrationError) as refused:
        FunctionsRuntime().register_function(function)
    assert says in str(refused.value)
    line = inspect.getsourcelines(function)[1]
    with pytest.raises(RegistrationError) as placed:
        Toolpack("pack", World).function(function)
    assert str(placed.value).startswith(f"{__file__}:{line}: {function.__name__}: ")
    assert says in str(placed.value)


def test_a_dependency_must_name_a_field_of_the_environment():
    def misspelt(thing: Annotated[Any, Depends("acount")]) -> None:
        """Do it."""

    with pytest.raises(RegistrationError) as refused:
        Toolpack("pack", World).register_function(misspelt)
    assert "parameter `thing` depends on `acount`, which World doesn't have: correct the name" in str(refused.value)


def test_a_name_can_be_registered_once():
    pack = Toolpack("pack", World, functions=[describe])
    with pytest.raises(RegistrationError, match="toolpack 'pack' has a function 'describe' already: rename one"):
        pack.function(describe)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_deadline_is_above_0(seconds):
    with pytest.raises(RegistrationError, match="give a number of seconds above 0"):
        Toolpack("pack", World).function(timeout_seconds=seconds)(describe)


def test_a_function_without_a_name_is_refused():
    import functools  # noqa: PLC0415

    with pytest.raises(RegistrationError, match="has no name: wrap it"):
        make_function(functools.partial(describe, text="x"))
