"""Appearance of a session's functions to its agent: rules can hide, rename or redescribe functions.

Only the agent's list changes; a call still runs the real function. All functions here are pure.
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

MAX_TEXT = 2**16  # max length of a text after functions in it are renamed, unless it was longer before


class Appearance:
    """The functions of a session as its agent sees them. `SessionRules` creates it from the rules that apply now.

    Args:
        rules: The rules that change the list of functions now.
        functions_by_rule: For each rule, by its name: the names of the functions that it affects.
        functions: The names of all functions of the session.

    Attributes:
        hidden: For each hidden function, by its name: the name of the rule that hides it.
        offered: The names of the functions that aren't hidden.
        names: For each renamed function, by its real name: the new name, and the name of the rule that renames it.
    """

    def __init__(
        self, rules: Sequence[Rule], functions_by_rule: Mapping[str, Sequence[str]], functions: Sequence[str]
    ) -> None:
        self._rules = rules
        self._functions_by_rule = functions_by_rule
        self.hidden = {
            name: rule.name
            for rule in reversed(rules)  # of several rules that hide a function, the first rule stays in the dict
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
        # A regex takes the first alternative that matches, so each name must precede its own prefixes. Reverse
        # alphabetical order ensures this.
        alternatives = "|".join(map(re.escape, sorted(self.names, reverse=True)))
        self._names = re.compile(rf"(?<![\w.])(?:{alternatives or '(?!)'})(?!\w)")
        self._real_names = {new: real for real, (name, _) in self.names.items() for new in (name, without_dots(name))}

    def apply(self, functions: Sequence[PackFunction]) -> list[PackFunction]:
        """Return the functions that aren't hidden, with their new names and descriptions.

        Rules apply in order: a description replaces earlier descriptions, and a text is appended to the latest one.
        """
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
        """Replace the real names of functions in a text by their new names.

        Return the text and the names of the rules that changed it. A text that grows longer than `MAX_TEXT` is cut. All
        names are replaced in one pass, because the new name of one function can be the real name of another.
        """
        rules: dict[str, None] = {}
        pieces: list[str] = []
        end = size = 0
        for match in self._names.finditer(text):
            new, rule = self.names[match[0]]
            rules[rule] = None
            pieces += text[end : match.start()], new
            size += match.start() - end + len(new)  # of all pieces
            end = match.end()
            if size > max(MAX_TEXT, len(text)):
                return "".join([*pieces, "…"]), [*rules]
        return "".join([*pieces, text[end:]]), [*rules]

    def real_name(self, name: str) -> str | None:
        """Return the real name of the function that an agent calls `name`.

        Return None if `name` is the old name of a renamed function. Return an unknown name unchanged.
        """
        return self._real_names.get(name, None if name in self.names else name)


class _DescribedFunction:
    """A function with a changed name, description or parameter schema, used only in the agent's list of functions.

    It stands in for `PackFunction.function`, so it offers the attributes that the formats of lists read.
    """

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
        """Return a copy of a function, for the agent's list, with the given changes."""
        if description is None:
            description = function.function.description
        return replace(function, function=cls(function, name or function.name, description, forgotten or set()))

    def model_json_schema(self) -> dict[str, Any]:
        return copy.deepcopy(self._schema)


def _strip_schema(schema: dict[str, Any], forgotten: set[str]) -> dict[str, Any]:
    """Remove details from a parameter schema in place: those that a `forget` rule names, such as `defaults`."""
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
