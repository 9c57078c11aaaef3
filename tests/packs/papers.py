"""An office with its papers in a tree of files, for the tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

from server import Depends, Files, TaskEnvironment, Toolpack


class PapersEnvironment(TaskEnvironment):
    files: Files = Files({"orders/17.txt": "2 of 1\n", "logo.png": b"\xff"})
    notes: list[str] = []


def build(count: int = 0) -> PapersEnvironment:
    """Build an office.

    Args:
        count: How many more papers there are.
    """
    if not count:
        return PapersEnvironment()
    return PapersEnvironment(files=Files({f"many/{number}.txt": f"{number}\n" * 20 for number in range(count)}))


toolpack = Toolpack("papers", build)

Papers = Annotated[Files, Depends("files")]
Notes = Annotated[list[str], Depends("notes")]


@toolpack.function
def write(papers: Papers, path: str, text: str) -> int:
    """Write a paper.

    :param path: Its path.
    :param text: Its text.
    """
    return papers.write_text(path, text)


@toolpack.function(read_only=True)
def read(papers: Papers, path: str) -> str:
    """Read a paper.

    :param path: Its path.
    """
    return papers.read_text(path)


@toolpack.function(read_only=True)
def list_papers(papers: Papers) -> list[str]:
    """List all papers."""
    return papers.glob("**/*")


@toolpack.function(read_only=True)
def write_secretly(papers: Papers) -> None:
    """Write, in spite of the promise."""
    papers.write_text("secret", "")


@toolpack.function
def write_and_note(papers: Papers, notes: Notes, path: str, fail: bool) -> None:
    """Write a paper and note its path.

    :param path: Its path.
    :param fail: Whether to fail then.
    """
    papers.write_text(path, "")
    notes.append(path)
    if fail:
        raise ValueError("on purpose")


PROGRAM = """
import os, sys
for word in sys.argv[1:]:
    name, _, text = word.partition("=")
    if name == "rm":
        os.unlink(text)
    elif name == "link":
        os.symlink(text, "a link")
    elif name == "fifo":
        os.mkfifo(text)
    else:
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        open(name, "w").write(text)
print(sorted(os.path.join(folder, name) for folder, _, names in os.walk(".") for name in names))
"""


@toolpack.function
def run(papers: Papers, words: list[str]) -> str:
    """Run a program in the papers' folder.

    :param words: What it is to do.
    """
    with papers.materialize() as folder:
        command = [sys.executable, "-I", "-c", PROGRAM, *words]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@toolpack.function(read_only=True)
def look(papers: Papers, words: list[str]) -> str:
    """Run a program in the papers' folder that is only to read.

    :param words: What it is to do.
    """
    return run(papers, words)


@toolpack.function(read_only=True)
def times(papers: Papers) -> list[int]:
    """Get the times of all papers in seconds, in their folder."""
    with papers.materialize() as folder:
        return sorted({int(path.stat().st_mtime) for path in [folder, *folder.rglob("*")]})


@toolpack.function(read_only=True)
def reach(papers: Papers) -> list[str]:
    """Get what lies around the papers' folder, and may be listed."""
    with papers.materialize() as folder:
        return [str(path) for path in folder.parent.parent.parent.iterdir()]


def act(files: Any, step: list[Any]) -> Any:
    """Do one thing with files, or with a real folder; get what came out: a value, or an error's class and number."""
    name, path, *rest = step
    if name in ("write_bytes", "write_text"):
        rest = [rest[0].encode()] if name == "write_bytes" else [*rest, "utf-8"]
    real = isinstance(files, Path)
    try:
        place = files / path if real else None
        if name == "rename":
            rest = [files / rest[0]] if real else rest
        if name == "glob":
            return sorted(str(each.relative_to(files)) for each in {*files.glob(path)}) if real else files.glob(path)
        if name == "iterdir":
            return (
                sorted(each.name for each in place.iterdir()) if real else [*map(os.path.basename, files.iterdir(path))]
            )
        found = getattr(place, name)(*rest) if real else getattr(files, name)(path, *rest)
        return found.hex() if isinstance(found, bytes) else found if isinstance(found, bool | int) else None
    except (OSError, ValueError) as error:
        return [type(error).__name__, getattr(error, "errno", None)]


def act_inside(folder: Path, step: list[Any]) -> Any:
    """Do, as a program does, what `Files` has no method for."""
    name, path, *rest = step
    try:
        place = folder / path
        if name == "link":
            place.symlink_to(rest[0])
        elif name == "chmod":
            place.chmod(place.stat().st_mode ^ 0o111)
        elif name == "append":
            with place.open("a", encoding="utf-8") as file:
                file.write("more")
        else:
            shutil.rmtree(place)
    except OSError as error:
        return [type(error).__name__, error.errno]


@toolpack.function
def do(papers: Papers, steps: list[list[Any]], inside: list[list[Any]] | None = None, fails: bool = False) -> list[Any]:
    """Do things with the papers, and get what comes out.

    :param steps: Methods of files, each with its arguments.
    :param inside: What is done then in their folder.
    :param fails: Whether to fail then.
    """
    found = [act(papers, step) for step in steps]
    if inside:
        with papers.materialize() as folder:
            found += [act_inside(folder, step) for step in inside]
    if fails:
        raise ValueError("on purpose")
    return found
