"""Small shell for the papers: common commands on a folder, with pipes and redirection.

Agents expect a shell, but a real one could run any program. This shell runs its commands in Python, and refuses paths
outside the folder, also those that lead there through links. The docstring of a command lists its options; other
options are errors.
"""

import fnmatch
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

MAX_OUTPUT = 20_000  # characters
MAX_TEXT = 2**20  # characters of a command's input or output
MAX_WRITTEN = 2**24  # bytes that one line may write
ENTRY_BYTES = 512  # bytes that are counted for each file or folder, in addition to its content
_OPERATORS = {"|", ">", ">>", ";"}


class ShellError(ValueError):
    """A command failed or is invalid. The message says why."""


class Shell:
    """Runs commands in a folder, which is its root.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.realpath(root))
        self._budget = MAX_WRITTEN

    def run(self, line: str) -> str:
        """Run a line of commands and return the output of the last command of each pipe.

        Raises:
            ShellError: A command is unknown or has failed.
        """
        words = _words(line)
        output, size = [], 0
        self._budget = MAX_WRITTEN
        for pipe in _split(words, ";"):
            text = ""
            for command in _split(pipe, "|"):
                try:
                    text = self._command(command, text)
                except OSError as error:
                    path = os.path.relpath(error.filename or self._root, self._root)
                    raise ShellError(f"{path}: {error.strerror}") from None
            output.append(text[: max(MAX_OUTPUT - size, 0)])
            size += len(text)
        more = f"\n… {size - MAX_OUTPUT} more characters: use head, tail, grep or cut\n" if size > MAX_OUTPUT else ""
        return "".join(output) + more

    def _command(self, words: Sequence[str], stdin: str) -> str:
        """Run one command, and return its output. Return an empty output if it is redirected to a file."""
        target, append = "", False
        plain = list(words)
        for at, word in enumerate(words):
            if isinstance(word, _Operator):
                if len(words) != at + 2:
                    raise ShellError(f"{word} must be followed by one path, at the end of the command")
                target, append, plain = words[at + 1], word == ">>", plain[:at]
                break
        if not plain:
            raise ShellError("there is no command before the redirection")
        name, *arguments = plain
        if name not in COMMANDS:
            raise ShellError(f"there is no command {name!r}: there are {', '.join(COMMANDS)}")
        text = COMMANDS[name](self, self._expand(arguments) if name not in _WITHOUT_EXPANSION else arguments, stdin)
        if not target:
            return text
        self.count_written(len(text.encode()))
        with self.path(target).open("a" if append else "w", encoding="utf-8", newline="") as file:
            file.write(text)
        return ""

    def count_written(self, size: int) -> None:
        """Count the bytes of a file or folder before they are written.

        Raises:
            ShellError: The line would write more than `MAX_WRITTEN` bytes.
        """
        self._budget -= size + ENTRY_BYTES
        if self._budget < 0:
            raise ShellError(f"a line may write at most {MAX_WRITTEN} bytes: write less")

    def path(self, text: str) -> Path:
        """Return a path in the folder. A leading `/` means the folder itself. Raise an error for paths outside it."""
        path = self._root / text.lstrip("/")
        if not Path(os.path.realpath(path)).is_relative_to(self._root):
            raise ShellError(f"{text!r} leads out of the papers")
        return path

    def relative(self, path: Path) -> str:
        """Return a path as commands print it, relative to the folder."""
        return str(path.relative_to(self._root))

    def _expand(self, arguments: Sequence[str]) -> list[str]:
        """Replace each pattern with the matching paths. A pattern without a match stays as it is."""
        expanded: list[str] = []
        size = 0
        for argument in arguments:
            matches: list[str] = []
            if re.search(r"[*?\[]", argument) and ".." not in argument:
                pattern = re.sub(r"\*+", "*", argument.lstrip("/"))  # several `*` mean the same as one
                matches = sorted(self.relative(path) for path in self._root.glob(pattern))
            expanded += matches or [argument]
            size += sum(map(len, matches))
            _check_size(size, "the patterns match")
        return expanded

    def read(self, text: str) -> str:
        """Return the text of a file. Raise an error if it is missing, too long or binary."""
        path = self.path(text)
        if path.is_dir():
            raise ShellError(f"{text}: is a folder")
        try:
            _check_size(path.stat().st_size, f"{text} has")
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ShellError(f"{text}: no such file or folder") from None
        except UnicodeDecodeError:
            raise ShellError(f"{text}: isn't text") from None


Command = Callable[[Shell, list[str], str], str]
COMMANDS: dict[str, Command] = {}
_WITHOUT_EXPANSION = {"echo", "find"}


class _Operator(str):
    """An unquoted operator between commands."""

    __slots__ = ()


def _words(line: str) -> list[str]:
    """Split a line into words and operators. Quoted text is part of a word."""
    words: list[str] = []
    position = 0
    while match := _TOKEN.match(line, position):
        position = match.end()
        operator, word = match["operator"], match["word"]
        if operator:
            if operator not in _OPERATORS:
                raise ShellError(f"{operator!r} isn't supported: the operators are | > >> and ;")
            words.append(_Operator(operator))
        elif word:
            words.append(_PIECE.sub(lambda piece: piece[1] or piece[2] or piece[3] or piece[4] or "", word))
    if line[position:].strip():
        raise ShellError("a quotation mark is never closed")
    return words


# Alternatives begin with different characters, so a line is read in one pass without backtracking.
_PIECES = r"""'[^']*'|"[^"]*"|\\.|[^\s'"\\|;<>&]+"""
_TOKEN = re.compile(rf"\s*(?:(?P<operator>[|;<>&]+)|(?P<word>(?:{_PIECES})+))", re.DOTALL)
_PIECE = re.compile(r"""'([^']*)'|"([^"]*)"|\\(.)|([^\s'"\\|;<>&]+)""", re.DOTALL)


