"""Train a model on half of a toolpack's variants with TRL, and evaluate it on the other half.

`python examples/train_grpo.py http://127.0.0.1:8000` trains a tiny transformer from scratch on a CPU. With a GPU, name
a model: `--model Qwen/Qwen3-0.6B --rates 1e-5 2e-6`. docs/train/grpo.md has results.

A scripted agent follows the solutions of the tasks in the training half. TRL's SFTTrainer first trains the model on the
rollouts that pass, the demonstrations. Then TRL's GRPOTrainer trains it on the same half.
"""

import argparse
import json
import random
import warnings
from functools import partial, wraps
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from datasets import Dataset
from tiny_model import TEMPLATE, tiny_model, tiny_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
from trl.chat_template_utils import qwen3_template, supports_tool_calling
from trl_values import ValueTrainer

from toolpack_server import AgentClient, Client, RemoteFunctionError
from toolpack_server.environments import TrainingEnvironment, submit_answers

VARIANTS = ("clean", "outage", "flaky", "lost", "injection")


class Stopwatch:
    """The seconds in which the program waited for the server."""

    seconds = 0.0
    _is_running = False

    def measure(self, function: Any) -> Any:
        """Return the function, with its time added to `seconds`."""

        @wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            if self._is_running:  # a request of `client.values`, which is measured as a whole
                return function(*args, **kwargs)
            began, self._is_running = perf_counter(), True
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds, self._is_running = self.seconds + perf_counter() - began, False

        return measured


class Progress(TrainerCallback):
    """Prints the mean reward of each step."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_more: Any) -> None:
        if "reward" in logs:
            print(f"step {state.global_step}: reward {logs['reward']:.2f}, {logs['step_time']:.1f} s", flush=True)


def split(client: Client, toolpack: str, max_solution: int, seed: int) -> list[dict[str, dict[str, Any]]]:
    """Divide all variants of a toolpack's tasks into two halves. Leave out tasks with more than `max_solution` calls.

    Returns:
        The training half, and the half for the evaluation. A half has the parameters of each environment by its name.
    """
    halves: list[dict[str, dict[str, Any]]] = [{}, {}]
    half = 0
    for each in client.list_tasks(toolpack=toolpack)["tasks"]:
        task = client.get_task(each["task"])
        session = client.create_session(task=task["task"])
        solution = client.get_solution(session["session_id"])
        client.close_session(session["session_id"])
        variants = [name for name in VARIANTS if name == "clean" or name in task["variants"]]
        random.Random(f"{seed} {task['task']}").shuffle(variants)  # noqa: S311 - no secret
        for name in variants if len(solution["calls"]) <= max_solution else ():
            perturbations = None if name == "clean" else {"variant": name}
            halves[half][f"{task['task']} {name}"] = {"task": task["task"], "perturbations": perturbations}
            half = 1 - half
    return halves


def demonstrate(environment: TrainingEnvironment, client: Client) -> list[dict[str, Any]] | None:
    """Play a task's solution, with up to three tries of each call. Return the messages, or None if it doesn't pass."""
    messages = [{"role": "user", "content": environment.reset()}]
    solution = client.get_solution(environment.session["session_id"])
    for call in solution["calls"]:
        for _ in range(3):
            tool_call = {"type": "function", "function": {"name": call["function"], "arguments": call["kwargs"]}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [tool_call]})
            try:
                result, failed = getattr(environment, call["function"])(**call["kwargs"]), False
            except RemoteFunctionError as error:
                result, failed = str({"error": str(error)}), True  # TRL shows errors to the model in this form
            messages.append({"role": "tool", "name": call["function"], "content": result})
            if not failed:
                break
    messages.append({"role": "assistant", "content": solution["answer"] or "Done."})
    submit_answers([messages], [environment])
    reward = environment.get_reward()
    environment.close()
    return messages if reward == 1 else None


def finish(client: Client, agent: AgentClient, fork: Any) -> None:
    """Play the rest of a task's solution in a fork, with up to three tries of each call, as `demonstrate` does."""
    solution = client.get_solution(fork["session_id"])
    for call in solution["rest"]:
        for _ in range(3):
            if agent.run_function(call["function"], call["kwargs"])["error"] is None:
                break
    agent.submit_answer(solution["answer"] or "Done.")


