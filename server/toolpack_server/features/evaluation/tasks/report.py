"""The file that `evaluate --html` writes: the console's page of runs, with all that it shows, as one HTML file.

The file needs no server and no network. It has the console's own modules, one after the other as functions,
in one script; its Content-Security-Policy allows this script and nothing else. Whatever comes from a session is JSON in
it, and becomes text.
"""

import base64
import hashlib
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from toolpack_server.base.terminal import printable
from toolpack_server.base.times import timestamp
from toolpack_server.cli.requests import Send
from toolpack_server.cli.session_commands import whole_trace
from toolpack_server.features.evaluation.tasks.verdicts import VerdictKind
from toolpack_server.wiring.installed import load_features
from toolpack_server.wiring.service import all_record_kinds

CONSOLE = Path(__file__).parents[3] / "console"
ENTRY = Path(__file__).with_suffix(".js")
NOT_SHOWN = {"session_id", "version", "state", "started_at", "duration_ms", "call_id"}  # of what isn't a call
MOST_LINES, MOST_CHARACTERS = 1000, 400  # of a rollout, and of a value in a line

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(.*)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function\*?|const) (\w+))", re.MULTILINE)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src {script_hash}; style-src {style_hash}; base-uri 'none'; form-action 'none'">
<title>Runs</title>
<style>{style}</style>
</head>
<body>
<header class="top"><span class="brand">Toolpack Server</span> <span class="hint">Runs</span></header>
<main id="main" tabindex="-1"><noscript>This page needs JavaScript.</noscript></main>
<div id="status" role="status"></div>
<script type="application/json" id="data">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""  # noqa: E501 - a policy is one line


class RunsPage:
    """Collects what is in the file.

    Args:
        send: Asks the server, or the service in this process.
        labels: Those that all sessions have.
        url: The server's, for links to its console; None if there is none.
    """

    def __init__(self, send: Send, labels: Mapping[str, str], url: str | None) -> None:
        self._send = send
        self._labels = labels
        self._url = url
        self._kinds = all_record_kinds(load_features())
        self._sessions: list[Mapping[str, Any]] = []

    async def add(self, summary: Mapping[str, Any]) -> None:
        """Add a rollout, with the lines of its trace."""
        try:
            path = await whole_trace(self._send, summary["session_id"], path=True)
        except click.ClickException:  # it was closed meanwhile, or can't be read: its verdict says so
            path = []
        lines = [*filter(None, map(self._line, path[:MOST_LINES]))]
        lines += [f"and {len(path) - MOST_LINES} more"] if len(path) > MOST_LINES else []
        self._sessions.append({**summary, "lines": lines})

    async def html(self, verified: str | None = None) -> str:
        """Get the file's text; `verified` says what it shows, if the sessions were run again."""
        prompts = {task: await self._prompt(task) for task in sorted({session["task"] for session in self._sessions})}
        data = {
            "sessions": self._sessions,
            "prompts": prompts,
            "labels": self._labels,
            "url": self._url and self._url.rstrip("/"),
            "written": timestamp(time.time()),
            "verified": verified,
        }
        style = "".join((CONSOLE / name).read_text(encoding="utf-8") for name in ("style.css", "runs.css"))
        script = one_script(ENTRY)
        text = printable(json.dumps(data, ensure_ascii=False)).replace("<", "\\u003c")  # nothing ends the element
        return _PAGE.format(script_hash=_hash(script), style_hash=_hash(style), style=style, script=script, data=text)

    def _line(self, record: Mapping[str, Any]) -> str:
        """Describe a record; a verdict is shown elsewhere."""
        kind = self._kinds[record["kind"]]
        if isinstance(kind, VerdictKind):
            return ""
        shown = record if kind.is_call else {name: value for name, value in record.items() if name not in NOT_SHOWN}
        return f"{record['place']:>4}  {kind.text(shown, MOST_CHARACTERS)}"

    async def _prompt(self, task: str) -> str:
        try:
            prompt = (await self._send("get_task", {"task": task}))["prompt"]
        except click.ClickException:  # it isn't loaded any more
            return ""
        if isinstance(prompt, str):
            return prompt
        return "\n\n".join(f"{message['role']}: {message['content']}" for message in prompt)


def _names(imported: str) -> str:
    return " ".join(imported.split()).rstrip(",").replace(" as ", ": ")


def one_script(entry: Path) -> str:
    """Get a module of the console's and all that it imports as one script: a function for each, in order."""
    done: dict[str, str] = {}

    def add(path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        for name in (found[1] for found in _IMPORT.findall(text)):
            if name not in done:
                add(CONSOLE / f"{name}.js")
        exported = ", ".join(found[1] for found in _EXPORT.findall(text))
        text = _IMPORT.sub(lambda found: f"const {{ {_names(found[1])} }} = ${found[2]};", text)
        text = _EXPORT.sub(r"\1", text)
        done[path.stem] = f"const ${path.stem} = (() => {{\n{text}\nreturn {{ {exported} }};\n}})();\n"

    add(entry)
    return "".join(done.values())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
