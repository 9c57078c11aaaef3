"""Functions that treat their process badly, in every way."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator

from server import Depends, TaskEnvironment, Toolpack


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

    :param trap: How it fails.
    """
    return RoughEnvironment(trap=trap)


toolpack = Toolpack("rough", make, opt_in=True)

ThePit = Annotated[Pit, Depends("pit")]
seen: list[Any] = []


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
    if how == "answer":  # what no executor would send
        os.write(_socket(), b"\xff" * 8)
        time.sleep(60)
    if how == "lie":
        text = b'[{"retire": false}, []]'
        os.write(_socket(), struct.pack("<II", len(text), 0) + text)
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
def wait() -> None:
    """Wait for a long time."""
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


@toolpack.function(read_only=True)
def try_to(what: str, path: str = "", number: int = 0) -> str:
    """Try something, and get what came of it.

    :param what: What.
    :param path: A file or folder.
    :param number: A process or a port.
    """
    if what == "read":
        return Path(path).read_text()[:100]
    if what == "list":
        return str(sorted(Path(path).iterdir()))
    if what == "write":
        Path(path).write_text("was here")
    if what == "signal":
        os.kill(number, 0)
    if what == "memory":
        Path(f"/proc/{number}/mem").open("rb").close()
    if what == "environ":
        return Path(f"/proc/{number}/environ").read_bytes().decode()
    return "done"


if sys.platform != "linux":
    raise ImportError("these tests need Linux")
