"""A real server for the tests: the command `toolpack-server serve` in a separate process, on a free port."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import redis_server
import serving
import warm


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment variables without the developer's settings of the server, plus these."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOOLPACK_")}
    return inherited | {"PYTHONUNBUFFERED": "1"} | variables


def http_on(protocol: str, folder: Path) -> dict[str, str]:
    """Return the variables for a server with the HTTP parser `httptools` on uvloop, or `h11` on asyncio."""
    if protocol == "httptools":
        return {}
    hidden = "raise ImportError('hidden by a test')\n"
    return with_modules(folder, httptools=hidden, uvloop=hidden)  # without these modules, uvicorn uses h11 and asyncio


def with_fixed(folder: Path, **limits: float) -> dict[str, str]:
    """Return the variables for a server with other values of limits that aren't settings."""
    lines = [f"FixedLimits.model_fields[{name!r}].default = {value}\n" for name, value in limits.items()]
    imported = "from toolpack_server.base.fixed_limits import FixedLimits\n"
    return with_modules(folder, sitecustomize=imported + "".join(lines))


def with_modules(folder: Path, **texts: str) -> dict[str, str]:
    """Return the variables for a Python that finds these modules first."""
    modules = folder / "modules"
    modules.mkdir(exist_ok=True)
    for name, text in texts.items():
        (modules / f"{name}.py").write_text(text)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(modules), os.environ.get("PYTHONPATH")]))}


def command(*arguments: str) -> list[str]:
    return [*warm.PROGRAM, *arguments]


class Served:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], banner: str, url: str) -> None:
        self.process, self.banner, self.url = process, banner, url
        self.http = serving.http_client(url)

    def rpc(self, method: str, /, **params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return serving.result_of(self.http.post("/rpc", json=body).content)

    def call(self, session_id: str, function: str, /, _call: Any = None, **kwargs: Any) -> Any:
        return self.rpc("run_function", session_id=session_id, function=function, kwargs=kwargs, **(_call or {}))

    def kill(self) -> None:
        """Kill the whole process group, without a chance to clean up."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(serving.PATIENCE)


@contextlib.contextmanager
def served(folder: Path, *arguments: str, **variables: str) -> Iterator[Served]:
    log = (folder / "server.log").open("a")
    port = str(redis_server.free_port())  # no other process takes this port, even if the server restarts on it
    packs = ["--pack-dir", str(serving.PACKS), "--packs", "ledger,vault,bank"]
    flags = ["--port", port, "--data-dir", str(folder), *packs]
    process = warm.Warm(
        command("serve", *flags, *arguments),
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        banner = ""
        while not banner.endswith("create_session\"}'\n"):
            line = process.stdout.readline()
            assert line, (folder / "server.log").read_text()
            banner += line
        if "-mcp" not in variables.get("TOOLPACK_FEATURES", ""):
            banner += process.stdout.readline()
        server = Served(process, banner, re.search(r"http://\S+:\d+", banner)[0])
        serving.wait_until(lambda: _is_ready(server), "readiness")
        with contextlib.closing(server.http):
            yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(serving.PATIENCE)
        process.stdout.close()
        log.close()


def _is_ready(server: Served) -> bool:
    try:
        return server.http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False
