"""Chores to be done, with tasks of every kind and evaluators that answer in every possible way."""

import asyncio
import time
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, Field

from server import Check, Depends, Evaluation, Rollout, Task, TaskEnvironment, Toolpack, reached_solution

# For the tests: how often the loader ran, and what evaluators saw last.
loads: list[int] = []
seen: dict[str, Any] = {}


class Log(BaseModel):
    lines: list[str] = Field(default_factory=list)


class ChoresEnvironment(TaskEnvironment):
    done: dict[str, int] = Field(default_factory=dict)
    log: Log = Field(default_factory=Log)
    money: int = 0


def chores(money: int = 10) -> ChoresEnvironment:
    """Begin with some money.

    :param money: How much.
    """
    return ChoresEnvironment(money=money)


toolpack = Toolpack("chores", chores)

Done = Annotated[dict[str, int], Depends("done")]
TheLog = Annotated[Log, Depends("log")]


@toolpack.function
def do(done: Done, log: TheLog, chore: str) -> int:
    """Do a chore.

    :param chore: Which.
    """
    if chore == "nothing":
        raise ValueError("nothing is no chore")
    done[chore] = done.get(chore, 0) + 1
    log.lines.append(chore)
    return done[chore]


@toolpack.function(read_only=True)
def look(done: Done) -> dict[str, int]:
    """See what is done."""
    return done


@toolpack.function
def rest(log: TheLog) -> None:
    """Rest a while."""
    log.lines.append("rest")


DO = ("do", {"chore": "dishes"})


@toolpack.task("dishes", "Do the dishes, once.", max_calls=3, functions=["do", "look"], solution=[DO], tags=["wet"])
def dishes(rollout: Rollout[ChoresEnvironment]) -> None:
    rollout.check("the dishes are done", rollout.environment.done.get("dishes") == 1)
    rollout.check("nothing else is", set(rollout.environment.done) == {"dishes"}, str(rollout.environment.done))


toolpack.add_task(
    Task(
        "as-the-solution",
        [{"role": "user", "content": "Do the dishes, then say how often."}],
        solution=lambda environment: [DO] * (environment.money // 10),
        answer=("1,000 times", "DISHES"),
        options={"money": 20},
        toolpacks={"ledger": {}},
        metadata={"level": 3},
    )
)
toolpack.add_task(
    Task(
        "ignoring",
        "Do the dishes.",
        reached_solution("/chores/log"),
        solution=[DO],
        tags=["wet", "easy"],
        split="train",
    )
)
toolpack.add_task(Task("question", "What is done?", solution=[], answer="nothing", nop_passes=False))
toolpack.add_task(Task("unsolvable", "Do nothing.", solution=[("do", {"chore": "nothing"})]))
toolpack.add_task(
    Task("patient", "Do nothing.", reached_solution(raise_on_error=False), solution=[("do", {"chore": "nothing"})])
)
toolpack.add_task(Task("neither", "There is nothing to judge by."))


def returning(name: str, value: Any) -> None:
    toolpack.add_task(Task(f"returns-{name}", "Anything.", lambda _rollout: value))


returning("true", True)
returning("false", False)
returning("number", 0.25)
returning("more", 2)
returning("none", None)
returning("nan", float("nan"))
returning("text", "yes")
returning("list", [1.0])
returning(
    "evaluation", Evaluation(0.5, passed=True, checks=[Check("half", True, "of it")], metrics={"steps": [1, None]})
)
returning("no-json", Evaluation(1.0, metrics={"x": object()}))


@toolpack.task("raises", "Anything.")
def raises(rollout: Rollout[ChoresEnvironment]) -> float:
    return rollout.environment.done["missing"]


@toolpack.task("exits", "Anything.")
def exits(_rollout: Rollout[ChoresEnvironment]) -> float:
    raise SystemExit(3)


@toolpack.task("asserts", "Do the dishes.")
def asserts(rollout: Rollout[ChoresEnvironment]) -> bool:
    assert rollout.environment.done == {"dishes": 1}
    return True


@toolpack.task("async", "Anything.")
async def waits(rollout: Rollout[ChoresEnvironment]) -> float:
    await asyncio.sleep(0)
    return len(rollout.calls)


@toolpack.task("slow", "Anything.", timeout_seconds=0.2)
def slow(_rollout: Rollout[ChoresEnvironment]) -> bool:
    while True:
        time.sleep(0.001)


@toolpack.task("looks", "Anything.", data={"secret": 7})
def looks(rollout: Rollout[ChoresEnvironment]) -> bool:
    """Look at everything, and spoil it."""
    seen.clear()
    seen.update(
        calls=rollout.calls,
        messages=rollout.messages,
        answer=rollout.answer,
        options=rollout.options,
        version=rollout.version,
        data=rollout.task.data,
        initial=dict(rollout.initial.done),
        done=dict(rollout.environment.done),
        all=sorted(rollout.environments),
        replayed=rollout.replay([DO, DO]).done,
        failed=rollout.replay([DO, ("do", {"chore": "nothing"})], raise_on_error=False).done,
    )
    rollout.environment.done.clear()
    rollout.initial.done["spoilt"] = 1
    return True


@toolpack.task("looks-back", "Anything.")
def looks_back(rollout: Rollout[ChoresEnvironment]) -> float:
    return float(rollout.at(1).done.get("dishes", 0) == 1 and not rollout.at(0).done)


@toolpack.task("replays-a-fault", "Anything.")
def replays_a_fault(rollout: Rollout[ChoresEnvironment]) -> bool:
    rollout.replay([("do", {"chore": "nothing"})])
    return True


@toolpack.tasks
def many() -> Iterator[Task]:
    loads.append(1)
    for number in range(250):
        yield Task(f"made-{number}", f"Do chore {number}.", solution=[("do", {"chore": str(number)})], split="made")


GREEDY = {"left": [1], "shared": [2]}
GREEDY["again"] = GREEDY["shared"]


@toolpack.task(
    "greedy",
    "Do the dishes.",
    solution=[DO],
    options={"money": 5},
    metadata={"of": ["client"]},
    data=GREEDY,
    split="greedy",
)
def greedy(rollout: Rollout[ChoresEnvironment]) -> bool:
    """Take all that there is."""
    task = rollout.task
    as_given = (task.data, task.options, task.metadata, task.solution) == (
        *({"left": [1], "shared": [2], "again": [2]}, {"money": 5}, {"of": ["client"]}, [DO]),
    )
    as_given &= task.data["shared"] is task.data["again"]
    as_given &= rollout.options == {"money": 5} and [call.kwargs for call in rollout.calls] == [{"chore": "dishes"}]
    for each in (task.data, task.options, task.metadata, task.solution, rollout.options, rollout.calls[0].kwargs):
        each.clear()
    return as_given
