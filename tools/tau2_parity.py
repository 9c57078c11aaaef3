"""Comparison of the server's verdicts on tau2's tasks with tau2's own: `python -m tools.tau2_parity` runs all 2,449.

Each task is run in tau2's own code and on the server: with tau2's own calls (its solution), without calls, and with
mutations of the solution. The results of the calls and the verdicts must be equal.

tau2 keeps the changes of a failed call, and the server undoes them. The runs in process undo them, too. The program
lists the runs in which this changes the verdict, and the calls of tau2's own solutions that raise an error.
"""

import copy
import json
import pickle
import random
import sys
from functools import cache

import serving
from tau2.data_model.message import AssistantMessage, ToolCall, UserMessage
from tau2.evaluator.evaluator_action import ActionEvaluator
from tau2.evaluator.evaluator_communicate import CommunicateEvaluator
from tau2.evaluator.evaluator_env import EnvironmentEvaluator

from toolpack_server.features.evaluation.tasks.finding import find_task
from toolpack_server.packs.loading import load_catalog
from toolpacks import tau2
from tools import parity

DOMAINS = ("retail", "airline", "telecom")
MAX_MUTANTS = 2


@cache
def databases(domain):
    """Return a domain's databases as pickles, because loading them is many times faster than copying the objects."""
    bench = tau2._DOMAINS[domain][0].get_environment()
    return [pickle.dumps(tools.db) for tools in (bench.tools, bench.user_tools) if tools is not None]


def environment(domain, **_):
    """Return a new environment of tau2."""
    return tau2._DOMAINS[domain][0].get_environment(*map(pickle.loads, databases(domain)))


def runs(task, mutants=MAX_MUTANTS):
    """Yield the name, the calls and the agent's text of each run."""
    criteria = task.evaluation_criteria
    solution = [(each.requestor, each.name, each.arguments) for each in criteria.actions or ()]
    answer_text = "\n".join(criteria.communicate_info or ())
    yield "solution", solution, answer_text
    yield "nothing", [], ""
    rng = random.Random(task.id)
    for number in range(mutants if solution else 0):
        calls = copy.deepcopy(solution)
        kind, index = rng.choice(("omit", "twice", "argument", "silent")), rng.randrange(len(calls))
        *_, arguments = calls[index]
        if kind == "omit":
            del calls[index]
        elif kind == "twice":
            calls.insert(index, calls[index])
        elif kind == "argument" and arguments:
            key = rng.choice(sorted(arguments))
            value = arguments[key]
            arguments[key] = f"{value}0" if isinstance(value, str) else [] if isinstance(value, list) else 7
        yield f"{kind} {number}", calls, "" if kind == "silent" else answer_text


def run_in_process(domain, task, calls, *, keeps_changes=False):
    """Make the calls in tau2's environment. Return each call as tau2's message, with the environment's answer.

    Args:
        domain: Name of the domain.
        task: tau2's task.
        calls: The participant, function and arguments of each call.
        keeps_changes: Keep the changes of a failed call, as tau2 does.
    """
    state = task.initial_state
    initial = (state.initialization_data, state.initialization_actions) if state else (None, None)
    live, exchanges = environment(domain), []
    live.set_state(*initial, [])
    for number, (requestor, name, arguments) in enumerate(calls):
        call = ToolCall(id=str(number), name=name, arguments=copy.deepcopy(arguments), requestor=requestor)
        answer = live.get_response(call)
        message = UserMessage if requestor == "user" else AssistantMessage
        exchanges.append((message(role=requestor, tool_calls=[call]), answer))
        if answer.error and not keeps_changes:
            live = environment(domain)
            live.set_state(*initial, [])
            for earlier, earlier_answer in exchanges:
                if not earlier_answer.error:
                    live.get_response(earlier.tool_calls[0])
    return exchanges


