"""Locations in the output of `check`: a line names the author's function and its file, through every wrapper."""

import functools

import pytest

from toolpack_server.functions_runtime import make_function
from toolpack_server.packs.registration import location_of, qualified_name


def pay(amount: int, currency: str) -> int:
    """Pay.

    :param amount: How much.
    """
    return len(currency) * amount


@functools.wraps(pay)
def wrapped(*arguments, **named):
    return pay(*arguments, **named)


class Payer:
    def __call__(self, amount: int) -> int:
        return amount


def ready(run, name="pay"):
    return make_function(plain).model_copy(update={"run": run, "name": name})


def plain(amount: int) -> int:
    """Pay.

    :param amount: How much.
    """
    return amount


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (pay, "pay"),
        (functools.partial(pay, currency="EUR"), "pay"),
        (functools.partial(functools.partial(pay, currency="EUR"), 1), "pay"),
        (wrapped, "pay"),
        (functools.partial(wrapped, currency="EUR"), "pay"),
        (Payer(), "Payer.__call__"),
        (functools.partial(Payer()), "Payer.__call__"),
    ],
)
def test_ready_function_is_located_at_its_own_code(run, name):
    for subject in (ready(run, name.rpartition(".")[2]), run):
        file, line, message = location_of(subject).split(":", 2)
        assert file == __file__
        assert int(line) > 1
        assert message.strip() == qualified_name(subject) == name


def test_ready_functions_with_shared_code_differ_by_name():
    assert location_of(ready(functools.partial(len), "count")).endswith(": count")
    assert location_of(ready(functools.partial(pay, currency="USD"), "pay_dollars")).endswith(": pay_dollars")
