"""Values of calls (docs/train/values.md) as token advantages in TRL's GRPOTrainer.

`python examples/trl_values.py http://127.0.0.1:8000 bank/cancel-climbing` makes one training step with the tiny model
of `trl_environment.py`. The model's texts are scripted: in a group of four rollouts, two follow the task's solution and
two cancel the wrong order. The update of the weights from the advantages is real.
"""

import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import groupby
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import Qwen3Config
from trl import GRPOConfig, GRPOTrainer
from trl_environment import ScriptedModel, byte_tokenizer, texts_of_solution

from toolpack_server import Client
from toolpack_server.client import SessionValues
from toolpack_server.environments import TrainingEnvironment, submit_answers


class ValueTrainer(GRPOTrainer):
    """Gives each of the model's texts an advantage of its own, not one advantage to the whole rollout.

    The advantage of a text with calls is the sum of the advantages of these calls. The last text has no call, so it has
    the advantage of the answer.

    Args:
        values: A function that returns the values of a rollout, such as `client.values`.
    """

    def __init__(self, *args: Any, values: Callable[[str], SessionValues], reward_funcs: Any, **more: Any) -> None:
        super().__init__(*args, reward_funcs=[reward_funcs, self._compute_values], **more)
        self._values = values
        self.text_advantages: list[list[float]] = []

    def _compute_values(self, completions: Any, environments: Any, **_more: Any) -> list[None]:
        """Estimate the values of rollouts whose answers were submitted. TRL calls this as a reward function."""
        if self.model.training:
            values = [self._values(each.session["session_id"]) for each in environments]
            self.text_advantages = [advantages_of_texts(*each) for each in zip(completions, values, strict=True)]
        return [None] * len(completions)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return output
        model_tokens = output["completion_mask"] * output["tool_mask"]  # 0 for tool responses
        advantages = torch.zeros_like(model_tokens, dtype=torch.float32)
        for row, text_advantages in enumerate(self.text_advantages):
            index, remaining = 0, iter(text_advantages)
            for by_model, tokens in groupby(model_tokens[row].tolist()):
                length = len([*tokens])
                if by_model:
                    advantages[row, index : index + length] = next(remaining, 0.0)
                index += length
        return {**output, "advantages": advantages}


def advantages_of_texts(messages: list[dict[str, Any]], values: SessionValues) -> list[float]:
    """Return the advantage of each of the model's texts. Calls that didn't reach the server add nothing to it."""
    remaining, advantages = deque(values.calls), []
    for message in messages:
        calls = [each["function"] for each in message.get("tool_calls") or ()]
        advantage = 0.0
        for call in calls:
            record = remaining[0].record if remaining else None
            if record and (call["name"], call["arguments"]) == (record["function"], record["kwargs"]):
                advantage += remaining.popleft().advantage or 0.0
        if message is messages[-1] and not calls and values.answer:
            advantage = values.answer.advantage or 0.0
        if message["role"] == "assistant":
            advantages.append(advantage)
    return advantages


class SpoilingModel(ScriptedModel):
    """Follows the script, but cancels the wrong order in every second conversation."""

    def text(self, number: int, responses: int) -> str:
        text = self.script[responses]
        return text.replace('"order_id": 3', '"order_id": 2') if number % 2 else text


if __name__ == "__main__":
    url, task = sys.argv[1:]
    tokenizer = byte_tokenizer()
    sizes = {"hidden_size": 16, "intermediate_size": 16, "head_dim": 8, "max_position_embeddings": 32768}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = SpoilingModel(Qwen3Config(vocab_size=len(tokenizer), **sizes, **layers))
    model.tokenizer = tokenizer
    with Client(url) as client, TemporaryDirectory() as folder:
        model.script = texts_of_solution(client, task)
        before = model.lm_head.weight.clone()
        settings = {"per_device_train_batch_size": 4, "logging_steps": 1, "report_to": "none", "disable_tqdm": True}
        lengths = {"num_generations": 4, "max_steps": 1, "max_completion_length": 4096}
        trainer = ValueTrainer(
            values=client.values,
            model=model,
            processing_class=tokenizer,
            reward_funcs=submit_answers,
            environment_factory=partial(TrainingEnvironment, url, task, labels={"run": "trl"}),
            args=GRPOConfig(output_dir=folder, use_cpu=True, bf16=False, **lengths, **settings),
        )
        trainer.train()
        for environment, text_advantages in zip(trainer.environments, trainer.text_advantages, strict=True):
            print("reward", environment.verdict["reward"], "advantages", *text_advantages)
            environment.close()
    print("learnt:", not torch.equal(before, model.lm_head.weight))