def verdict(domain, task, exchanges, text, *, keeps_changes=False):
    """Return tau2's own verdict. Failed calls count as calls, but change the world only if `keeps_changes` is true."""
    world = [part for message, answer in exchanges if keeps_changes or not answer.error for part in (message, answer)]
    everything = [message for message, _ in exchanges] + [AssistantMessage(role="assistant", content=text or "-")]
    parts = EnvironmentEvaluator.calculate_reward(lambda **_: environment(domain), task, world).reward_breakdown or {}
    for evaluator in (ActionEvaluator, CommunicateEvaluator):
        parts = {**parts, **evaluator.calculate_reward(task, everything).reward_breakdown}
    reward = 1.0
    for basis in task.evaluation_criteria.reward_basis:
        reward *= parts.get(basis, 1.0)
    return reward >= 1


def run_on_server(bench, domain, name, calls, answer_text):
    """Make the calls on the server, at their participants' addresses. Return the server's verdict and the envelopes."""
    session = bench.rpc("create_session", task=f"tau2-{domain}/{name}")
    participants = session.get("participants").items()
    keys = {participant: paths["agent_path"].rpartition("/")[2] for participant, paths in participants}
    envelopes = [
        bench.rpc("run_function", agent_key=keys[tau2.REQUESTORS[participant]], function=function, kwargs=arguments)
        for participant, function, arguments in calls
    ]
    if answer_text:
        bench.rpc("submit_answer", agent_key=keys["agent" if domain != "telecom" else "user"], answer=answer_text)
    verdict = bench.rpc("evaluate_session", session_id=session["session_id"])
    bench.rpc("close_session", session_id=session["session_id"])
    return verdict["passed"], envelopes


def same(envelope, answer):
    """Return whether an envelope has the same result or error as the answer of tau2's environment."""
    if answer.error:
        text = answer.content.removeprefix("Error: ")
        return envelope["error"] is not None and envelope["error"].partition(": ")[2] == text
    try:
        expected = json.loads(answer.content)
    except ValueError:
        expected = answer.content
    return envelope["error"] is None and numbers_as_text(envelope["result"]) == numbers_as_text(expected)


def numbers_as_text(value):
    """Return a value with its numbers as texts, because tau2 writes numbers outside models as texts."""
    if isinstance(value, dict):
        return {key: numbers_as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers_as_text(item) for item in value]
    return value if value is None else str(value)


def compare_task(bench, domain, name, mutants=MAX_MUTANTS):
    """Make the runs of a task in process and on the server, and yield the comparisons."""
    task, catalog = tau2._tasks(domain)[name], bench.service.context.catalog
    for label, calls, answer_text in runs(task, mutants):
        run = parity.Run(label)
        exchanges = run_in_process(domain, task, calls)
        expected, answers = verdict(domain, task, exchanges, answer_text), [answer for _, answer in exchanges]
        passed, envelopes = run_on_server(bench, domain, name, calls, answer_text)
        run.compare_verdicts(passed, expected)
        run.compare_results(envelopes, answers, same)
        if label == "nothing" and passed != find_task(catalog, f"tau2-{domain}/{name}")[1].nop_passes:
            run.differences["with a wrong nop_passes"] = f"it is {not passed}"
        raised = [
            f"{function}: {each.content}" for (_, function, _), each in zip(calls, answers, strict=True) if each.error
        ]
        if raised and label == "solution":
            run.remarks["calls of tau2's own runs that raise"] = raised
        if raised:
            exchanges = run_in_process(domain, task, calls, keeps_changes=True)
            if expected != verdict(domain, task, exchanges, answer_text, keeps_changes=True):
                run.remarks["where tau2's verdict differs, because it keeps the changes of a failed call"] = raised[:1]
        yield run


def main():
    for domain in sys.argv[1:] or DOMAINS:
        with serving.Bench(load_catalog((), (f"tau2-{domain}",)), timeout_seconds=600) as bench:
            parity.compare_all(domain, tau2._tasks(domain), lambda name, at=(bench, domain): compare_task(*at, name))


if __name__ == "__main__":
    main()
