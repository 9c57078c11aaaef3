"""`toolpack_server.testing`: a session in an author's test is a real session, and raises the functions' exceptions."""

import asyncio
import os
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path
from typing import Annotated

import foreign_classes as foreign
import pytest
from pydantic import BaseModel, PrivateAttr, ValidationError

from toolpack_server import Depends, FunctionCall, Task, TaskEnvironment, Toolpack
from toolpack_server.base.errors import (
    ReadOnlyError,
    RegistrationError,
    ReplyError,
    ResultError,
    SnapshotError,
    ToolNotFoundError,
)
from toolpack_server.features.evaluation.episodes.progress import EpisodeOverError
from toolpack_server.testing import Session, add_pack_dir

ROOT = Path(__file__).parent.parent


class Account(BaseModel):
    balance: int = 100
    _secret: list[str] = PrivateAttr(default_factory=list)


class Env(TaskEnvironment):
    account: Account = Account()
    anything: object = None


def open_account(balance: int = 100) -> Env:
    """Open an account.

    :param balance: In euros.
    """
    return Env(account=Account(balance=balance))


class TooPoorError(Exception):
    def __init__(self, short):
        super().__init__(f"{short} short")
        self.short = short


bank = Toolpack("bank", open_account)
Current = Annotated[Account, Depends("account")]


@bank.function(read_only=True)
def get_balance(account: Current) -> int:
    """Get the balance."""
    return account.balance


@bank.function
async def send(account: Current, amount: int, day: date = date(2026, 1, 1)) -> dict[str, object]:
    """Send money.

    :param amount: The amount of money.
    :param day: The day of the payment.
    """
    account.balance -= amount
    await asyncio.sleep(0)
    if account.balance < 0:
        raise TooPoorError(-account.balance)
    account._secret.append("sent")
    return {"left": account.balance, "day": day}


@bank.function
def keep(env: Annotated[Env, Depends(lambda env: env)]) -> None:
    """Store a value that can't be stored."""
    env.anything = print


@bank.function
def strange() -> object:
    """Return a value without a JSON form."""
    return object()


@bank.function(timeout_seconds=0.01)
def slow() -> None:
    """Take long."""
    while True:
        pass


@pytest.fixture
def session():
    with Session(bank) as opened:
        yield opened


def test_a_session_runs_functions(session):
    assert session.run("get_balance") == 100
    assert session.run("send", amount=30, day=date(2026, 11, 21)) == {"left": 70, "day": "2026-11-21"}
    assert session.run("send", amount=FunctionCall(function="get_balance", args={}))["left"] == 0
    assert session.call("get_balance") == {"result": 0, "error": None}
    assert session.version == 2
    assert [record["function"] for record in session.trace] == ["get_balance", "send", "send", "get_balance"]
    assert session.diff() == [{"op": "replace", "path": "/bank/account/balance", "value": 0}]
    assert session.diff(1, 2)[0]["value"] == 0


def test_the_environment_is_a_copy_with_its_private_attributes(session):
    session.run("send", amount=1)
    assert session.environment.account._secret == ["sent"]
    session.environment.account.balance = 5
    assert session.environment.account.balance == 99
    assert session.environments == {"bank": session.environment}


def test_run_raises_the_functions_error_and_keeps_nothing(session):
    with pytest.raises(TooPoorError) as raised:
        session.run("send", amount=130)
    assert raised.value.short == 30
    assert raised.value.__traceback__ is not None
    assert (session.version, session.diff(), session.run("get_balance")) == (0, [], 100)
    assert session.call("send", amount=130) == {"result": "", "error": "TooPoorError: 30 short"}


def test_run_raises_the_error_that_an_agent_would_get(session):
    with pytest.raises(ValidationError) as invalid:
        session.run("send", amount="much", more=1)
    assert {problem["loc"] for problem in invalid.value.errors()} == {("amount",), ("more",)}
    with pytest.raises(ToolNotFoundError, match="The requested function `nope` is not available"):
        session.run("nope")
    with pytest.raises(SnapshotError, match="`anything` can't be stored"):
        session.run("keep")
    with pytest.raises(ResultError):
        session.run("strange")
    with pytest.raises(TimeoutError, match="took longer than"):
        session.run("slow")
    assert session.version == 0