def _split(words: Sequence[str], sign: str) -> list[list[str]]:
    """Split words at an operator. Raise an error for an empty part, except at `;`, where empty parts are dropped."""
    parts: list[list[str]] = [[]]
    for word in words:
        if isinstance(word, _Operator) and word == sign:
            parts.append([])
        else:
            parts[-1].append(word)
    if sign == ";":
        parts = [part for part in parts if part]
    if not parts or not all(parts):
        raise ShellError("the line has no command" if sign == ";" else f"a command is missing before or after {sign}")
    return parts


def _options(arguments: list[str], flags: str, valued: str = "") -> tuple[dict[str, str], list[str]]:
    """Split arguments into options and the rest.

    Args:
        arguments: The arguments of a command.
        flags: Letters of the options without a value.
        valued: Letters of the options with a value.
    """
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest and len(rest[0]) > 1 and rest[0].startswith("-"):
        word = rest.pop(0)[1:]
        while word:
            letter, word = word[0], word[1:]
            if letter in valued:
                if not word and not rest:
                    raise ShellError(f"the option -{letter} needs a value")
                options[letter], word = word or rest.pop(0), ""
            elif letter in flags:
                options[letter] = ""
            else:
                raise ShellError(f"the option -{letter} isn't supported")
    return options, rest


def _command(function: Command) -> Command:
    """Register a command under the name of its function."""
    COMMANDS[function.__name__.strip("_")] = function
    return function


def _input(shell: Shell, paths: Sequence[str], stdin: str) -> str:
    """Return the text of the files, or the output of the command before the pipe if there are no paths."""
    if not paths:
        return stdin
    texts, size = [], 0
    for path in paths:
        texts.append(shell.read(path))
        size += len(texts[-1])
        _check_size(size, "the files have")
    return "".join(texts)


def _check_size(size: int, what: str) -> None:
    if size > MAX_TEXT:
        raise ShellError(f"{what} more than {MAX_TEXT} characters, the limit of all commands: select less")


def _lines(text: str) -> list[str]:
    return text.split("\n")[: -1 if text.endswith("\n") else None] if text else []


def _join(lines: Iterable[str]) -> str:
    """Join lines. Raise a `ShellError` if the text is too long."""
    text, size = [], 0
    for line in lines:
        size += len(line) + 1
        _check_size(size, "the lines have")
        text.append(f"{line}\n")
    return "".join(text)


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ShellError(f"{text!r} isn't a number")
    return int(text)


@_command
def ls(shell: Shell, arguments: list[str], _stdin: str) -> str:
    """List files. Options: -a (also hidden files), -l (with sizes)."""
    options, paths = _options(arguments, "al")

    def lines() -> Iterator[str]:
        for text in paths or ["."]:
            path = shell.path(text)
            if not path.exists():
                raise ShellError(f"{text}: no such file or folder")
            inner = sorted(path.iterdir()) if path.is_dir() else [path]
            for entry in inner:
                if entry.name.startswith(".") and "a" not in options:
                    continue
                name = f"{entry.name if path.is_dir() else text}{'/' if entry.is_dir() else ''}"
                yield f"{entry.stat().st_size if entry.is_file() else 0:>9} {name}" if "l" in options else name

    return _join(lines())


