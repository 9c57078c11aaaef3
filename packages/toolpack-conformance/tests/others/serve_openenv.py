"""An OpenEnv server for `toolpack-server conform --protocol openenv`: `python serve_openenv.py PORT`."""

import sys
from typing import Any

import uvicorn
from openenv.core.env_server import Environment, State, create_fastapi_app
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from world import FUNCTIONS, World


class ConformEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, *_args: Any, **_kwargs: Any) -> CallToolObservation:
        self.world = World()
        return CallToolObservation(tool_name="", result=None)

    def step(self, action: CallToolAction, *_args: Any, **_kwargs: Any) -> CallToolObservation:
        name, given = action.tool_name, action.arguments
        if name == "submit_answer":
            return CallToolObservation(tool_name=name, result=None, reward=self.judge(), done=True)
        if name not in FUNCTIONS:
            raise ValueError(f"there is no function {name}")
        return CallToolObservation(tool_name=name, result=getattr(self.world, name)(**given))

    def judge(self) -> float:
        if self.world.total() == 4:
            raise RuntimeError("this evaluator fails where the total is 4")
        return float(self.world.total() == 5)

    @property
    def state(self) -> State:
        return State()


app = create_fastapi_app(ConformEnvironment, CallToolAction, CallToolObservation, max_concurrent_envs=1000)
uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