def test_a_session_can_be_forked_and_reset():
    with Session(bank) as session:
        session.run("send", amount=10)
        first, second = session.fork(count=2)
        first.run("send", amount=10)
        assert [s.run("get_balance") for s in (session, first, second)] == [90, 80, 90]
        session.reset()
        assert (session.run("get_balance"), session.version) == (100, 2)
        first.close()
        with pytest.raises(ReplyError, match="No session has this id"):
            first.run("get_balance")
        with second as same:
            assert same.run("get_balance") == 90
    with pytest.raises(RuntimeError, match="The session is closed"):
        session.run("get_balance")


def test_a_session_takes_options_and_several_toolpacks():
    files = Toolpack.from_class("files", foreign.FileSystem)
    with Session(bank, files, options={"bank": {"balance": 5}}) as session:
        assert session.run("get_balance") == 5
        session.run("mkdir", dir_name="new")
        assert list(session.environments["files"].root.contents) == ["new"]
        assert isinstance(session.environments["files"], foreign.FileSystem)
        with pytest.raises(ValueError, match="The session has 2 toolpacks"):
            _ = session.environment
    with pytest.raises(ReplyError, match="options of toolpack 'bank' are invalid"):
        Session(bank, options={"bank": {"nope": 1}})
    with pytest.raises(TypeError, match=r"pass options=\{'bank': \{\.\.\.\}\}"):
        Session(bank, options={"balance": 5})
    with pytest.raises(ReplyError, match=r"Group the values by toolpack: \{name: \{option: value\}\}"):
        Session(bank, options={"balance": {}})
    with pytest.raises(ReplyError, match="Don't nest them under the toolpack's name"):
        Session(bank, options={"bank": {"bank": {"balance": 5}}})


def test_a_session_with_a_task_is_evaluated():
    def check_balance(rollout):
        return float(rollout.answer == "5" and not rollout.calls)

    pack = Toolpack("quiz", Env, [])
    pack.add_task(Task("sum", "What is 2 + 3?", check_balance))
    with Session(pack, task="quiz/sum") as session:
        assert session.evaluate()["reward"] == 0
        assert session.evaluate(answer="5")["reward"] == 1
        session.submit_answer("5")
        assert session.evaluate()["passed"] is True
    with pytest.raises(ReplyError, match="There is no task"):
        Session(pack, task="quiz/none")


def test_participants_act_at_their_addresses():
    rights = {"buyer": {"functions": ["get_balance"], "max_calls": 2, "prompt": "Look."}, "seller": {"answers": True}}
    with Session(bank, participants=rights) as session:
        buyer, seller, agent = map(session.participant, ("buyer", "seller", "agent"))
        assert [each["name"] for each in buyer.list_functions()] == ["get_balance"]
        assert buyer.get_task()["prompt"] == "Look."
        assert "send" in buyer.call("send", amount=1)["error"]
        assert buyer.run("get_balance") == 100
        with pytest.raises(Exception, match="all 2 of your calls"):
            buyer.run("get_balance")
        buyer.say("For 5?", to="seller")
        assert [(message["by"], message["content"]) for message in seller.listen()] == [("buyer", "For 5?")]
        assert agent.listen() == []
        assert seller.run("send", amount=10)["left"] == 90
        seller.submit_answer("sold")
        with pytest.raises(EpisodeOverError, match="the answer has been submitted"):
            agent.run("get_balance")
        assert [record.get("by") for record in session.trace if record["kind"] == "call"] == [
            "buyer",
            "buyer",
            "seller",
        ]
        with pytest.raises(ValueError, match="no participant 'judge': choose from"):
            session.participant("judge")


class Town(BaseModel):
    parcels: dict[str, str] = {}


Parcels = Annotated[dict[str, str], Depends("parcels")]