@_command
def cat(shell: Shell, arguments: list[str], stdin: str) -> str:
    return _input(shell, arguments, stdin)


@_command
def echo(_shell: Shell, arguments: list[str], _stdin: str) -> str:
    return " ".join(arguments) + "\n"


@_command
def head(shell: Shell, arguments: list[str], stdin: str) -> str:
    """Print the first lines. Option: -n (number of lines)."""
    options, paths = _options(arguments, "", "n")
    return _join(_lines(_input(shell, paths, stdin))[: _number(options.get("n", "10"))])


@_command
def tail(shell: Shell, arguments: list[str], stdin: str) -> str:
    """Print the last lines. Option: -n (number of lines; +N: from line N on)."""
    options, paths = _options(arguments, "", "n")
    lines, count = _lines(_input(shell, paths, stdin)), options.get("n", "10")
    if count.startswith("+"):
        return _join(lines[max(_number(count[1:]) - 1, 0) :])
    return _join(lines[len(lines) - min(_number(count), len(lines)) :])


@_command
def wc(shell: Shell, arguments: list[str], stdin: str) -> str:
    """Count lines, words and characters. Options: -l (only lines), -w (only words), -c (only characters)."""
    options, paths = _options(arguments, "lwc")
    text = _input(shell, paths, stdin)
    counts = {"l": text.count("\n"), "w": len(text.split()), "c": len(text)}
    return " ".join(str(counts[letter]) for letter in options or counts) + "\n"


@_command
def sort(shell: Shell, arguments: list[str], stdin: str) -> str:
    """Sort lines. Options: -r (reversed), -n (numerically), -u (without duplicates)."""
    options, paths = _options(arguments, "rnu")

    def key(line: str) -> tuple[float, str]:
        number = re.match(r"\s*-?\d+(\.\d+)?", line)
        return (float(number[0]) if number and "n" in options else 0.0), line

    lines = sorted(_lines(_input(shell, paths, stdin)), key=key, reverse="r" in options)
    return _join([*dict.fromkeys(lines)] if "u" in options else lines)


@_command
def uniq(shell: Shell, arguments: list[str], stdin: str) -> str:
    """Remove repeated lines. Option: -c (with the number of repetitions)."""
    options, paths = _options(arguments, "c")
    counted: list[tuple[str, int]] = []
    for line in _lines(_input(shell, paths, stdin)):
        if counted and counted[-1][0] == line:
            counted[-1] = line, counted[-1][1] + 1
        else:
            counted.append((line, 1))
    return _join(f"{count:>7} {line}" if "c" in options else line for line, count in counted)


@_command
def cut(shell: Shell, arguments: list[str], stdin: str) -> str:
    """Select fields. Options: -d (delimiter), -f (numbers of the fields, such as 1,3)."""
    options, paths = _options(arguments, "", "df")
    if "f" not in options:
        raise ShellError("cut needs the option -f")
    numbers = dict.fromkeys(_number(number) for number in options["f"].split(","))  # without duplicates
    delimiter = options.get("d", "\t")
    rows = (line.split(delimiter) for line in _lines(_input(shell, paths, stdin)))
    return _join(delimiter.join(row[number - 1] for number in numbers if 0 < number <= len(row)) for row in rows)


@_command
def grep(shell: Shell, arguments: list[str], stdin: str) -> str:
    """Find lines that contain a text. The text isn't a pattern.

    Options: -i (ignore case), -v (lines without the text), -n (with line numbers), -l (only paths), -c (only counts),
    -h (without paths), -r (folders recursively).
    """
    options, rest = _options(arguments, "ivnlcrhF")
    if not rest:
        raise ShellError("grep needs a text to look for")
    searched, *paths = rest
    if "r" in options:
        folders, paths, size = paths or ["."], [], 0
        for folder in folders:
            files = _files_in(shell, folder)
            size += sum(map(len, files))
            _check_size(size, "the paths have")
            paths += files
    reads_files = len(rest) > 1 or "r" in options
    texts = ((path, shell.read(path)) for path in paths) if reads_files else iter([("", stdin)])
    ignore_case = "i" in options

    def matches(line: str) -> bool:
        return searched.lower() in line.lower() if ignore_case else searched in line

    with_paths = reads_files and len(paths) > 1 and "h" not in options

    def lines() -> Iterator[str]:
        for path, text in texts:
            hits = [(n, line) for n, line in enumerate(_lines(text), 1) if matches(line) != ("v" in options)]
            if "l" in options:
                yield from [path] if hits else []
            elif "c" in options:
                yield f"{path}:{len(hits)}" if with_paths else str(len(hits))
            else:
                for n, line in hits:
                    yield f"{f'{path}:' if with_paths else ''}{f'{n}:' if 'n' in options else ''}{line}"

    return _join(lines())


