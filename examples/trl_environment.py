"""A task of Toolpack Server as the environment of TRL's GRPOTrainer (https://huggingface.co/docs/trl).

TRL needs only `TrainingEnvironment` and `submit_answers`: with your own model, the function `train` is the whole
program. `python examples/trl_environment.py http://127.0.0.1:8000 bank/save-300` makes one training step with a tiny,
untrained model. The model's texts are scripted: in a group of four rollouts, two follow the task's solution and two do
nothing. The update of the weights from the rewards is real.
"""

import json
import sys
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

from toolpack_server import Client
from toolpack_server.environments import TrainingEnvironment, submit_answers


def train(url: str, task: str, model: Any, tokenizer: Any, **settings: Any) -> GRPOTrainer:
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=submit_answers,  # submits the model's last text; the reward comes from the environment
        environment_factory=partial(TrainingEnvironment, url, task, labels={"run": "trl"}),
        args=GRPOConfig(num_generations=4, max_steps=1, max_completion_length=4096, **settings),
    )
    trainer.train()
    return trainer


class ScriptedModel(Qwen3ForCausalLM):
    """Writes the next text of a script. The number of tool responses in the conversation is the index of this text."""

    def generate(self, input_ids: torch.Tensor, **_more: Any) -> torch.Tensor:
        texts = []
        for number, ids in enumerate(input_ids):
            responses = self.tokenizer.decode(ids).count("<tool_response>")
            texts.append(self.text(number, responses))
        texts = [text + self.tokenizer.eos_token for text in texts]
        return torch.cat([input_ids, self.tokenizer(texts, padding=True, return_tensors="pt").input_ids], dim=1)

    def text(self, number: int, responses: int) -> str:
        """Return the next text of a conversation. Conversations with an odd number do nothing."""
        return self.script[responses] if responses or number % 2 == 0 else "Done."


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per byte, and the chat template of Qwen 3."""
    vocabulary = {each: number for number, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "additional_special_tokens": ["<|im_start|>"]}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=qwen3_chat_template, **special)


def texts_of_solution(client: Client, task: str) -> list[str]:
    """Return the texts of a model that follows the task's solution: its calls, then the answer."""
    session = client.create_session(task=task)
    solution = client.get_solution(session["session_id"])
    client.close_session(session["session_id"])
    calls = [json.dumps({"name": call["function"], "arguments": call["kwargs"]}) for call in solution["calls"]]
    return [*(f"<tool_call>\n{call}\n</tool_call>" for call in calls), solution["answer"] or "Done."]


if __name__ == "__main__":
    url, task = sys.argv[1:]
    tokenizer = byte_tokenizer()
    sizes = {"hidden_size": 16, "intermediate_size": 16, "head_dim": 8, "max_position_embeddings": 32768}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = ScriptedModel(Qwen3Config(vocab_size=len(tokenizer), **sizes, **layers))
    model.tokenizer = tokenizer
    with Client(url) as client:
        model.script = texts_of_solution(client, task)
    before = model.lm_head.weight.clone()
    with TemporaryDirectory() as folder:
        settings = {"per_device_train_batch_size": 4, "logging_steps": 1, "report_to": "none", "disable_tqdm": True}
        trainer = train(url, task, model, tokenizer, output_dir=folder, use_cpu=True, bf16=False, **settings)
    print("rewards:", *(each.verdict["reward"] for each in trainer.environments))
    print("learnt:", not torch.equal(before, model.lm_head.weight))
    for each in trainer.environments:  # TRL doesn't close the last rollouts
        each.close()
