"""An OpenEnv server for `toolpack-server conform --protocol openenv`: `python serve_openenv.py PORT`."""

import sys
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from world import FUNCTIONS, World


class Call(Action):
    function: str
    kwargs: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it


class Answer(Observation):
    result: Any = None


class ConformEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, *_args: Any, **_kwargs: Any) -> Answer:
        self.world = World()
        return Answer()

    def step(self, action: Call, *_args: Any, **_kwargs: Any) -> Answer:
        if action.function == "judge":
            return Answer(reward=self.judge())
        if action.function not in FUNCTIONS:
            raise ValueError(f"there is no function {action.function}")
        return Answer(result=getattr(self.world, action.function)(**action.kwargs))

    def judge(self) -> float:
        if self.world.total() == 4:
            raise RuntimeError("this evaluator fails where the total is 4")
        return float(self.world.total() == 5)

    @property
    def state(self) -> State:
        return State()


app = create_fastapi_app(ConformEnvironment, Call, Answer, max_concurrent_envs=1000)
uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
