"""BFCL's multi-turn and memory entries as toolpacks: `bfcl`, `bfcl-memory-kv`, `bfcl-memory-rec-sum`.

Classes, data and verdicts come unchanged from the installed `bfcl-eval`. To evaluate a rollout, BFCL's checker runs the
rollout's calls again on instances of its own, as it does with the output of a model.
"""

import ast
import importlib
import importlib.util
import inspect
import json
import keyword
from collections.abc import Iterator, Sequence
from functools import cache, wraps
from itertools import count
from pathlib import Path
from typing import Any

from toolpack_server import Rollout, Task, Toolpack, ToolpackUnavailable

_REQUIRED_MODULES = ("bfcl_eval", "filelock", "mpmath", "overrides", "rank_bm25")
if any(importlib.util.find_spec(name) is None for name in _REQUIRED_MODULES):
    raise ToolpackUnavailable(
        "The toolpacks bfcl, bfcl-memory-kv and -rec-sum need a part of the package bfcl-eval: "
        "pip install --no-deps bfcl-eval && pip install filelock mpmath overrides rank-bm25"
    )

from bfcl_eval.constants.default_prompts import (  # noqa: E402 - only if it is installed
    ADDITIONAL_SYSTEM_PROMPT_FOR_AGENTIC_RESPONSE_FORMAT,
    DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC,
)
from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING, STATELESS_CLASSES  # noqa: E402 - only if it is installed
from bfcl_eval.eval_checker.agentic_eval.agentic_checker import agentic_checker  # noqa: E402 - only if it is installed
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils  # noqa: E402 - only if it is installed
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker  # noqa: E402 - only if it is installed

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
CLASSES = (
    "GorillaFileSystem",
    "MathAPI",
    "MessageAPI",
    "TicketAPI",
    "TradingBot",
    "TravelAPI",
    "TwitterAPI",
    "VehicleControlAPI",
)

_DATA = Path(multi_turn_utils.__file__).parents[2] / "data"


def _class(name: str) -> Any:
    return getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name)


def _as_text(result: Any) -> Any:
    """Return a result, or its text if it has no JSON form, as BFCL's executor does.

    Results without a JSON form are mpmath's numbers, and an ellipsis in the data of `TradingBot`.
    """
    try:
        json.dumps(result)
    except TypeError:
        return str(result)
    return result


class MathAPI(_class("MathAPI")):  # type: ignore[misc]
    __doc__ = _class("MathAPI").__doc__

    @wraps(_class("MathAPI").logarithm)
    def logarithm(self, *args: Any, **kwargs: Any) -> Any:
        return _as_text(super().logarithm(*args, **kwargs))


class TradingBot(_class("TradingBot")):  # type: ignore[misc]
    __doc__ = _class("TradingBot").__doc__

    @wraps(_class("TradingBot").get_watchlist)
    def get_watchlist(self, *args: Any, **kwargs: Any) -> Any:
        return _as_text(super().get_watchlist(*args, **kwargs))


class Dialogue:
    """The user's messages, turn by turn."""

    def __init__(
        self, turns: list[list[dict[str, str]]] | None = None, functions: dict[str, list[str]] | None = None
    ) -> None:
        """Begin with the first turn, which is the prompt.

        :param turns: The messages of each turn.
        :param functions: The functions that are added in a turn, by the turn's number from 0.
        """
        self.turns, self.functions, self.turn = turns or [], functions or {}, 0

    def next_turn(self) -> dict[str, Any] | None:
        """Begin the next turn. Return the user's messages and the turn's new functions; null after the last turn."""
        if self.turn + 1 >= len(self.turns):
            return None
        self.turn += 1
        added = self.functions.get(str(self.turn), [])
        default = {"role": "user", "content": DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC}
        return {"messages": self.turns[self.turn] or [default], "functions": added}


def _public(cls: Any) -> list[str]:
    return [method for method, _ in inspect.getmembers(cls, inspect.isfunction) if not method.startswith("_")]


_CLASSES = {name: globals().get(name) or _class(name) for name in CLASSES}
_METHODS = {name: _public(cls) for name, cls in _CLASSES.items()}
# Tasks without a solution: the ground truth of these entries has arguments that don't match the function's types.
UNSOLVED = {f"multi_turn_{category}_173" for category in CATEGORIES}

_numbers = count()  # BFCL's checker caches instances by model name, so each rollout gets a name of its own
_FUNCTION_NAMES = frozenset(method for methods in _METHODS.values() for method in methods)

toolpack = Toolpack.from_classes(
    "bfcl",
    {**_CLASSES, "Dialogue": Dialogue},
    options={name: "_load_scenario" for name in CLASSES if name not in STATELESS_CLASSES},
    opt_in=True,
)


def _read(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (_DATA / path).read_text(encoding="utf-8").splitlines()]


@cache
def _entries() -> dict[str, dict[str, Any]]:
    """Return all entries by their ids, each with its `ground_truth`."""
    entries: dict[str, dict[str, Any]] = {}
    for category in CATEGORIES:
        truths = {each["id"]: each for each in _read(f"possible_answer/BFCL_v4_multi_turn_{category}.json")}
        for entry in _read(f"BFCL_v4_multi_turn_{category}.json"):
            entries[entry["id"]] = {**entry, "ground_truth": truths[entry["id"]]["ground_truth"]}
    return entries


