"""Comparison of the server's verdicts on tau2's tasks with tau2's own: `python -m tools.tau2_parity` runs all 2,449.

Each task is run with tau2's own calls, without calls, and with mutations of its calls. First the results of the calls
are compared, and then the verdicts. tau2 keeps the changes of a failed call, and the server doesn't; the runs in
process don't keep them either. The program names the runs in which this changes the verdict, and the calls of tau2's
own runs that raise in one place or both.
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
MUTANTS = 2


@cache
def databases(domain):
    """Return a domain's databases as bytes. Loading them is many times faster than copying the objects."""
    bench = tau2._DOMAINS[domain][0].get_environment()
    return [pickle.dumps(tools.db) for tools in (bench.tools, bench.user_tools) if tools is not None]


def environment(domain, **_):
    """Return a new environment of tau2."""
    return tau2._DOMAINS[domain][0].get_environment(*map(pickle.loads, databases(domain)))


def runs(task, mutants=MUTANTS):
    """Yield the calls to try and the agent's text, by name."""
    criteria = task.evaluation_criteria
    golden = [(each.requestor, each.name, each.arguments) for each in criteria.actions or ()]
    said = "\n".join(criteria.communicate_info or ())
    yield "golden", golden, said
    yield "nothing", [], ""
    chance = random.Random(task.id)
    for number in range(mutants if golden else 0):
        calls = copy.deepcopy(golden)
        kind, index = chance.choice(("omit", "twice", "argument", "silent")), chance.randrange(len(calls))
        *_, arguments = calls[index]
        if kind == "omit":
            del calls[index]
        elif kind == "twice":
            calls.insert(index, calls[index])
        elif kind == "argument" and arguments:
            key = chance.choice(sorted(arguments))
            value = arguments[key]
            arguments[key] = f"{value}0" if isinstance(value, str) else [] if isinstance(value, list) else 7
        yield f"{kind} {number}", calls, "" if kind == "silent" else said


def in_process(domain, task, calls, *, keeps=False):
    """Return the calls as tau2's messages, each with the answer of its environment.

    Args:
        keeps: Keep the changes of a failed call.
    """
    state = task.initial_state
    initial = (state.initialization_data, state.initialization_actions) if state else (None, None)
    live, answered = environment(domain), []
    live.set_state(*initial, [])
    for number, (requestor, name, arguments) in enumerate(calls):
        call = ToolCall(id=str(number), name=name, arguments=copy.deepcopy(arguments), requestor=requestor)
        answer = live.get_response(call)
        message = UserMessage if requestor == "user" else AssistantMessage
        answered.append((message(role=requestor, tool_calls=[call]), answer))
        if answer.error and not keeps:
            live = environment(domain)
            live.set_state(*initial, [])
            for earlier, earlier_answer in answered:
                if not earlier_answer.error:
                    live.get_response(earlier.tool_calls[0])
    return answered


def verdict(domain, task, answered, text, *, keeps=False):
    """Return tau2's own verdict. Failed calls count as calls, but change the world only if `keeps` is true."""
    world = [part for message, answer in answered if keeps or not answer.error for part in (message, answer)]
    everything = [message for message, _ in answered] + [AssistantMessage(role="assistant", content=text or "-")]
    parts = EnvironmentEvaluator.calculate_reward(lambda **_: environment(domain), task, world).reward_breakdown or {}
    for evaluator in (ActionEvaluator, CommunicateEvaluator):
        parts = {**parts, **evaluator.calculate_reward(task, everything).reward_breakdown}
    reward = 1.0
    for basis in task.evaluation_criteria.reward_basis:
        reward *= parts.get(basis, 1.0)
    return reward >= 1


def on_server(bench, domain, name, calls, said):
    """Return the server's verdict and the envelopes of the calls, each sent to its participant's address."""
    session = bench.rpc("create_session", task=f"tau2-{domain}/{name}")
    keys = {who: paths["agent_path"].rpartition("/")[2] for who, paths in session.get("participants").items()}
    envelopes = [
        bench.rpc("run_function", agent_key=keys[tau2.REQUESTORS[who]], function=function, kwargs=arguments)
        for who, function, arguments in calls
    ]
    if said:
        bench.rpc("submit_answer", agent_key=keys["agent" if domain != "telecom" else "user"], answer=said)
    verdict = bench.rpc("evaluate_session", session_id=session["session_id"])
    bench.rpc("close_session", session_id=session["session_id"])
    return verdict["passed"], envelopes


def same(envelope, answer):
    """Return whether an envelope has the answer of tau2's environment."""
    if answer.error:
        text = answer.content.removeprefix("Error: ")
        return envelope["error"] is not None and envelope["error"].partition(": ")[2] == text
    try:
        expected = json.loads(answer.content)
    except ValueError:
        expected = answer.content
    return envelope["error"] is None and written(envelope["result"]) == written(expected)


def written(value):
    """Return a value with its numbers as texts, as tau2 writes numbers outside models."""
    if isinstance(value, dict):
        return {key: written(item) for key, item in value.items()}
    if isinstance(value, list):
        return [written(item) for item in value]
    return value if value is None else str(value)


def compared(bench, domain, name, mutants=MUTANTS):
    """Run a task in both places, and yield the comparisons."""
    task, catalog = tau2._tasks(domain)[name], bench.service.context.catalog
    for label, calls, said in runs(task, mutants):
        run = parity.Run(label)
        answered = in_process(domain, task, calls)
        expected, answers = verdict(domain, task, answered, said), [answer for _, answer in answered]
        passed, envelopes = on_server(bench, domain, name, calls, said)
        run.compare_verdicts(passed, expected)
        run.compare_results(envelopes, answers, same)
        if label == "nothing" and passed != find_task(catalog, f"tau2-{domain}/{name}")[1].nop_passes:
            run.differences["with a wrong nop_passes"] = f"it is {not passed}"
        raised = [
            f"{called}: {each.content}" for (_, called, _), each in zip(calls, answers, strict=True) if each.error
        ]
        if raised and label == "golden":
            run.remarks["calls of tau2's own runs that raise"] = raised
        if raised and expected != verdict(domain, task, in_process(domain, task, calls, keeps=True), said, keeps=True):
            run.remarks["where tau2's verdict differs, as it keeps what a failing call has changed"] = raised[:1]
        yield run


def main():
    for domain in sys.argv[1:] or DOMAINS:
        with serving.Bench(load_catalog((), (f"tau2-{domain}",)), timeout_seconds=600) as bench:
            parity.compare_all(domain, tau2._tasks(domain), lambda name, at=(bench, domain): compared(*at, name))


if __name__ == "__main__":
    main()
