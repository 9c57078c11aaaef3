"""Functions in AgentDojo's style: their descriptions, registration and errors are the same as in AgentDojo."""

import pytest
import test_functions_runtime as functions
import with_agentdojo
from agentdojo import functions_runtime as agentdojo
from agentdojo.default_suites.v1.tools.banking_client import BankAccount, get_balance, send_money

from toolpack_server import EmptyEnv, FunctionsRuntime, TaskEnvironment, Toolpack, make_function
from toolpack_server.base.errors import RegistrationError
from toolpack_server.functions_runtime import is_ready

pytestmark = with_agentdojo.HEAVY
NAMES = ("send", "note", "order", "slowly", "fail", "describe", "sphinx", "google", "numpy")
SAME = [*(getattr(functions, name) for name in NAMES), get_balance, send_money]


@pytest.mark.parametrize("function", SAME, ids=lambda function: function.__name__)
def test_a_function_is_described_as_agentdojo_describes_it(function):
    ours, theirs = make_function(function), agentdojo.make_function(function)
    schema = ours.parameters.model_json_schema()
    assert schema.pop("additionalProperties") is False
    expected = theirs.parameters.model_json_schema()
    for name in theirs.dependencies.keys() & expected.get("properties", {}).keys():
        pytest.fail(f"AgentDojo tells {name}")
    assert schema == expected
    for field in ("name", "description", "full_docstring", "return_type", "run"):
        assert getattr(ours, field) == getattr(theirs, field), field


def test_agentdojos_functions_are_registered_unchanged():
    class Bank(TaskEnvironment):
        bank_account: BankAccount

    account = BankAccount(balance=50, iban="DE1", transactions=[], scheduled_transactions=[])
    pack, runtime = Toolpack("dojo", Bank), FunctionsRuntime()
    for function in (agentdojo.make_function(get_balance), agentdojo.make_function(functions.order)):
        assert is_ready(function)
        assert runtime.register_function(function) is function
        assert pack.register_function(function) is function
        assert pack.functions[function.name].function is function
    assert runtime.run_function(Bank(bank_account=account), "get_balance", {}) == (50, None)
    # AgentDojo handles arguments differently: it passes dicts instead of models and ignores unknown ones.
    (order, extra, _, _), error = runtime.run_function(EmptyEnv(), "order", {"order": {"size": "small"}, "unknown": 1})
    assert error is None
    assert order == {"size": functions.Size.SMALL, "toppings": []}
    assert extra is None


def test_without_an_environment_there_are_no_dependencies():
    theirs = agentdojo.FunctionsRuntime([agentdojo.make_function(get_balance)])
    for raise_on_error in (True, False):
        with pytest.raises(ValueError, match="Function get_balance has dependencies but no environment was provided"):
            theirs.run_function(None, "get_balance", {}, raise_on_error=raise_on_error)


def test_a_functions_dependency_must_name_a_field():
    ready = agentdojo.make_function(get_balance)
    with pytest.raises(RegistrationError, match="depends on `bank_account`, which World doesn't have"):
        Toolpack("pack", functions.World).register_function(ready)