def _files_in(shell: Shell, text: str) -> list[str]:
    """Return the files below a folder. Return the path itself if it isn't a folder."""
    path = shell.path(text)
    return [shell.relative(entry) for entry in sorted(path.rglob("*")) if entry.is_file()] if path.is_dir() else [text]


@_command
def find(shell: Shell, arguments: list[str], _stdin: str) -> str:
    """Find files below a folder. Options: -name PATTERN, -type f or d."""
    folder = arguments.pop(0) if arguments and not arguments[0].startswith("-") else "."
    pattern, kind = "*", ""
    while arguments:
        option = arguments.pop(0)
        if option not in {"-name", "-type"} or not arguments:
            raise ShellError("find takes only a folder, -name PATTERN, and -type f or -type d")
        if option == "-name":
            pattern = arguments.pop(0)
        else:
            kind = arguments.pop(0)
    root = shell.path(folder)
    if not root.is_dir():
        raise ShellError(f"{folder}: no such folder")
    return _join(
        shell.relative(path)
        for path in sorted(root.rglob("*"))
        if fnmatch.fnmatchcase(path.name, pattern) and (not kind or (path.is_dir() if kind == "d" else path.is_file()))
    )


@_command
def mkdir(shell: Shell, arguments: list[str], _stdin: str) -> str:
    """Create folders. Option: -p (also parent folders)."""
    options, paths = _options(arguments, "p")
    for text in paths:
        shell.count_written(ENTRY_BYTES * text.count("/"))
        try:
            shell.path(text).mkdir(parents="p" in options, exist_ok="p" in options)
        except OSError as error:
            raise ShellError(f"{text}: {error.strerror}") from None
    return ""


@_command
def rm(shell: Shell, arguments: list[str], _stdin: str) -> str:
    """Remove files. Options: -r (also folders), -f (ignore missing files)."""
    options, paths = _options(arguments, "rf")
    for text in paths:
        path = shell.path(text)
        if shell.relative(path) in {"", "."}:
            raise ShellError("the folder of all papers can't be removed")
        if path.is_dir() and not path.is_symlink():
            if "r" not in options:
                raise ShellError(f"{text}: is a folder: use rm -r")
            shutil.rmtree(path)
        elif path.exists() or path.is_symlink():
            path.unlink()
        elif "f" not in options:
            raise ShellError(f"{text}: no such file or folder")
    return ""


@_command
def mv(shell: Shell, arguments: list[str], _stdin: str) -> str:
    for source, target in _pairs(shell, arguments):
        source.rename(target)
    return ""


@_command
def cp(shell: Shell, arguments: list[str], _stdin: str) -> str:
    """Copy files. Option: -r (also folders)."""
    options, rest = _options(arguments, "r")
    for source, target in _pairs(shell, rest):
        if source.is_dir() and "r" not in options:
            raise ShellError(f"{shell.relative(source)}: is a folder: use cp -r")
        if source.is_dir():
            if target.is_relative_to(source):
                raise ShellError(f"{shell.relative(source)}: can't be copied into itself")
            for inner in source.rglob("*"):
                shell.count_written(inner.lstat().st_size)
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            shell.count_written(source.stat().st_size)
            target.write_bytes(source.read_bytes())
    return ""


def _pairs(shell: Shell, arguments: list[str]) -> list[tuple[Path, Path]]:
    """Return the sources of a move or a copy, each with its target."""
    *sources, last = arguments or [""]
    target = shell.path(last)
    if not sources or (len(sources) > 1 and not target.is_dir()):
        raise ShellError("name a source and a target; for several sources, the target must be a folder")
    pairs = [(shell.path(text), target / Path(text).name if target.is_dir() else target) for text in sources]
    for source, target in pairs:
        if not source.exists():
            raise ShellError(f"{shell.relative(source)}: no such file or folder")
        if not target.parent.is_dir():
            raise ShellError(f"{shell.relative(target.parent)}: no such folder")
    return pairs