@toolpack.tasks
def tasks() -> Iterator[Task]:
    """Create a task for each multi-turn entry."""
    for entry_id, entry in _entries().items():
        category = entry_id.rpartition("_")[0].removeprefix("multi_turn_")
        excluded = entry.get("excluded_function", ())
        scenarios = {
            name: {
                "scenario": entry["initial_config"].get(name, {}),
                "long_context": category == "long_context",
            }
            for name in entry["involved_classes"]
            if name not in STATELESS_CLASSES
        }
        missing = entry.get("missed_function", {})
        yield Task(
            entry_id,
            entry["question"][0],
            judge,
            options={**scenarios, "Dialogue": {"turns": entry["question"], "functions": missing}},
            functions=[
                method for name in entry["involved_classes"] for method in _METHODS[name] if method not in excluded
            ],
            solution=None if entry_id in UNSOLVED else list(_solution(entry["ground_truth"])),
            tags=[category],
            metadata={"turns": len(entry["question"]), "missing_functions": missing},
        )


def _solution(turns: Sequence[Sequence[str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the calls of the ground truth, with a call of `next_turn` between two turns."""
    for number, calls in enumerate(turns):
        if number:
            yield "next_turn", {}
        for call in calls:
            yield parse_call(call)


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """Parse a call in the form of the ground truth. Return the function's name and its arguments by name."""
    call = ast.parse(text.strip(), mode="eval").body
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        raise ValueError(f"{text!r} isn't a call")  # noqa: TRY004 - the text is wrong, not its type
    name = call.func.id
    function = next(getattr(cls, name) for cls in _CLASSES.values() if hasattr(cls, name))
    parameters = list(inspect.signature(function).parameters)[1:]  # without `self`
    values = [ast.literal_eval(each) for each in call.args]
    named = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    return name, {**dict(zip(parameters, values, strict=False)), **named}


def format_call(function: str, kwargs: dict[str, Any]) -> str:
    """Return a call as text that BFCL's checker can run.

    A call of an unknown function becomes a call of an undefined name, so the checker sees an error as the agent did.
    """
    if function not in _FUNCTION_NAMES:
        return "unknown_function()"
    if all(name.isidentifier() and not keyword.iskeyword(name) for name in kwargs):
        return f"{function}({', '.join(f'{name}={value!r}' for name, value in kwargs.items())})"
    return f"{function}(**{kwargs!r})"


def judge(rollout: Rollout[Any]) -> None:
    """Evaluate a rollout with BFCL's checker, which runs the calls of the rollout and of the ground truth."""
    entry = _entries()[rollout.task.name]
    turns: list[list[list[str]]] = [[]]
    for call in rollout.calls:
        if call.function != "next_turn":
            turns[-1].append([format_call(call.function, dict(call.kwargs))])
        elif call.result is not None:
            turns.append([])
    truth = entry["ground_truth"]
    if not rollout.check("every turn was played", len(turns) == len(truth), f"{len(turns)} of {len(truth)}"):
        return
    rollout_id = f"rollout{next(_numbers)}"
    try:
        verdict = multi_turn_checker(turns, truth, entry, "", rollout_id)
    finally:  # the checker stores its instances in its module, where they would stay
        for name in [name for name in [*vars(multi_turn_utils)] if name.startswith(f"{rollout_id}_")]:
            delattr(multi_turn_utils, name)
    rollout.check("state and results are those of the ground truth", verdict["valid"], verdict.get("error_message", ""))


def _memory(backend: str) -> Toolpack:
    """Create the toolpack of a memory backend.

    In a session of the task `prereq-<scenario>`, an agent fills its memory during conversations. Then a client forks
    this session once for each question. Each question is a task of its own.
    """
    pack = Toolpack.from_classes(
        f"bfcl-memory-{backend.replace('_', '-')}",
        {"Memory": _class(f"MemoryAPI_{backend}"), "Dialogue": Dialogue},
        opt_in=True,
    )
    pack.tasks(lambda: _memory_tasks(backend, _public(_class(f"MemoryAPI_{backend}"))))
    return pack


def _memory_tasks(backend: str, functions: list[str]) -> Iterator[Task]:
    truths = {each["id"]: each["ground_truth"] for each in _read("possible_answer/BFCL_v4_memory.json")}
    entries = _read("BFCL_v4_memory.json")
    for scenario in dict.fromkeys(entry["scenario"] for entry in entries):
        conversations = [each["question"] for each in _read(f"memory_prereq_conversation/memory_{scenario}.json")]
        turns = [turn for conversation in conversations for turn in conversation]
        yield Task(
            f"prereq-{scenario}",
            turns[0],
            _all_turns,
            options={"Dialogue": {"turns": turns}},
            functions=functions,
            solution=[("next_turn", {})] * (len(turns) - 1),
            tags=["prereq", scenario],
            metadata={"turns": len(turns), "conversations": [len(each) for each in conversations]},
        )
    for entry in entries:
        truth = truths[entry["id"]]
        yield Task(
            entry["id"].replace("memory", f"memory_{backend}"),
            [
                {"role": "system", "content": ADDITIONAL_SYSTEM_PROMPT_FOR_AGENTIC_RESPONSE_FORMAT},
                *entry["question"][0],
            ],
            _answered,
            functions=functions,
            solution=[],
            answer=truth[0],
            tags=[entry["scenario"]],
            data=truth,
        )


def _all_turns(rollout: Rollout[Any]) -> bool:
    dialogue = rollout.environment.Dialogue
    return bool(dialogue.turn == len(dialogue.turns) - 1)


def _answered(rollout: Rollout[Any]) -> None:
    verdict = agentic_checker(rollout.answer, rollout.task.data)
    rollout.check("the answer has one of the expected texts", verdict["valid"], rollout.answer[:200])


memory_kv = _memory("kv")
memory_rec_sum = _memory("rec_sum")
