"""Tasks of Toolpack Server as a task of Inspect AI (https://inspect.aisi.org.uk).

`inspect eval examples/inspect_task.py --model openai/gpt-4o -T toolpack=bank` lets a model play the tasks of `bank`.
`python examples/inspect_task.py http://127.0.0.1:8000 bank` plays them with a script that follows the solutions. With
`-T variants=outage,lost`, or `--variant outage lost`, each task is also played with these variants if it has them.
"""

import sys
from typing import Any

from inspect_ai import Task, eval, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, Target, accuracy, scorer
from inspect_ai.solver import Generate, TaskState, solver
from inspect_ai.tool import ToolDef, ToolParams

from toolpack_server import AsyncAgentClient, AsyncClient, Client


def as_inspect_tool(agent: AsyncAgentClient, function: dict[str, Any]) -> Any:
    """Return a tool of Inspect AI that calls a function of the session."""

    async def execute(**kwargs: Any) -> Any:
        envelope = await agent.run_function(function["name"], kwargs)
        return str(envelope["result"] if envelope["error"] is None else envelope["error"])

    parameters = ToolParams.model_validate({**function["parameters"], "additionalProperties": False})
    return ToolDef(execute, function["name"], function["description"], parameters).as_tool()


@solver
def rollout(url: str) -> Any:
    """Return a solver that plays a task in a session of the server."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        async with AsyncClient(url) as client:
            name, variant = state.metadata["task"], state.metadata["variant"]
            rules = variant and {"variant": variant, "seed": str(state.epoch)}
            session = await client.create_session(task=name, perturbations=rules)
        async with AsyncAgentClient(url + session["agent_path"]) as agent:
            state.tools = [as_inspect_tool(agent, each) for each in (await agent.list_functions())["result"]]
            state = await generate(state)
            await agent.submit_answer(state.output.completion)
        state.metadata["session_id"] = session["session_id"]
        return state

    return solve


@scorer(metrics=[accuracy()])
def reward(url: str) -> Any:
    """Return a scorer that evaluates the solver's session."""

    async def score(state: TaskState, _target: Target) -> Score:
        async with AsyncClient(url) as client:
            verdict = await client.evaluate_session(state.metadata["session_id"], raise_on_error=False)
        if not verdict["valid"]:  # the evaluation failed, so Inspect AI leaves the sample out of its metrics
            return Score.unscored(reason=verdict["failure"]["kind"], explanation=verdict["failure"]["message"])
        return Score(value=verdict["reward"], answer=state.output.completion, explanation=str(verdict["checks"]))

    return score


@task
def toolpack_tasks(url: str = "http://127.0.0.1:8000", toolpack: str | None = None, variants: str = "") -> Task:
    with Client(url) as client:
        tasks = client.list_tasks(toolpack=toolpack, limit=1000)["tasks"]
    samples = []
    for each in tasks:
        for variant in [None, *(name for name in variants.split(",") if name in each["variants"])]:
            metadata = {"task": each["task"], "variant": variant}
            samples.append(
                Sample(input=each["prompt"], id="#".join(filter(None, metadata.values())), metadata=metadata)
            )
    return Task(dataset=samples, solver=rollout(url), scorer=reward(url))


def scripted_outputs(url: str, name: str) -> list[ModelOutput]:
    """Return the outputs of a model that follows the task's solution: its calls, then the answer."""
    with Client(url) as client:
        solution = client.get_solution(client.create_session(task=name)["session_id"])
    calls = [ModelOutput.for_tool_call("mockllm/model", each["function"], each["kwargs"]) for each in solution["calls"]]
    outputs = [*calls, ModelOutput.from_content("mockllm/model", solution["answer"] or "Done.")]
    return [output.model_copy(update={"usage": ModelUsage()}) for output in outputs]


if __name__ == "__main__":
    url, toolpack, *variants = [argument for argument in sys.argv[1:] if argument != "--variant"]
    selected = toolpack_tasks(url, toolpack, ",".join(variants))
    outputs = [output for sample in selected.dataset for output in scripted_outputs(url, sample.metadata["task"])]
    (log,) = eval(selected, get_model("mockllm/model", custom_outputs=outputs), max_samples=1, display="none")
    print(log.status, log.results and log.results.scores[0].metrics["accuracy"].value)
