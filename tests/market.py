"""A toolpack with a task for several participants, and a session that they play in."""

from typing import Annotated, Any

from toolpack_server import Depends, Rollout, Task, TaskEnvironment, Toolpack
from toolpack_server.packs.catalog import Catalog

PARTICIPANTS = {
    "buyer": {"functions": ["bid", "look"], "max_calls": 3, "prompt": "Buy for 5."},
    "seller": {"answers": True},
}


class Market(TaskEnvironment):
    price: int = 9
    bids: list[int] = []  # noqa: RUF012 - pydantic copies it


toolpack: Any = Toolpack("market", Market)


@toolpack.function(read_only=True)
def look(price: Annotated[int, Depends("price")]) -> int:
    """Return the price."""
    return price


@toolpack.function
def bid(bids: Annotated[list[int], Depends("bids")], amount: int) -> list[int]:
    """Make a bid.

    :param amount: The amount of money.
    """
    bids.append(amount)
    return bids


@toolpack.function
def look_behind(bids: Annotated[list[int], Depends("bids")]) -> list[int]:
    """Return the bids, and delete them."""
    bids_seen = [*bids]
    bids.clear()
    return bids_seen


def sold(rollout: Rollout[Market]) -> None:
    rollout.check("a bid", rollout.environment.bids == [5])
    rollout.check("of the buyer", [call.by for call in rollout.calls if call.function == "bid"] == ["buyer"])


TASK = Task(
    "sale",
    "Sell it.",
    sold,
    functions=["look"],
    max_calls=4,
    participants={"buyer": {"functions": ["bid"], "prompt": "Buy it.", "max_calls": 1}},
    solution=[("look", {}), ("bid", {"amount": 5}, "buyer")],
)
toolpack.add_task(TASK)
CATALOG = Catalog({"market": toolpack})


class Played:
    """A session with participants."""

    def __init__(self, bench, session):
        self.bench, self.session, self.id = bench, session, session["session_id"]

    def key(self, name):
        return self.session.get("participants")[name]["agent_path"].removeprefix("/agents/")

    def send(self, name, method, **params):
        return self.bench.rpc(method, agent_key=self.key(name), **params)

    def call(self, name, function, /, call_id=None, **kwargs):
        return self.send(name, "run_function", function=function, kwargs=kwargs, call_id=call_id)

    def count(self, name):
        return self.send(name, "get_task")["calls"]

    def trace(self, **params):
        return self.bench.rpc("get_trace", session_id=self.id, **params)

    def bundle(self):
        return self.bench.rpc("export_bundle", session_id=self.id)["bundle"]


def play(bench, participants=PARTICIPANTS, **params):
    return Played(bench, bench.rpc("create_session", participants=participants, **params))
