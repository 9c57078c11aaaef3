"""The HTML file of `evaluate --html`: the console's runs page with its data.

The file needs no server and no network. The console's JavaScript modules are bundled into one script, and the
Content-Security-Policy allows only that script. The sessions' data is embedded as JSON and shown only as text, so the
data can't run code.
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
# Fields that the page omits from records that aren't calls.
NOT_SHOWN = {"session_id", "version", "state", "started_at", "duration_ms", "call_id"}
MAX_LINES = 1000  # max lines of one rollout's trace
MAX_CHARACTERS = 400  # max characters of a value in a line

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
"""  # noqa: E501 - the policy must be one line


class RunsPage:
    """Collects evaluated rollouts, and returns the HTML file that shows them.

    Args:
        send: Sends a request to the server, or to the service in this process.
        labels: The labels that select the sessions.
        url: The server's URL, for links to its console. None: the service runs in this process, so there are no links.
    """

    def __init__(self, send: Send, labels: Mapping[str, str], url: str | None) -> None:
        self._send = send
        self._labels = labels
        self._url = url
        self._kinds = all_record_kinds(load_features())
        self._sessions: list[Mapping[str, Any]] = []

    async def add(self, summary: Mapping[str, Any]) -> None:
        """Add a rollout and the lines of its trace."""
        try:
            path = await whole_trace(self._send, summary["session_id"], path=True)
        except click.ClickException:  # the session was closed or can't be read; the verdict shows the reason
            path = []
        lines = [*filter(None, map(self._line, path[:MAX_LINES]))]
        lines += [f"and {len(path) - MAX_LINES} more"] if len(path) > MAX_LINES else []
        self._sessions.append({**summary, "lines": lines})

    def add_places(self, places: Mapping[str, str]) -> None:
        """Add descriptions of where failed rollouts were lost, by session_id."""
        self._sessions = [
            {**each, "lost_at": places[each["session_id"]]} if each["session_id"] in places else each
            for each in self._sessions
        ]

    async def html(self, verified: str | None = None) -> str:
        """Return the HTML file as a string.

        Args:
            verified: A sentence about the verification, which the page shows if the sessions were replayed from a
                receipt.
        """
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
        script = bundle_script(ENTRY)
        text = printable(json.dumps(data, ensure_ascii=False)).replace("<", "\\u003c")  # no `</script>` in it
        return _PAGE.format(
            script_hash=content_hash(script), style_hash=content_hash(style), style=style, script=script, data=text
        )

    def _line(self, record: Mapping[str, Any]) -> str:
        """Return a record as a line of the trace. Return "" for a verdict, which the page shows elsewhere."""
        kind = self._kinds[record["kind"]]
        if isinstance(kind, VerdictKind):
            return ""
        shown = record if kind.is_call else {name: value for name, value in record.items() if name not in NOT_SHOWN}
        return f"{record['path_index']:>4}  {kind.text(shown, MAX_CHARACTERS)}"

    async def _prompt(self, task: str) -> str:
        """Return a task's prompt as one text, or "" if the request fails, because the page works without prompts."""
        try:
            prompt = (await self._send("get_task", {"task": task}))["prompt"]
        except click.ClickException:  # usually because the task is no longer loaded
            return ""
        if isinstance(prompt, str):
            return prompt
        return "\n\n".join(f"{message['role']}: {message['content']}" for message in prompt)


def _names(imported: str) -> str:
    """Convert the names of a JavaScript import to those of a destructuring: `a as b` becomes `a: b`."""
    return " ".join(imported.split()).rstrip(",").replace(" as ", ": ")


def bundle_script(entry: Path) -> str:
    """Return a module of the console and its imports as one script, so that the page needs no other file.

    Each module becomes a constant, named `$` and the module's name, that contains the module's exports.
    """
    scripts: dict[str, str] = {}

    def add(path: Path) -> None:
        """Add a module after the modules that it imports. Its code is wrapped in a function, which returns its exports.

        Without the function, private names of different modules would collide.
        """
        text = path.read_text(encoding="utf-8")
        for name in (groups[1] for groups in _IMPORT.findall(text)):
            if name not in scripts:
                add(CONSOLE / f"{name}.js")
        exported = ", ".join(groups[1] for groups in _EXPORT.findall(text))
        text = _IMPORT.sub(lambda match: f"const {{ {_names(match[1])} }} = ${match[2]};", text)
        text = _EXPORT.sub(r"\1", text)
        scripts[path.stem] = f"const ${path.stem} = (() => {{\n{text}\nreturn {{ {exported} }};\n}})();\n"

    add(entry)
    return "".join(scripts.values())


def content_hash(text: str) -> str:
    """Return the expression with which a Content-Security-Policy allows the script or style sheet `text`."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
