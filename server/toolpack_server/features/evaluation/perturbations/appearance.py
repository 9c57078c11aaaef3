"""How functions appear to an agent while some rules hold: which are hidden, and how the others are described.

Pure. Only names and descriptions differ; what is called is the function as it is.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolpack_server.features.evaluation.rules import Rule
from toolpack_server.packs.formats import parameters_schema
from toolpack_server.packs.names import without_dots
from toolpack_server.packs.pack_function import PackFunction

MAX_TEXT = 2**16  # characters of a text that names functions by longer names, unless it was longer before


class Appearance:
    """How functions appear.

    Args:
        rules: The rules that hold, on lists of functions.
        about: For each, the functions that it is about.
        functions: All functions of the session.

    Attributes:
        hidden: The functions that don't appear, each with the rule that hides it.
        offered: All others.
        names: What those are called that have another name, each with the rule that renames it.
    """

    def __init__(self, rules: Sequence[Rule], about: Mapping[str, Sequence[str]], functions: Sequence[str]) -> None:
        self._rules = rules
        self._about = about
        self.hidden = {
            name: rule.name for rule in reversed(rules) if rule.effect == "hide" for name in about[rule.name]
        }
        self.offered = frozenset(functions) - self.hidden.keys()
        numbers = {name: number for number, name in enumerate(functions, 1)}
        self.names: dict[str, tuple[str, str]] = {}
        for rule in rules:
            if rule.effect == "rename":
                for name in about[rule.name]:
                    new = f"tool_{numbers[name]}" if rule.value is True else rule.value.get(name)
                    if new is not None:
                        self.names[name] = new, rule.name
        old = "|".join(map(re.escape, sorted(self.names, reverse=True)))  # the longer ones first
        self._names = re.compile(rf"(?<![\w.])(?:{old or '(?!)'})(?!\w)")
        self._old = {new: old for old, (name, _) in self.names.items() for new in (name, without_dots(name))}

    def listed(self, functions: Sequence[PackFunction]) -> list[PackFunction]:
        """Get functions as they appear."""
        descriptions = {function.name: function.function.description for function in functions}
        changed: dict[str, dict[str, Any]] = {}
        for rule in self._rules:
            names = [name for name in self._about[rule.name] if name in descriptions]
            for place, name in enumerate(names):
                said = changed.setdefault(name, {})
                if rule.effect == "describe":
                    following = descriptions[names[(place + 1) % len(names)]]
                    said["description"] = following if rule.value is True else rule.value
                elif rule.effect == "forget":
                    said.setdefault("forgotten", set()).update(rule.value)
        for name, (new, _) in self.names.items():
            changed.setdefault(name, {})["name"] = new
        return [
            _Described.of(function, **changed[function.name]) if changed.get(function.name) else function
            for function in functions
            if function.name not in self.hidden
        ]

    def met(self, function: str) -> str | None:
        """Get the rule that renames a function."""
        return self.names[function][1] if function in self.names else None

    def renamed(self, text: str) -> tuple[str, list[str]]:
        """Get a text that names functions as they appear, and the rules that rename them; it is cut if it grows long.

        Only the names that were there are renamed: a new one may be the old one of another function.
        """
        rules: dict[str, None] = {}
        pieces: list[str] = []
        end = size = 0
        for match in self._names.finditer(text):
            new, rule = self.names[match[0]]
            rules[rule] = None
            pieces += text[end : match.start()], new
            size += match.start() - end + len(new)
            end = match.end()
            if size > max(MAX_TEXT, len(text)):
                return "".join([*pieces, "…"]), [*rules]
        return "".join([*pieces, text[end:]]), [*rules]

    def called(self, name: str) -> str | None:
        """Get what a function is really called, from a name that an agent has sent; None if it has no such name."""
        return self._old.get(name, None if name in self.names else name)


class _Described:
    """A ready function that is called and described otherwise."""

    def __init__(self, function: PackFunction, name: str, description: str, forgotten: set[str]) -> None:
        self.name = name
        self.description = "" if "description" in forgotten else description
        self.return_type = function.function.return_type
        self.parameters = self
        self._schema = _forgetting(parameters_schema(function), forgotten)
        if "title" in self._schema:
            self._schema["title"] = self._schema["title"].replace(function.name, name)

    @classmethod
    def of(
        cls,
        function: PackFunction,
        name: str | None = None,
        description: str | None = None,
        forgotten: set[str] | None = None,
    ) -> PackFunction:
        said = function.function.description if description is None else description
        return replace(function, function=cls(function, name or function.name, said, forgotten or set()))

    def model_json_schema(self) -> dict[str, Any]:
        return copy.deepcopy(self._schema)


def _forgetting(schema: dict[str, Any], forgotten: set[str]) -> dict[str, Any]:
    if "required" in forgotten:
        schema.pop("required", None)
    for each in schema.get("properties", {}).values():
        if "descriptions" in forgotten:
            each.pop("description", None)
        if "defaults" in forgotten:
            each.pop("default", None)
        if "types" in forgotten:
            for name in each.keys() - {"description", "default", "title"}:
                del each[name]
    if "types" in forgotten:
        schema.pop("$defs", None)
    return schema
