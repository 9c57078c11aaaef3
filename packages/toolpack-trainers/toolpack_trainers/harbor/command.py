"""Command `toolpack-server tasks --harbor DIR`, which writes tasks as Harbor's folders.

The agent must not see the solution or the secret that protects the verdict, so neither of them enters the agent's
container. The verifier runs in its own container, so that an agent with a shell can't manipulate it. Existing folders
are never overwritten.
"""

import json
import re
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from toolpack_server.features.api.commands import Send, ask_in_memory, echo, packs_options

_TEMPLATES = Path(__file__).parent / "templates"
PAGE = 1000


def _fill(template: str, **values: str) -> str:
    """Return a template with its placeholders `{name}` replaced by values."""
    text = (_TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _yaml(text: str) -> str:
    return json.dumps(text).replace("$", "$$")  # otherwise Compose would substitute variables


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a TOML basic string can't contain surrogate pairs


@click.command()
@packs_options
@click.option(
    "--harbor",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="Folder to write the tasks to.",
)
@click.option("--task", "names", multiple=True, metavar="TOOLPACK/NAME", help="Write only this task; may be repeated.")
@click.option("--image", default="toolpack-server", show_default=True, help="Docker image that has the toolpacks.")
def tasks(pack_dir: tuple[Path, ...], packs: str | None, harbor: Path, names: tuple[str, ...], image: str) -> None:
    """Write each task as a folder for Harbor, with its tools over MCP, its solution and its verifier."""

    async def write(send: Send) -> None:
        """Write the folders. `send` sends a request to the server that `ask_in_memory` runs in this process."""
        selected = [task for task in await _all(send) if not names or task["task"] in names]
        if missing := sorted({*names} - {task["task"] for task in selected}):
            raise click.ClickException(f"There is no task {missing[0]}: `toolpack-server list` shows the toolpacks.")
        playable = [task for task in selected if not task["participants"]]
        for task in playable:
            await _write(send, harbor, task, image)
        skipped = len(selected) - len(playable)
        echo(
            f"{len(playable)} tasks in {harbor}" + (f"; {skipped} skipped, which need participants" if skipped else "")
        )

    ask_in_memory(write, pack_dir, packs)


async def _all(send: Send) -> list[Mapping[str, Any]]:
    """Return all tasks of all toolpacks."""
    tasks: list[Mapping[str, Any]] = []
    for toolpack in await send("list_toolpacks", {}):
        after = -1
        while page := (await send("list_tasks", {"toolpack": toolpack["name"], "after": after, "limit": PAGE}))[
            "tasks"
        ]:
            tasks += page
            after = page[-1]["index"]
    return tasks


async def _write(send: Send, harbor: Path, task: Mapping[str, Any], image: str) -> None:
    """Write a task's folder.

    Raises:
        click.ClickException: The folder exists already.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", task["task"].replace("/", "-", 1))
    folder = harbor / name
    if folder.exists():
        raise click.ClickException(f"{folder} exists already: remove it, or choose another folder.")
    prompt = task["prompt"]
    text = prompt if isinstance(prompt, str) else "\n\n".join(message["content"] for message in prompt)
    secret = secrets.token_hex(16)
    files = {
        "task.toml": _task_toml(task, name),
        "instruction.md": f"{text}\n\nUse the tools of the MCP server `toolpack`. Hand in your answer with its tool "
        "`submit_answer` when you are done.\n",
        "environment/Dockerfile": _fill("Dockerfile"),
        "environment/environment.py": _fill("environment.py"),
        "environment/docker-compose.yaml": _fill(
            "docker-compose.yaml",
            image=_yaml(image),
            task=_yaml(task["task"]),
            packs=_yaml(",".join(task["toolpacks"])),
            secret=_yaml(secret),
        ),
        "tests/Dockerfile": _fill("verifier.Dockerfile"),
        "tests/test.sh": _fill("test.sh"),
    }
    if task["has_solution"]:
        files["solution/solve.sh"] = _fill("solve.sh") + await _solution(send, task["task"])
    for path, content in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
        if file.suffix == ".sh":
            file.chmod(0o755)


def _task_toml(task: Mapping[str, Any], name: str) -> str:
    """Return the text of task.toml, which tells Harbor the MCP server, and how to collect the verdict."""
    lines = [
        'schema_version = "1.4"',
        'artifacts = [{ source = "/tmp/verdict", service = "toolpack" }]',
        "",
        "[task]",
        f"name = {_toml(f'toolpack-server/{name}')}",
        f"keywords = [{', '.join(map(_toml, task['tags']))}]",
        "",
        "[metadata]",
        f"task = {_toml(task['task'])}",
        f"split = {_toml(task['split'])}",
        "",
        "[[environment.mcp_servers]]",
        'name = "toolpack"',
        'transport = "streamable-http"',
        'url = "http://toolpack:8000/mcp"',
        "",
        "[verifier]",
        'environment_mode = "separate"',
        "",
        "[[verifier.collect]]",
        'service = "toolpack"',
        'command = "python /environment.py /tmp/verdict"',
    ]
    return "\n".join(lines) + "\n"


async def _solution(send: Send, task: str) -> str:
    """Return the lines of a shell script that sends the calls and the answer of a task's solution."""
    session_id = (await send("create_session", {"task": task}))["session_id"]
    solution = await send("get_solution", {"session_id": session_id})
    await send("close_session", {"session_id": session_id})
    calls = [(call["function"], call["kwargs"]) for call in solution["calls"]]
    calls.append(("submit_answer", {"answer": solution["answer"] or ""}))
    lines = []
    # `call` is a function of the template solve.sh, which sends a JSON-RPC message to the MCP server.
    for number, (name, arguments) in enumerate(calls, 1):
        params = {"name": name, "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        lines.append(f"printf %s {shlex.quote(json.dumps(message))} | call\n")
    return "".join(lines)
