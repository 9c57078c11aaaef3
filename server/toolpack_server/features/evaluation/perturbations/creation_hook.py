"""The rules of a new session: those of a variant of its task, and those that are given.

They are written out when the session begins, so that edited code changes nothing that has begun. What can't
be used is refused before anything is stored.
"""

import operator
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import Field
from typing_extensions import override

from toolpack_server.base.errors import InvalidParamsError, shown
from toolpack_server.features.evaluation.perturbations.counts import COUNTS, NAME, Counts, counts_before
from toolpack_server.features.evaluation.perturbations.results import Perturbations
from toolpack_server.features.evaluation.perturbations.session_rules import Functions, SessionRules
from toolpack_server.features.evaluation.rules import Rule, read_rules
from toolpack_server.features.evaluation.tasks.finding import find_task
from toolpack_server.protocol.parameters import ForkRequest, Parameters, SessionRequest
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.hooks import CreationHook
from toolpack_server.sessions.recipes import Recipe, details_of
from toolpack_server.stores.base import Head, StoredSession

_is_omitted = partial(operator.is_, None)
"""What isn't asked for makes no difference to a request, also to one of before there were perturbations: the ids of
sessions follow from requests that can be repeated."""


class PerturbationParameters(Parameters):
    perturbations: Perturbations | None = Field(
        None,
        description="The faults and injections that its agent meets, by rules; default: none.",
        exclude_if=_is_omitted,
    )


class ForkPerturbations(Parameters):
    perturbations: Perturbations | None = Field(
        None,
        description="Those that their agents meet; default: the parent's. Without any rule: none.",
        exclude_if=_is_omitted,
    )


class PerturbationCreationHook(CreationHook):
    keeps = frozenset({NAME, COUNTS})

    def __init__(self, context: SessionContext) -> None:
        self._catalog = context.catalog
        self._paths = context.paths
        self._kinds = context.record_kinds

    @override
    def concerns(self, request: SessionRequest) -> bool:
        return getattr(request, NAME, None) is not None

    @override
    def prepare(self, request: SessionRequest) -> SessionRequest:
        asked: Mapping[str, Any] = getattr(request, NAME)
        task = None if request.resolved else getattr(request, "task", None)
        toolpacks = self._catalog.choose(request.toolpacks)
        written = self._written(asked, task, toolpacks, getattr(request, "clock", None), resolved=request.resolved)
        return request.model_copy(update={NAME: written})

    @override
    def details(self, request: SessionRequest) -> Mapping[str, Any]:
        return _details(getattr(request, NAME), Counts())

    @override
    def details_of_fork(
        self, request: ForkRequest, parent: StoredSession, head: Head, version: int
    ) -> Mapping[str, Any]:
        asked: Mapping[str, Any] | None = getattr(request, NAME, None)
        recipe, before = Recipe.of(parent), details_of(parent)
        if asked is None:
            written = before.get(NAME)
        else:
            clock = getattr(request, "clock", None) or before.get("clock")
            task = recipe.kept.get("task")
            written = self._written(asked, task, recipe.toolpacks, clock, resolved=request.resolved)
        if not written:
            return {}
        functions = Functions(self._catalog.functions(recipe.toolpacks))
        return _details(written, counts_before(parent, head, version, self._paths, self._kinds, functions))

    def _written(
        self,
        asked: Mapping[str, Any],
        task: str | None,
        toolpacks: Sequence[str],
        clock: str | None,
        *,
        resolved: bool = False,
    ) -> Perturbations:
        """Get perturbations with the rules of their variant written out.

        Args:
            resolved: They are already.

        Raises:
            InvalidParamsError: They can't be used.
        """
        variant, given, seed = asked.get("variant"), [*(asked.get("rules") or ())], asked.get("seed") or ""
        if variant is not None and not resolved:
            given = [*self._variant(task, variant), *given]
        try:
            rules = read_rules(given)
        except ValueError as error:
            raise InvalidParamsError(f"{error}.") from None
        self._check(rules, Functions(self._catalog.functions(toolpacks)), clock)
        return {"variant": variant, "rules": given, "seed": seed}

    def _variant(self, name: str | None, variant: str) -> Sequence[Mapping[str, Any]]:
        if name is None:
            raise InvalidParamsError("A variant is one of a task: create the session with a task, or give rules.")
        variants = find_task(self._catalog, name)[1].variants
        if variant not in variants:
            raise InvalidParamsError(
                f"The task {shown(name)!r} has no variant {shown(variant)!r}: it has {', '.join(variants) or 'none'}."
            )
        return [dict(rule) for rule in variants[variant]]

    @staticmethod
    def _check(rules: Sequence[Rule], functions: Functions, clock: str | None) -> None:
        session_rules = SessionRules(rules, "", functions)
        for rule in rules:
            unknown = session_rules.unknown(rule)
            if unknown is not None:
                raise InvalidParamsError(f"Rule {shown(rule.name)!r}: the session has no function {shown(unknown)!r}.")
            if rule.effect == "delay" and not clock:
                raise InvalidParamsError("A delay moves the session's clock on: give the session a clock.")

        ambiguous = session_rules.ambiguous()
        if ambiguous is not None:
            rule_name, name = map(shown, ambiguous)
            raise InvalidParamsError(f"Rule {rule_name!r}: two functions would be called {name!r}: choose others.")


def _details(written: Mapping[str, Any], counts: Counts) -> Mapping[str, Any]:
    if not written["rules"] and written["variant"] is None:
        return {}
    return {NAME: written, **({COUNTS: counts.written()} if counts else {})}
