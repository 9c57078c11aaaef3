"""Environments for trainers that exchange texts with them, as those of SkyRL-gym and GEM do.

What a model is told of functions and how its calls are read stands here, in the form that Hermes' and Qwen's
models know; what a rollout is, `environments` says.
"""

import copy
import json
import math
import re
from typing import Any, Self

from toolpack_server.base.errors import RemoteFunctionError
from toolpack_server.training.environments import TrainingEnvironment, as_text

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FORM = "A call is a JSON object with a name, which is a text, and arguments, which are an object"
_GUIDE = """\
You can call these functions:
<tools>
{functions}
</tools>
To call one, write
<tool_call>
{{"name": "function", "arguments": {{"parameter": "value"}}}}
</tool_call>
and wait for its result, which comes as <tool_response>. A text without a call is your answer, and ends the task.

{prompt}"""


class TextEnvironment:
    """One task, played in texts: what stands between `<tool_call>` and `</tool_call>` is called.

    Args:
        url: The server's.
        task: The task, as `toolpack/name`.
        max_turns: How many texts a model has; after the last one the rollout is cut off.
        more: Further parameters of `TrainingEnvironment`.

    Attributes:
        environment: The `TrainingEnvironment` that is played.
    """

    def __init__(self, url: str, task: str, *, max_turns: int = 20, **more: Any) -> None:
        self.environment = TrainingEnvironment(url, task, **more)
        self._max_turns, self._turns = max_turns, 0

    def reset(self) -> str:
        """Begin the next rollout, and get what its model reads first: its functions, how to call them, the prompt."""
        self._turns = 0
        prompt = self.environment.reset()
        functions = "\n".join(json.dumps(each, ensure_ascii=False) for each in self.environment.functions)
        return _GUIDE.format(functions=functions, prompt=prompt)

    def step(self, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Do what a model's text says: all its calls; a text without one is the answer.

        Returns:
            As `step` of Gymnasium: what the model reads next, the reward, whether the model has answered, whether the
            rollout was cut off, and `valid` and `failure`. The reward is 0 before the end, and NaN if it says nothing
            of the model, which `failure` explains: leave the sample out.
        """
        self._turns += 1
        told, answered, cut = "", False, self._turns >= self._max_turns
        try:
            if calls := _CALL.findall(text):
                told = "\n".join(f"<tool_response>\n{self._result(call)}\n</tool_response>" for call in calls)
            else:
                answered = True
                self.environment.submit_answer(text)
        except RemoteFunctionError as error:  # the answer is too long
            told = str(error)
        except RuntimeError:  # the server can't be reached
            answered, cut = False, True
        reward = self.environment.get_reward() if answered or cut else 0.0
        info = {"valid": reward is not None, "failure": self.environment.problem}
        return told, math.nan if reward is None else reward, answered, cut and not answered, info

    def fork(self) -> Self:
        """Begin another rollout from where this one is; it must be closed, too."""
        made = copy.copy(self)
        made.environment = self.environment.fork()
        return made

    def close(self) -> None:
        """Close the rollout's session."""
        self.environment.close()

    def _result(self, call: str) -> str:
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
