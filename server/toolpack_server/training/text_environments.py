"""Environments for trainers that exchange plain text, such as SkyRL-gym and GEM.

This module describes the functions to the model and parses the model's calls, in the format that Hermes and Qwen models
use. The module `environments` plays the rollouts.
"""

import copy
import json
import math
import re
from typing import Any, Self

from toolpack_server.base.errors import RemoteFunctionError
from toolpack_server.training.environments import TrainingEnvironment, as_text

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FORM = "A call is a JSON object with `name`, a string, and `arguments`, an object"
_GUIDE = """\
You can call these functions:
<tools>
{functions}
</tools>
To call one, write
<tool_call>
{{"name": "function", "arguments": {{"parameter": "value"}}}}
</tool_call>
and wait for its result, which comes as <tool_response>. A text without a call is your answer and ends the task.

{prompt}"""


class TextEnvironment:
    """One task, played by exchanging texts with the model. The model writes calls in `<tool_call>` elements.

    Args:
        url: The server's base URL.
        task: The task, as `toolpack/name`.
        max_turns: Maximum number of texts from the model. After the last text, the rollout is truncated.
        more: Further parameters of `TrainingEnvironment`.

    Attributes:
        environment: The underlying `TrainingEnvironment`.
    """

    def __init__(self, url: str, task: str, *, max_turns: int = 20, **more: Any) -> None:
        self.environment = TrainingEnvironment(url, task, **more)
        self._max_turns, self._turns = max_turns, 0

    def reset(self) -> str:
        """Begin the next rollout. Return the first text for the model: functions, call format and prompt."""
        self._turns = 0
        prompt = self.environment.reset()
        functions = "\n".join(json.dumps(each, ensure_ascii=False) for each in self.environment.functions)
        return _GUIDE.format(functions=functions, prompt=prompt)

    def step(self, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Make all calls in a model's text. If the text contains no call, submit it as the answer.

        Returns:
            The five values of Gymnasium's `step`: the observation (the next text for the model), the reward, terminated
            (the model answered), truncated, and an info dictionary with `valid` and `failure`. The reward is 0 before
            the end. If the rollout is invalid, the reward is NaN and `failure` is the reason. Leave such a sample out
            of the training.
        """
        self._turns += 1
        observation, answered, truncated = "", False, self._turns >= self._max_turns
        try:
            if calls := _CALL.findall(text):
                observation = "\n".join(f"<tool_response>\n{self._result(call)}\n</tool_response>" for call in calls)
            else:
                answered = True
                self.environment.submit_answer(text)
        except RemoteFunctionError as error:  # the answer is too long
            observation = str(error)
        except RuntimeError:  # the server can't be reached
            answered, truncated = False, True
        reward = self.environment.get_reward() if answered or truncated else 0.0
        info = {"valid": reward is not None, "failure": self.environment.problem}
        return observation, math.nan if reward is None else reward, answered, truncated and not answered, info

    def fork(self) -> Self:
        """Fork this rollout at its present state. Return the fork's environment, which you must also close."""
        fork = copy.copy(self)
        fork.environment = self.environment.fork()
        return fork

    def close(self) -> None:
        """Close the rollout's session."""
        self.environment.close()

    def _result(self, call: str) -> str:
        """Make one call, given as the JSON that the model wrote. Return the result or the error, as text for the model.

        Raises:
            RuntimeError: The server can't be reached, so the rollout is invalid.
        """
        try:
            match json.loads(call):
                case {"name": str(name), "arguments": dict(arguments)}:
                    return as_text(self.environment.call(name, **arguments))
                case _:
                    return f"{_FORM}."
        except RecursionError:
            return f"{_FORM}: it is nested too deeply."
        except ValueError as error:
            return f"{_FORM}: {error}"
        except RemoteFunctionError as error:
            return str(error)
