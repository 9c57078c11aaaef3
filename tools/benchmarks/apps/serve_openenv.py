"""OpenEnv: an environment that counts, over HTTP.

The second argument selects the environment. All steps and tools are async, so they run without a thread switch.

- `step`: requests to `/step`. OpenEnv creates an environment for each request, so all environments share one counter.
- `tool`: tool calls at `/mcp`. Each session has an environment of its own.
- `wait`: steps on WebSockets, which wait. Each WebSocket has an environment of its own.
"""

import asyncio
import sys
from typing import Any

from fastmcp import FastMCP
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from serving import serve


class Add(Action):
    amount: int


class Sum(Observation):
    value: int


class Counter:
    count = 0

    def add(self, amount: int) -> int:
        self.count += amount
        return self.count


shared = Counter()


class SteppedEnvironment(Environment):
    def reset(self, *_args: Any, **_kwargs: Any) -> Observation:
        return Sum(value=shared.count)

    def step(self, action: Action, *_args: Any, **_kwargs: Any) -> Observation:
        return Sum(value=shared.add(action.amount))

    async def step_async(self, action: Action, *_args: Any, **_kwargs: Any) -> Observation:
        return self.step(action)

    @property
    def state(self) -> State:
        return State()


class ToolEnvironment(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server, counter = FastMCP("counter"), Counter()

        @server.tool
        async def add(amount: int) -> int:
            """Add to the counter and return the sum."""
            return counter.add(amount)

        super().__init__(server)

    def reset(self, *_args: Any, **_kwargs: Any) -> Observation:
        return Observation()

    def _step_impl(self, action: Action, *_args: Any, **_kwargs: Any) -> Observation:
        raise NotImplementedError(action)

    @property
    def state(self) -> State:
        return State()


class Wait(Action):
    seconds: float


class WaitingEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.counter = Counter()

    def reset(self, *_args: Any, **_kwargs: Any) -> Observation:
        return Sum(value=0)

    def step(self, action: Action, *_args: Any, **_kwargs: Any) -> Observation:
        raise NotImplementedError(action)

    async def step_async(self, action: Action, *_args: Any, **_kwargs: Any) -> Observation:
        await asyncio.sleep(action.seconds)
        return Sum(value=self.counter.add(1))

    @property
    def state(self) -> State:
        return State()


if sys.argv[2] == "wait":
    serve(create_fastapi_app(WaitingEnvironment, Wait, Sum, max_concurrent_envs=100_000), ws="auto")
elif sys.argv[2] == "step":
    serve(create_fastapi_app(SteppedEnvironment, Add, Sum))
else:
    serve(create_fastapi_app(ToolEnvironment, Add, Sum, max_concurrent_envs=64))