def load(name: str, demonstrations: list[Any]) -> tuple[Any, Any]:
    """Return a model and its tokenizer. A chat template that can't show calls of functions is replaced."""
    if name == "tiny":
        tokenizer: Any = tiny_tokenizer(demonstrations)
        model: Any = tiny_model(tokenizer)
    else:
        path = Path(name)
        source, gguf = (path.parent, {"gguf_file": path.name}) if path.suffix == ".gguf" else (name, {})
        tokenizer = AutoTokenizer.from_pretrained(source, **gguf)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **gguf)
    if not supports_tool_calling(tokenizer):
        tokenizer.chat_template, tokenizer.response_template = TEMPLATE, qwen3_template
    return model, tokenizer


def rows(variants: dict[str, Any]) -> Dataset:
    """Return a row for each environment. Its prompt is empty, because TRL appends the prompt that `reset` returns."""
    return Dataset.from_list([{"environment": name, "prompt": [{"role": "user", "content": ""}]} for name in variants])


class Run:
    """A model, its demonstrations, and the trainers that play with it."""

    def __init__(self, options: argparse.Namespace, client: Client, folder: str) -> None:
        self.options, self.client, self.watch = options, client, Stopwatch()
        self.train, self.held_out = split(client, options.toolpack, options.max_solution, options.seed)
        self.labels = {"run": Path(folder).name}  # unique, so that this run closes only its own sessions
        self.factories = {
            name: partial(TrainingEnvironment, options.url, labels=self.labels, **parameters)
            for name, parameters in (self.train | self.held_out).items()
        }
        self.rollouts: list[tuple[str, TrainingEnvironment]] = []  # rollouts of the last batch, by environment's name
        rollouts = [demonstrate(self.factories[name](), client) for name in self.train]
        self.demonstrations = [messages for messages in rollouts if messages]
        self.model, self.tokenizer = load(options.model, self.demonstrations)
        self.settings: dict[str, Any] = {
            "output_dir": folder,
            "seed": options.seed,
            "report_to": "none",
            "disable_tqdm": True,
            "save_strategy": "no",
            "gradient_checkpointing": options.model != "tiny",
            **({} if torch.cuda.is_available() else {"use_cpu": True, "bf16": False}),
        }

    def imitate(self) -> None:
        """Train the model on the demonstrations."""
        args = SFTConfig(
            num_train_epochs=self.options.epochs,
            per_device_train_batch_size=4,
            learning_rate=self.options.rates[0],
            assistant_only_loss=True,
            max_length=None,
            **self.settings,
        )
        messages = Dataset.from_list([{"messages": each} for each in self.demonstrations], on_mixed_types="use_json")
        SFTTrainer(model=self.model, processing_class=self.tokenizer, train_dataset=messages, args=args).train()

    def trainer(self, advantages: str) -> Any:
        """Return a GRPO trainer. TRL takes the reward from the environment.

        Args:
            advantages: `reward`: one advantage per rollout. `calls`: an advantage for each call, from its value.
        """
        args = GRPOConfig(
            num_generations=self.options.group,
            per_device_train_batch_size=4 * self.options.group,
            num_generations_eval=4,
            per_device_eval_batch_size=4 * len(self.held_out),  # one batch, so that `rollouts` has all rollouts
            max_steps=self.options.steps,
            max_completion_length=224 if self.options.model == "tiny" else 2048,
            max_tool_calling_iterations=10,
            learning_rate=self.options.rates[1],
            logging_steps=1,
            **self.settings,
        )
        values = self.watch.measure(partial(self.client.values, finish=partial(finish, self.client)))
        kind: Any = GRPOTrainer if advantages == "reward" else partial(ValueTrainer, values=values)
        trainer = kind(
            model=self.model,
            processing_class=self.tokenizer,
            reward_funcs=self.submit,
            environment_factory=self.factories,
            train_dataset=rows(self.train),
            eval_dataset=rows(self.held_out),
            callbacks=[Progress()],
            args=args,
        )
        trainer.remove_callback(PrinterCallback)
        return trainer

    def submit(self, completions: Any, environments: Any, environment: list[str], **_more: Any) -> list[None]:
        """Submit the answers, and store the batch's rollouts for `evaluate`. TRL calls this as a reward function."""
        self.rollouts = [*zip(environment, environments, strict=True)]
        return submit_answers(completions, environments)

    def evaluate(self, trainer: Any) -> dict[str, float]:
        """Play the half for the evaluation. Return the mean reward of all rollouts, and of each kind of variant."""
        trainer.evaluate()
        passed = [(name.split()[1], each.verdict["reward"]) for name, each in self.rollouts if each.verdict]
        rewards = {each: [reward for variant, reward in passed if variant == each] for each in VARIANTS}
        shares = {"all": mean(reward for _, reward in passed)} | {each: mean(r) for each, r in rewards.items() if r}
        print("held-out half:", *(f"{name} {share:.2f}" for name, share in shares.items()), flush=True)
        return shares


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url", help="URL of the server")
    parser.add_argument("--toolpack", default="bank", help="toolpack with the tasks")
    parser.add_argument("--max-solution", type=int, default=3, help="leave out tasks whose solution has more calls")
    parser.add_argument("--model", default="tiny", help="name or folder of a model, or a GGUF file")
    kinds = ["reward", "calls"]
    advantages = "train once with each: advantages of whole rollouts, or of calls"
    parser.add_argument("--advantages", choices=kinds, nargs="+", default=["reward"], help=advantages)
    parser.add_argument("--epochs", type=int, default=20, help="epochs of the training on demonstrations")
    parser.add_argument("--steps", type=int, default=50, help="steps of GRPO")
    parser.add_argument(
        "--group", type=int, default=16, help="rollouts of a variant in a step; a step has four variants"
    )
    rates = "two learning rates: for the demonstrations, and for GRPO"
    parser.add_argument("--rates", type=float, nargs=2, default=(3e-3, 2e-4), help=rates)
    parser.add_argument("--seed", type=int, default=1, help="seed of the division into halves, and of the training")
    parser.add_argument("--save", type=Path, help="write the figures to this file, as JSON")
    return parser.parse_args()


