"""The command `toolpack-server` in separate processes that have already imported the server's modules.

Imports take most of the time in which a command starts, and the tests start hundreds of commands. So a command is
forked from an *origin*, a process that has only imported the server. It behaves like a started process: its module,
arguments, variables, folder, session, signals and standard streams are its own. If variables change how Python itself
starts, or if another program runs, a new process is started instead.
"""

import array
import atexit
import importlib
import inspect
import io
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

PROGRAM = [sys.executable, "-W", "error", "-m", "toolpack_server"]
MODULES = [
    "toolpack_server.cli.serve",
    "toolpack_server.cli.session_commands",
    "toolpack_server.web.app",
    "toolpack_server.features.protocols.mcp.command",
    "toolpack_server.rpc.jsonrpc",
]
PIPES = ["p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"]
DECIDES = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "TZ")  # prefixes of such variables


def decides(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change how Python itself starts."""
    return {name: env[name] for name in env if name.startswith(DECIDES)}


class Warm(subprocess.Popen[Any]):
    """Like `subprocess.Popen`, but a command of the server is forked."""

    _origin: ClassVar["Origin | None"] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()
    is_cold = False  # True if all processes are really started
    forked = False

    def _execute_child(self, args: Any, *others: Any) -> None:
        arguments = inspect.signature(subprocess.Popen._execute_child).bind(self, args, *others).arguments
        env = arguments["env"] if arguments["env"] is not None else dict(os.environ)
        simple = not (arguments["executable"] or arguments["preexec_fn"] or arguments["shell"] or arguments["pass_fds"])
        if self.is_cold or not simple or [*args][: len(PROGRAM)] != PROGRAM or sys.platform != "linux":
            super()._execute_child(args, *others)
            return
        with self._lock:
            if Warm._origin is None or Warm._origin.owner != os.getpid():
                Warm._origin = Origin()
        if Warm._origin.decided != decides(env):
            super()._execute_child(args, *others)
            return
        streams = [arguments["p2cread"], arguments["c2pwrite"], arguments["errwrite"]]
        streams = [number if stream == -1 else stream for number, stream in enumerate(streams)]
        request = {"argv": [*args][len(PROGRAM) :], "env": env, "cwd": str(arguments["cwd"] or Path.cwd())}
        request["session"] = arguments["start_new_session"]
        self.pid = Warm._origin.ask(request, streams)
        self.forked = self._child_created = True
        self._close_pipe_fds(*(arguments[name] for name in PIPES))

    def _internal_poll(self, *args: Any, **kwargs: Any) -> int | None:
        if not self.forked:
            return super()._internal_poll(*args, **kwargs)
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                self._try_wait(os.WNOHANG)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if not self.forked:
            return super()._try_wait(flags)
        if self.returncode is not None:
            return 0, 0
        while (status := Warm._origin.ask({"ended": self.pid})) is None and not flags & os.WNOHANG:
            time.sleep(0.005)
        if status is None:
            return 0, 0
        self.returncode = os.waitstatus_to_exitcode(status)
        return self.pid, status


class Origin:
    """The test's connection to the origin, the process that forks commands."""

    def __init__(self) -> None:
        self.owner, self._lock = os.getpid(), threading.Lock()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = os.environ | {"PYTHONUNBUFFERED": "1"}
        self.decided = decides(env)
        command = [sys.executable, "-W", "error", __file__, str(theirs.fileno())]
        self._process = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()], start_new_session=True)
        theirs.close()
        atexit.register(self.close)

    def ask(self, request: dict[str, Any], streams: Sequence[int] = ()) -> Any:
        """Let the origin fork a process and return its id, or return a process's status, None while it lives."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))] if streams else []
        with self._lock:
            self._ours.sendmsg([json.dumps(request).encode()], rights)
            return json.loads(self._ours.recv(2**10))

    def close(self) -> None:
        self._ours.close()
        if self.owner == os.getpid():
            self._process.wait()


def main(control: socket.socket) -> None:
    """Run the origin: fork the requested processes and report their statuses, until the tests end."""
    del sys.path[0]  # remove this folder
    folder = Path(str(importlib.import_module("toolpack_server").__file__)).parent / "features"
    paths = folder.rglob("feature.py")
    for name in [
        *MODULES,
        *(f"toolpack_server.features.{'.'.join(path.relative_to(folder).parent.parts)}.feature" for path in paths),
    ]:
        importlib.import_module(name)
    while True:
        message, streams, _, _ = socket.recv_fds(control, 2**20, 3)
        if not message:
            os._exit(0)
        request = json.loads(message)
        if "ended" in request:
            # Reap it only now. Until then, the system keeps it as a process that has ended.
            number, status = os.waitpid(request["ended"], os.WNOHANG)
            control.send(json.dumps(status if number else None).encode())
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            become(request, streams)
        control.send(json.dumps(pid).encode())
        for stream in streams:
            os.close(stream)


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Turn this process into the requested one."""
    if request["session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, max(streams) + 1)
    # A stream caches properties of its file, such as whether it is seekable.
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw, old = open(number, "wb", buffering=0, closefd=False), getattr(sys, name)  # noqa: SIM115
        stream = io.TextIOWrapper(raw, old.encoding, old.errors, write_through=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["toolpack-server", *request["argv"]]
    sys.path.insert(0, request["cwd"])
    runpy.run_module("toolpack_server", run_name="__main__", alter_sys=True)
    raise SystemExit


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
