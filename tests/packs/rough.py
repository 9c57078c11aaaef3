"""Functions that treat their process badly, in every way."""

import asyncio
import contextlib
import ctypes
import fcntl
import gc
import json
import multiprocessing
import os
import platform
import resource
import signal
import socket
import sqlite3
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator

from server import Depends, Rollout, TaskEnvironment, Toolpack
from server.features.executors import system_calls


class Pit(BaseModel):
    marks: list[str] = Field(default_factory=list)


class RoughEnvironment(TaskEnvironment):
    pit: Pit = Field(default_factory=Pit)
    trap: str = ""

    @model_validator(mode="after")
    def spring(self) -> "RoughEnvironment":
        if self.trap == "exit":
            os._exit(7)
        if self.trap == "spin":
            while True:
                pass
        return self


def make(trap: str = "") -> RoughEnvironment:
    """Build the environment.

    :param trap: How it fails; "seen": it doesn't, but has what functions have left in its process.
    """
    if trap == "seen":
        return RoughEnvironment(pit=Pit(marks=seen))
    return RoughEnvironment(trap=trap)


toolpack = Toolpack("rough", make, opt_in=True)

ThePit = Annotated[Pit, Depends("pit")]
seen: list[Any] = []


@toolpack.task("nothing", "Leave nothing behind.")
def left_nothing(rollout: Rollout[RoughEnvironment]) -> float:
    return float(not seen)


@toolpack.function
def mark(pit: ThePit, text: str) -> list[str]:
    """Leave a mark, and get all.

    :param text: The mark.
    """
    pit.marks.append(text)
    return pit.marks


@toolpack.function(read_only=True)
def process() -> int:
    """Get the id of the process."""
    return os.getpid()


@toolpack.function(read_only=True)
def say(text: str, times: int = 1, end: str = "") -> str:
    """Print something, on standard output and on standard error.

    :param text: What.
    :param times: How often, for ever if 0.
    :param end: How the process ends after that.
    """
    while not times:
        sys.stdout.write(text)
    sys.stdout.write(text * times + "\n")
    sys.stdout.flush()
    os.write(2, b"and this\n")
    if end:
        os._exit(1)
    return stat.filemode(os.fstat(1).st_mode)[0] + stat.filemode(os.fstat(2).st_mode)[0]


@toolpack.function(read_only=True)
def variables() -> dict[str, str]:
    """Get the variables of the environment."""
    return dict(os.environ)


