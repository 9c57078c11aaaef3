"""Values of calls (docs/train/values.md) as token advantages in TRL's GRPOTrainer.

`python examples/trl_values.py http://127.0.0.1:8000 bank/cancel-climbing` makes one training step with the tiny model
of `trl_environment.py`. Its texts are scripted: in a group of four, two follow the task's solution and two cancel the
wrong order. The update of the weights from the advantages is real.
"""

import sys
from functools import partial
from itertools import groupby
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import Qwen3Config
from trl import GRPOConfig, GRPOTrainer
from trl_environment import ScriptedModel, byte_tokenizer, texts_of_solution

from toolpack_server import Client
from toolpack_server.environments import TrainingEnvironment, submit_answers


class ValueTrainer(GRPOTrainer):
    """Gives the tokens of each of the model's texts the advantage of the text's call, not one advantage per rollout.

    A text without a call, or with a call that changes nothing, has the advantage 0. Each text has at most one call.
    """

    def __init__(self, *given: Any, client: Client, **more: Any) -> None:
        super().__init__(*given, **more)
        self._client = client
        self.worth: list[list[float]] = []

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        said = output["completion_mask"] * output["tool_mask"]  # 0 for tool responses
        advantages = torch.zeros_like(said, dtype=torch.float32)
        self.worth = [self._advantages(each.session["session_id"]) for each in self.environments]
        for row, worth in enumerate(self.worth):
            place, left = 0, iter(worth)
            for is_said, tokens in groupby(said[row].tolist()):
                length = len([*tokens])
                if is_said:
                    advantages[row, place : place + length] = next(left, 0.0)
                place += length
        return {**output, "advantages": advantages}

    def _advantages(self, session_id: str) -> list[float]:
        """Return the advantage of each call of a rollout."""
        return [call.advantage or 0.0 for call in self._client.values(session_id).calls]


class SpoilingModel(ScriptedModel):
    """Follows the script, but cancels the wrong order in every second conversation."""

    def text(self, number: int, heard: int) -> str:
        said = self.script[heard]
        return said.replace('"order_id": 3', '"order_id": 2') if number % 2 else said


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
            client=client,
            model=model,
            processing_class=tokenizer,
            reward_funcs=submit_answers,
            environment_factory=partial(TrainingEnvironment, url, task, labels={"run": "trl"}),
            args=GRPOConfig(output_dir=folder, use_cpu=True, bf16=False, **lengths, **settings),
        )
        trainer.train()
        for environment, worth in zip(trainer.environments, trainer.worth, strict=True):
            print("reward", environment.verdict["reward"], "advantages", *worth)
            environment.close()
    print("learnt:", not torch.equal(before, model.lm_head.weight))
