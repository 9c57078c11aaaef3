"""`examples/train_grpo.py` and `trl_values.py`.

They split tasks into halves for training and testing, demonstrate solutions, and compute the advantage of each text of
a model.
"""

import importlib
import sys
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import server_process

from toolpack_server.base.errors import RemoteFunctionError
from toolpack_server.client import Client
from toolpack_server.training.environments import TrainingEnvironment, submit_answers

EXAMPLES = Path(__file__).parents[2] / "examples"
STUBS = ("torch", "datasets", "tokenizers", "transformers", "transformers.utils.chat_template_utils", "trl")


class Stub(ModuleType):
    """Stand-in for a package that the examples import and these tests don't use. Each of its names is a class."""

    def __getattr__(self, name):
        return object


@pytest.fixture
def examples(monkeypatch):
    """Return the two programs as modules, also where their packages aren't installed."""
    monkeypatch.syspath_prepend(EXAMPLES)
    for name in (*STUBS, "trl.chat_template_utils"):
        monkeypatch.setitem(sys.modules, name, Stub(name))
    names = ("trl_environment", "trl_values", "tiny_model", "train_grpo")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    modules = [importlib.import_module(name) for name in names]
    yield modules[1], modules[3]
    for name in names:
        del sys.modules[name]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    flags = ["--store", "memory:", "--packs", "bank"]
    with server_process.served(tmp_path_factory.mktemp("training"), *flags) as server:
        yield server.url


@pytest.fixture
def play(url):
    """Return a function that returns the environment of a variant."""
    with ExitStack() as environments:

        def environment(task, variant=None):
            perturbations = variant and {"variant": variant}
            return environments.enter_context(TrainingEnvironment(url, task, perturbations=perturbations))

        yield environment


def test_the_halves_share_no_variant(examples, url):
    _, train_grpo = examples
    with Client(url) as client:
        halves = train_grpo.split(client, "bank", 3, seed=1)
        repeated = train_grpo.split(client, "bank", 3, seed=1)
        assert client.list_sessions() == []
    names = [name for half in halves for name in half]
    assert halves == repeated
    assert len({*names}) == len(names)
    assert abs(len(halves[0]) - len(halves[1])) <= 1
    assert {"bank/pay-dentist clean", "bank/pay-dentist lost"} < {*names}
    assert not any(name.startswith("bank/moving-out") for name in names)  # its solution has seven calls


def test_a_demonstration_repeats_failed_calls_and_passes(examples, play, url):
    _, train_grpo = examples
    with Client(url) as client:
        messages = train_grpo.demonstrate(play("bank/save-300", "outage"), client)
        assert [message["role"] for message in messages] == ["user", *["assistant", "tool"] * 3, "assistant"]
        assert messages[2]["content"].startswith("{'error': ")
        assert train_grpo.demonstrate(play("bank/save-300", "lost"), client) is None  # it saves twice


def test_each_text_has_the_advantage_of_its_own_call(examples, play, url):
    trl_values, train_grpo = examples
    environment = play("bank/cancel-climbing", "outage")
    environment.reset()
    texts = []
    for arguments in ({"order": 3}, {"order_id": 3}, {"order_id": 3}, {"order_id": 3}, {"order_id": 2}):
        with suppress(RemoteFunctionError, TypeError):  # a wrong name doesn't reach the server
            environment.cancel_standing_order(**arguments)
        function = {"name": "cancel_standing_order", "arguments": arguments}
        texts.append({"role": "assistant", "tool_calls": [{"type": "function", "function": function}]})
        texts.append({"role": "tool", "content": ""})
    texts.append({"role": "assistant", "content": "Done."})
    submit_answers([texts], [environment])
    with Client(url) as client:
        values = client.values(environment.session["session_id"], finish=partial(train_grpo.finish, client))
    assert trl_values.advantages_of_texts(texts, values) == [0.0, 0.0, 0.0, 0.0, -1.0, 0.0]