@toolpack.function
def ends(pit: ThePit, how: str) -> None:
    """End the process.

    :param how: Which way.
    """
    pit.marks.append("never")
    if how == "exit":
        os._exit(3)
    if how == "crash":
        ctypes.string_at(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "close":
        os.closerange(3, 1000)


@toolpack.function
def forge(pit: ThePit, how: str) -> None:
    """Send what no executor would send, before the executor itself can answer.

    :param how: Which way.
    """
    pit.marks.append("never")
    with socket.socket(fileno=os.dup(_socket())) as end:
        end.sendall(FORGED[how]())
    time.sleep(60)


def _answer(**members: Any) -> dict[str, Any]:
    empty = {
        "failure": None,
        "traceback": None,
        "comparison": None,
        "blobs": [],
        "live": [],
        "entries": {},
        "nested": 0,
    }
    return {**empty, "retire": False, **members}


def _failed(**members: Any) -> dict[str, Any]:
    failure = {"kind": "ValueError", "message": "m", "why": "raised", "errors": None, "similar": None}
    return _answer(failure={**failure, **members})


def _frame(head: dict[str, Any], *pieces: bytes) -> bytes:
    text = json.dumps([head, [len(piece) for piece in pieces]]).encode()
    return _lengths(len(text), sum(map(len, pieces))) + text + b"".join(pieces)


def _lengths(of_head: int, of_pieces: int) -> bytes:
    return struct.pack("<II", of_head, of_pieces)


LINES = "x\nFORGED" * 2**18
FORGED: dict[str, Callable[[], bytes]] = {
    "nonsense": lambda: b"\xff" * 8,
    "no answer": lambda: _frame({"retire": False}),
    "long head": lambda: _lengths(2**27, 0) + b"[],",
    "long result": lambda: _frame(_answer(), b'"%b"' % (b"x" * 2**21)),
    "long part": lambda: _frame(_answer(blobs=["rough"]), b'""', b"x" * (2**25 + 1)),
    "another's part": lambda: _frame(_answer(blobs=["ledger"]), b'""', b""),
    "many parts": lambda: _frame(_answer(), *[b'""'] * 1000),
    "long error": lambda: _frame(_failed(message="x" * 2**21), b""),
    "long traceback": lambda: _frame({**_failed(), "traceback": "x" * 2**21}, b""),
    "another's error": lambda: _frame(_failed(why="deadline"), b""),
    "unknown names": lambda: _frame(_failed(similar=["x" * 1000]), b""),
    "unknown refusal": lambda: _frame({"refused": LINES, "retire": False}),
    "fault": lambda: _frame({"fault": LINES, "retire": False}),
}


KEPT: list[Any] = []


@toolpack.function
def use_up(pit: ThePit, what: str) -> None:
    """Fail, because the machine has nothing more of something.

    :param what: Of what.
    """
    pit.marks.append("used up")
    if what == "memory":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + 2**21
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        KEPT.append(bytearray(2**28))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    try:
        while True:
            KEPT.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if what == "files":
            raise
        if what == "database":
            sqlite3.connect(f"file:{__file__}", uri=True).execute("SELECT 1")
        raise ValueError("it can't be read") from error


@toolpack.function
def refuse(name: str) -> None:
    """Refuse the request as the server itself may.

    :param name: The name of the error's class.
    """
    with socket.socket(fileno=os.dup(_socket())) as end:
        end.sendall(_frame({"refused": name, "text": "It can't be done.", "retire": True}))
    time.sleep(60)


@toolpack.function(read_only=True)
def accuse(function: str) -> None:
    """Say of another function that it has broken its promise.

    :param function: Its name.
    """
    forged = _frame(_answer(comparison=[0.0, ["rough", function, "env: all of it"]]), b'""')
    with socket.socket(fileno=os.dup(_socket())) as end:
        end.sendall(forged)
    time.sleep(60)


def _socket() -> int:
    """Find the executor's socket."""
    return next(number for number in range(3, 100) if _is_socket(number))


def _is_socket(descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    return False


@toolpack.function(timeout_seconds=0.3)
def hang(pit: ThePit, how: str) -> None:
    """Never return.

    :param how: Which way.
    """
    pit.marks.append("never")
    if how == "interpreter":
        sum(range(10**12))
    if how == "sleep":
        time.sleep(3600)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        try:
            time.sleep(0.001)
        except BaseException:  # noqa: BLE001 - that is the point
            continue


@toolpack.function(read_only=True)
def wait(begun: str) -> None:
    """Wait for a long time.

    :param begun: A file to make first.
    """
    Path(begun).touch()
    time.sleep(3600)


@toolpack.function
def eat(pit: ThePit, size: int) -> int:
    """Take memory.

    :param size: How many bytes.
    """
    pit.marks.append("eaten")
    return len(bytearray(size))


@toolpack.function
def leave(pit: ThePit, what: str) -> int:
    """Leave something behind, and get the id of the process that does it.

    :param what: What.
    """
    pit.marks.append(what)
    if what == "thread":
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    if what == "child":
        seen.append(subprocess.Popen(["sleep", "3600"]).pid)
        return seen[-1]
    if what == "grandchild":
        text = subprocess.run(
            ["sh", "-c", "setsid sleep 3600 >/dev/null 2>&1 & echo $!"], capture_output=True, check=True
        )
        return int(text.stdout)
    if what == "fork":
        seen.append(multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,), daemon=True))
        seen[-1].start()
        return int(seen[-1].pid)
    if what == "folder":
        os.chdir("/")
    return os.getpid()


@toolpack.function
def return_twice(pit: ThePit) -> bool:
    """Fork, and return in both processes."""
    child = os.fork() == 0
    pit.marks.append("twice")
    if not child:
        os.wait()
    return child


@toolpack.function
def remember(pit: ThePit, value: str) -> list[Any]:
    """Keep a value in the process, and get all that is kept.

    :param value: The value.
    """
    seen.append(value)
    pit.marks.append(value)
    return seen


def _connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(path)


def _send(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.sendto(b"was here", path)


def _pair() -> bytes:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"here")
        return other.recv(4)