def main() -> None:
    options = parse()
    warnings.simplefilter("ignore")
    torch.manual_seed(options.seed)
    figures: list[dict[str, Any]] = []
    with Client(options.url) as client, TemporaryDirectory() as folder:
        run = Run(options, client, folder)
        print(
            f"{len(run.train)} and {len(run.held_out)} variants, {len(run.demonstrations)} demonstrations", flush=True
        )
        run.imitate()
        start = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
        for each in (Client, AgentClient):
            each.send = run.watch.measure(each.send)
        for advantages in options.advantages:
            run.model.load_state_dict(start)
            trainer = run.trainer(advantages)
            before = run.evaluate(trainer)
            began, run.watch.seconds = perf_counter(), 0.0
            trainer.train()
            seconds, seconds_waited = perf_counter() - began, run.watch.seconds
            after = run.evaluate(trainer)
            print(f"{advantages}: {options.steps} steps, {seconds / options.steps:.1f} s each", flush=True)
            print(f"{seconds_waited / seconds:.1%} of this time in the environment", flush=True)
            rewards = [each["reward"] for each in trainer.state.log_history if "reward" in each]
            figures.append({"advantages": advantages, "before": before, "after": after, "rewards": rewards})
            figures[-1] |= {"seconds": seconds / options.steps, "environment": seconds_waited / seconds}
            if options.save:
                options.save.write_text(json.dumps(figures))
        client.close_session(labels=run.labels)


if __name__ == "__main__":
    main()
