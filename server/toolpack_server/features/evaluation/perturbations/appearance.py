"""Appearance of functions to an agent while rules apply: hidden, renamed and redescribed functions.

Pure functions. Only names and descriptions change; a call runs the real function.
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

MAX_TEXT = 2**16  # characters of a text after renaming; a text that was longer before may keep its length


class Appearance:
    """The functions of a session as its agent sees them.

    Args:
        rules: The rules on lists of functions that apply.
        functions_by_rule: The functions that each rule affects, by name of the rule.
        functions: All functions of the session.

    Attributes:
        hidden: The rule that hides a function, by name of the function.
        offered: The functions that aren't hidden.
        names: The new name of a renamed function and the rule that renames it, by its real name.
    """

    def __init__(
        self, rules: Sequence[Rule], functions_by_rule: Mapping[str, Sequence[str]], functions: Sequence[str]
    ) -> None:
        self._rules = rules
        self._functions_by_rule = functions_by_rule
        self.hidden = {
            name: rule.name
            for rule in reversed(rules)
            if rule.effect == "hide"
            for name in functions_by_rule[rule.name]
        }
        self.offered = frozenset(functions) - self.hidden.keys()
        numbers = {name: number for number, name in enumerate(functions, 1)}
        self.names: dict[str, tuple[str, str]] = {}
        for rule in rules:
            if rule.effect == "rename":
                for name in functions_by_rule[rule.name]:
                    new = f"tool_{numbers[name]}" if rule.value is True else rule.value.get(name)
                    if new is not None:
                        self.names[name] = new, rule.name
        alternatives = "|".join(map(re.escape, sorted(self.names, reverse=True)))  # longer names before their prefixes
        self._names = re.compile(rf"(?<![\w.])(?:{alternatives or '(?!)'})(?!\w)")
        self._real_names = {new: real for real, (name, _) in self.names.items() for new in (name, without_dots(name))}

    def apply(self, functions: Sequence[PackFunction]) -> list[PackFunction]:
        """Return the functions that aren't hidden, with their new names and descriptions."""
        descriptions = {function.name: function.function.description for function in functions}
        changed: dict[str, dict[str, Any]] = {}
        for rule in self._rules:
            names = [name for name in self._functions_by_rule[rule.name] if name in descriptions]
            for index, name in enumerate(names):
                changes = changed.setdefault(name, {})
                if rule.effect == "describe" and isinstance(rule.value, Mapping):
                    changes["description"] = changes.get("description", descriptions[name]) + rule.value["append"]
                elif rule.effect == "describe":  # `true` gives each function the description of the next one
                    following = descriptions[names[(index + 1) % len(names)]]
                    changes["description"] = following if rule.value is True else rule.value
                elif rule.effect == "forget":
                    changes.setdefault("forgotten", set()).update(rule.value)
        for name, (new, _) in self.names.items():
            changed.setdefault(name, {})["name"] = new
        return [
            _DescribedFunction.of(function, **changed[function.name]) if changed.get(function.name) else function
            for function in functions
            if function.name not in self.hidden
        ]

    def renaming_rule(self, function: str) -> str | None:
        """Return the name of the rule that renames a function, or None."""
        return self.names[function][1] if function in self.names else None

    def rename_in(self, text: str) -> tuple[str, list[str]]:
        """Replace real names in a text by new ones. Return the text, cut if it grew too long, and the rules applied.

        The text is searched once, because a new name may be the real name of another function.
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

    def real_name(self, name: str) -> str | None:
        """Return the real name for a name that an agent sent, or None if the name was replaced by a new one."""
        return self._real_names.get(name, None if name in self.names else name)


class _DescribedFunction:
    """A function with another name, description or parameter schema, for lists only."""

    def __init__(self, function: PackFunction, name: str, description: str, forgotten: set[str]) -> None:
        self.name = name
        self.description = "" if "description" in forgotten else description
        self.return_type = function.function.return_type
        self.parameters = self
        self._schema = _strip_schema(parameters_schema(function), forgotten)
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
        if description is None:
            description = function.function.description
        return replace(function, function=cls(function, name or function.name, description, forgotten or set()))

    def model_json_schema(self) -> dict[str, Any]:
        return copy.deepcopy(self._schema)


def _strip_schema(schema: dict[str, Any], forgotten: set[str]) -> dict[str, Any]:
    if "required" in forgotten:
        schema.pop("required", None)
    for parameter in schema.get("properties", {}).values():
        if "descriptions" in forgotten:
            parameter.pop("description", None)
        if "defaults" in forgotten:
            parameter.pop("default", None)
        if "types" in forgotten:
            for name in parameter.keys() - {"description", "default", "title"}:
                del parameter[name]
    if "types" in forgotten:
        schema.pop("$defs", None)
    return schema