TRIALS: dict[str, Callable[[str, int], Any]] = {
    "read": lambda path, _: Path(path).read_text()[:100],
    "list": lambda path, _: sorted(Path(path).iterdir()),
    "write": lambda path, _: Path(path).write_text("was here"),
    "signal": lambda _, number: os.kill(number, 0),
    "thread": lambda _, number: _signal_thread(number),
    "memory": lambda _, number: Path(f"/proc/{number}/mem").open("rb").close(),
    "environ": lambda _, number: Path(f"/proc/{number}/environ").read_bytes(),
    "limits": lambda _, number: resource.prlimit(number, resource.RLIMIT_CPU, (1, 1)),
    "own limits": lambda _, __: resource.prlimit(0, resource.RLIMIT_CPU),
    "priority": lambda _, number: os.setpriority(os.PRIO_PROCESS, number, 19),
    "processors": lambda _, number: os.sched_setaffinity(number, {0}),
    "connect": lambda _, number: socket.create_connection(("127.0.0.1", number), 5).close(),
    "datagram": lambda _, __: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close(),
    "local": lambda path, _: _connect(path),
    "message": lambda path, _: _send(path),
    "worlds": lambda _, __: sorted(mark for pit in gc.get_objects() if isinstance(pit, Pit) for mark in pit.marks),
    "pair": lambda _, __: _pair(),
    "loop": lambda _, __: asyncio.run(asyncio.sleep(0, "slept")),
    "dumpable": lambda _, __: ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
    "root": lambda _, __: os.chroot("/"),
    "program": lambda path, _: subprocess.run([path], check=True),
    "python": lambda path, _: _python(path),
    "raw": lambda _, __: socket.socket(socket.AF_UNIX, socket.SOCK_RAW).close(),
    "raw pair": lambda _, __: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
    "name": lambda path, _: _bind(path),
    "namespace": lambda _, __: _system_call("unshare", 0x10000000),
    "join": lambda _, __: _system_call("setns", 0, 0),
    "clone": lambda _, __: _system_call("clone", 0x10000000, 0, 0, 0, 0),
    "shared memory": lambda _, number: _system_call("shmget", number, 4096, 0o1600),
    "semaphores": lambda _, number: _system_call("semget", number, 1, 0o1600),
    "messages": lambda _, number: _system_call("msgget", number, 0o1600),
    "named messages": lambda path, _: _system_call("mq_open", path.encode(), 0o102, 0o600, 0),
    "add key": lambda path, _: _system_call("add_key", b"user", path.encode(), b"a", 1, -3),
    "keyring": lambda _, __: _system_call("keyctl", 0, -3, 1),
    "kernel log": lambda _, __: _system_call("syslog", 10, 0, 0),
    "ring": lambda _, __: _system_call("io_uring_setup", 1, bytes(120)),
    "mode": lambda path, number: Path(path).chmod(number),
    "mode of output": lambda _, number: os.fchmod(1, number),
    "owner": lambda path, _: os.chown(path, os.getuid(), os.getgid()),
    "time": lambda path, _: os.utime(path),
    "attribute": lambda path, _: os.setxattr(path, "user.note", b"was here"),
    "flags": lambda path, _: _set_flags(path),
}


def _python(code: str) -> bytes:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    return done.stdout or done.stderr


def _bind(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(name)


def _set_flags(path: str) -> None:
    """Set what a file system knows of a file, by an ioctl(2) that needs no right to write."""
    with Path(path).open("rb") as file:
        fcntl.ioctl(file, 0x40086602, struct.pack("l", 0x80))


def _system_call(name: str, *arguments: Any) -> int:
    """Make a call of the system that Python doesn't offer."""
    number = system_calls.number(name)
    result = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)


def _signal_thread(process: int) -> None:
    """Send a signal to one thread (tkill(2)), which Python can't do in other processes."""
    call = 200 if platform.machine() == "x86_64" else 130
    if ctypes.CDLL(None, use_errno=True).syscall(call, process, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@toolpack.function(read_only=True)
def try_to(what: str, path: str = "", number: int = 0) -> str:
    """Try something, and get what came of it.

    :param what: What.
    :param path: A file or folder.
    :param number: A process or a port.
    """
    return str(TRIALS[what](path, number))


if sys.platform != "linux":
    raise ImportError("these tests need Linux")
