"""Comparison of the server's verdicts on BFCL's entries with BFCL's own: `python -m tools.bfcl_parity` runs all 800.

Each entry is run in BFCL's own code and on the server: with its ground truth, without calls, and with mutations of the
ground truth. The results of the calls and the verdicts must be equal.
"""

import copy
import json
import random

import serving
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

from toolpack_server.packs.loading import load_catalog
from toolpacks import bfcl
from tools import parity

MAX_MUTANTS = 3


def runs(entry, mutants=MAX_MUTANTS):
    """Yield the name and the calls of each run, turn by turn."""
    truth = entry["ground_truth"]
    yield "ground truth", truth
    yield "nothing", [[] for _ in truth]
    rng = random.Random(entry["id"])
    for number in range(mutants):
        turns = copy.deepcopy(truth)
        turn = rng.choice([turn for turn in turns if turn])
        kind = rng.choice(("omit", "twice", "argument"))
        index = rng.randrange(len(turn))
        if kind == "omit":
            del turn[index]
        elif kind == "twice":
            turn.insert(index, turn[index])
        else:
            name, kwargs = bfcl.parse_call(turn[index])
            turn[index] = bfcl.format_call(name, {key: change_value(value) for key, value in kwargs.items()})
        yield f"{kind} {number}", turns


def change_value(value):
    """Return another value of the same type."""
    if isinstance(value, str):
        return f"{value} too"
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else type(value)()  # a list or an object


def run_in_process(entry, turns, name):
    """Return BFCL's own verdict, and the results of its execution of the calls."""
    results, _ = multi_turn_utils.execute_multi_turn_func_call(
        [call for turn in turns for call in turn],
        entry["initial_config"],
        entry["involved_classes"],
        f"{name}_results",
        entry["id"],
        long_context="long_context" in entry["id"],
    )
    calls = [[[call] for call in turn] for turn in turns]
    return bool(multi_turn_checker(calls, entry["ground_truth"], entry, "", name)["valid"]), results


def run_on_server(bench, entry, turns):
    """Return the server's verdict, and the results of its calls in BFCL's form."""
    session = bench.rpc("create_session", task=f"bfcl/{entry['id']}")["session_id"]
    results = []
    for number, turn in enumerate(turns):
        if number:
            bench.rpc("run_function", session_id=session, function="next_turn")
        for call in turn:
            function, kwargs = bfcl.parse_call(call)
            envelope = bench.rpc("run_function", session_id=session, function=function, kwargs=kwargs)
            results.append(envelope)
    verdict = bench.rpc("evaluate_session", session_id=session)
    bench.rpc("close_session", session_id=session)
    return verdict["passed"], results


def same(envelope, result):
    """Return whether an envelope has the same result as BFCL's execution, which gives JSON, or else `str`, as text."""
    if envelope["error"] is not None:
        return result.startswith("Error during execution: ")
    return envelope["result"] == result or json.dumps(envelope["result"]) == result or str(envelope["result"]) == result


def compare_entry(bench, entry, mutants=MAX_MUTANTS):
    """Make the runs of an entry in process and on the server, and yield the comparisons."""
    for name, turns in runs(entry, mutants):
        run = parity.Run(name)
        expected, results = run_in_process(entry, turns, name.replace(" ", "_"))
        passed, envelopes = run_on_server(bench, entry, turns)
        run.compare_verdicts(passed, expected)
        run.compare_results(envelopes, results, same)
        yield run


def main():
    entries = bfcl._entries()
    with serving.Bench(load_catalog((), ("bfcl",)), timeout_seconds=600) as bench:
        parity.compare_all("bfcl", entries, lambda name: compare_entry(bench, entries[name]))


if __name__ == "__main__":
    main()
