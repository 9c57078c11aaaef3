"""Unified diff of two versions of a text.

Equal lines at the beginning and at the end of both versions aren't compared further. If very many lines lie in between,
all of these lines count as replaced, because finding the smallest diff can take quadratic time.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import takewhile

_CONTEXT = 3
_MAX_PAIRS = 10**6  # maximum number of pairs of an old and a new line that are compared


def unified_diff(old: str, new: str) -> str:
    """Return the hunks of a unified diff. If very many lines differ, all these lines count as replaced."""
    was, now = _lines(old), _lines(new)
    matcher = SequenceMatcher(None, was, now)
    # Fill the matcher's cache, which the next line uses.
    matcher.opcodes = [*_opcodes(was, now)]  # type: ignore[attr-defined]
    return "".join(line for group in matcher.get_grouped_opcodes(_CONTEXT) for line in _hunk(group, was, now))


def _lines(text: str) -> list[str]:
    """Return the lines of a text for a diff. A last line without a newline gets the same note that `diff` writes."""
    lines = [*io.StringIO(text, newline="\n")]
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n\\ No newline at end of file\n"
    return lines


def _opcodes(was: Sequence[str], now: Sequence[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield the opcodes that turn one text into the other, in the format of `SequenceMatcher`."""
    start = _common(zip(was, now, strict=False))
    at_end = _common(zip(reversed(was[start:]), reversed(now[start:]), strict=False))
    was_end, now_end = len(was) - at_end, len(now) - at_end
    if start:
        yield "equal", 0, start, 0, start
    if (was_end - start) * (now_end - start) > _MAX_PAIRS:
        yield "replace", start, was_end, start, now_end
    else:
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, was[start:was_end], now[start:now_end]).get_opcodes():
            yield tag, start + i1, start + i2, start + j1, start + j2
    if at_end:
        yield "equal", was_end, len(was), now_end, len(now)


def _common(pairs: Iterable[tuple[str, str]]) -> int:
    """Return the number of equal pairs at the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _hunk(group: Sequence[tuple[str, int, int, int, int]], was: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a hunk: its header, then the lines with ` `, `-` or `+` before them."""
    _, first, _, new_first, _ = group[0]
    _, _, last, _, new_last = group[-1]
    yield f"@@ -{_range(first, last)} +{_range(new_first, new_last)} @@\n"
    for tag, i1, i2, j1, j2 in group:
        if tag == "equal":
            yield from (f" {line}" for line in was[i1:i2])
        if tag in {"replace", "delete"}:
            yield from (f"-{line}" for line in was[i1:i2])
        if tag in {"replace", "insert"}:
            yield from (f"+{line}" for line in now[j1:j2])


def _range(start: int, stop: int) -> str:
    """Return a range of lines in the notation of a unified diff: "first,length", or "first" for a single line.

    Lines are numbered from 1. An empty range has the number of the line before it.
    """
    length = stop - start
    return f"{start + 1}" if length == 1 else f"{start + 1 if length else start},{length}"