def test_events_happen_in_a_session():
    town = Toolpack("town", Town, begins="2026-03-02T09:00:00Z", step_seconds=60)

    @town.function
    def order(parcels: Parcels, what: str) -> str:
        """Order something.

        :param what: What to order.
        """
        if what in parcels:
            raise KeyError(what)
        parcels[what] = "ordered"
        return what

    @town.event(call="order", by="agent", delay="10m", args={"what": {"$get": "/result"}}, notice="The bell rings.")
    def courier_comes(parcels: Parcels, what: str) -> None:
        """Bring a parcel.

        :param what: What is in it.
        """
        parcels[what] = "here"

    @town.event(call="order", where={"/error": {"exists": True}})
    def complaint(parcels: Parcels) -> None:
        """Note a failed order."""
        parcels["complaint"] = "written"

    with Session(town) as session:
        session.run("order", what="ink")
        assert session.run("wait", seconds=3600)["news"] == []
        session.participant().run("order", what="pen")
        assert session.run("wait")["news"] == ["The bell rings."]
        assert session.environment.parcels == {"ink": "ordered", "pen": "here"}
        (fork,) = session.fork()
        assert fork.environment.parcels == {"ink": "ordered", "pen": "here"}
        with pytest.raises(KeyError, match="ink"):
            session.run("order", what="ink")
        assert session.environment.parcels["complaint"] == "written"
        with pytest.raises(ToolNotFoundError):
            session.participant().run("courier_comes", what="pen")


def test_a_script_imports_a_toolpack_of_a_folder(tmp_path):
    (tmp_path / "packs").mkdir()
    (tmp_path / "packs" / "plus.py").write_text("from toolpack_server import Toolpack\ntoolpack = Toolpack('plus')\n")
    script = "from toolpack_server.testing import add_pack_dir\nadd_pack_dir('packs')\nfrom toolpacks import plus\n"
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    with pytest.raises(RegistrationError, match="is not a folder"):
        add_pack_dir(tmp_path / "none")


def test_an_unusable_toolpack_is_an_error():
    class Lacks(TaskEnvironment):
        must: int

    with pytest.raises(RegistrationError, match="Field required"):
        Session(Toolpack("lacks", Lacks))


def test_the_fixture_opens_sessions_and_closes_them(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "from toolpacks.bank import toolpack\n\nopened = []\n\n\n"
        "def test_one(toolpack_session):\n"
        "    session = toolpack_session(toolpack)\n"
        "    opened.append(session)\n"
        "    assert session.run('get_balance')\n\n\n"
        "def test_two():\n"
        "    assert opened[0]._server.closed\n"
    )
    # A project may have its own package `server`, so the plugin must not import this one.
    (tmp_path / "conftest.py").write_text("import sys\n\nassert 'server' not in sys.modules\n")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert scripts == {"toolpack_server": "toolpack_server.pytest_plugin"}
    printed = run_pytest(tmp_path)
    assert "2 passed" in printed, printed


def run_pytest(folder, *flags):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "toolpack_server.pytest_plugin",
        "-p",
        "no:cacheprovider",
        *flags,
    ]
    ended = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return ended.stdout


@pytest.mark.heavy
def test_tests_import_toolpacks_as_the_server_does(tmp_path):
    (tmp_path / "packs").mkdir()
    (tmp_path / "packs" / "_helper.py").write_text("VALUE = 5\n")
    (tmp_path / "packs" / "mine.py").write_text("from toolpacks._helper import VALUE\n")
    (tmp_path / "test_it.py").write_text(
        "from toolpacks.bank import toolpack\nfrom toolpacks.mine import VALUE\n\n\ndef test():\n    assert VALUE\n"
    )
    assert "No module named 'toolpacks.mine'" in run_pytest(tmp_path)
    assert "1 passed" in run_pytest(tmp_path, "--pack-dir", "packs")
    assert "nowhere is not a folder" in run_pytest(tmp_path, "--pack-dir", "nowhere")
    (tmp_path / "pytest.ini").write_text("[pytest]\npack_dir = packs\n")
    assert "1 passed" in run_pytest(tmp_path)


def test_a_falsely_read_only_function_raises():
    toolpack = Toolpack("p", open_account)

    @toolpack.function(read_only=True)
    def look(account: Annotated[Account, Depends("account")]) -> int:
        """Look."""
        account.balance += 1
        return account.balance

    with Session(toolpack) as session:
        with pytest.raises(
            ReadOnlyError, match=r"look promised read_only=True but changed env\.account\.balance"
        ) as broken:
            session.run("look")
        assert (broken.value.toolpack, broken.value.function) == ("p", "look")
        assert broken.value.change.startswith("env.account.balance: ")
        assert session.environment.account.balance == 100


def test_the_name_of_a_toolpack_is_not_a_toolpack():
    with pytest.raises(TypeError, match="'bank' isn't a Toolpack: pass the Toolpack object"):
        Session("bank")
