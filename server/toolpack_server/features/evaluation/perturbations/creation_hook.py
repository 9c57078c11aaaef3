"""Creation hook that collects a new session's perturbation rules from the task's variant, then from the request.

The session stores its rules, so that a later change to the task's code doesn't affect the session. A request with rules
that the session can't use is refused before anything is stored.
"""

import operator
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import Field
from typing_extensions import override

from toolpack_server.base.errors import InvalidParamsError, shown
from toolpack_server.features.evaluation.perturbations.counts import COUNTS, NAME, Counts, counts_at_fork
from toolpack_server.features.evaluation.perturbations.results import Perturbations
from toolpack_server.features.evaluation.perturbations.session_rules import Functions, SessionRules
from toolpack_server.features.evaluation.rules import Rule, read_rules
from toolpack_server.features.evaluation.tasks.finding import find_task
from toolpack_server.protocol.parameters import ForkRequest, Parameters, SessionRequest
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.hooks import CreationHook
from toolpack_server.sessions.recipes import Recipe, details_of
from toolpack_server.stores.base import Head, StoredSession

_is_none = partial(operator.is_, None)
"""Leaves `perturbations` out of a serialised request without rules.

Session ids are derived from serialised requests. For a request without rules, the id must be the same as before this
parameter existed.
"""


class PerturbationParameters(Parameters):
    perturbations: Perturbations | None = Field(
        None,
        description="Rules that inject faults and texts into the agent's calls; default: none.",
        exclude_if=_is_none,
    )


class ForkPerturbations(Parameters):
    perturbations: Perturbations | None = Field(
        None,
        description="Rules for the forks; default: the parent's rules. An object without rules removes them.",
        exclude_if=_is_none,
    )


class PerturbationCreationHook(CreationHook):
    """Collects, checks and stores the perturbation rules of a new session or a fork."""

    option_names = frozenset({NAME, COUNTS})

    def __init__(self, context: SessionContext) -> None:
        self._catalog = context.catalog
        self._paths = context.paths
        self._kinds = context.record_kinds

    @override
    def concerns(self, request: SessionRequest) -> bool:
        return getattr(request, NAME, None) is not None

    @override
    def prepare(self, request: SessionRequest) -> SessionRequest:
        """Add the variant's rules to the request and check all rules. Rules from a bundle already include them.

        Raises:
            InvalidParamsError: The rules can't be used in this session.
        """
        perturbations: Mapping[str, Any] = getattr(request, NAME)
        task = None if request.resolved else getattr(request, "task", None)
        toolpacks = self._catalog.choose(request.toolpacks)
        clock = getattr(request, "clock", None)
        resolved = self._resolve(perturbations, task, toolpacks, clock, resolved=request.resolved)
        return request.model_copy(update={NAME: resolved})

    @override
    def details(self, request: SessionRequest) -> Mapping[str, Any]:
        return _details(getattr(request, NAME), Counts())

    @override
    def details_of_fork(
        self, request: ForkRequest, parent: StoredSession, head: Head, version: int
    ) -> Mapping[str, Any]:
        """Return the fork's rules, which are the parent's by default, and the counts of calls at the forked version."""
        perturbations: Mapping[str, Any] | None = getattr(request, NAME, None)
        recipe, parent_details = Recipe.of(parent), details_of(parent)
        if perturbations is None:
            resolved = parent_details.get(NAME)
        else:
            clock = getattr(request, "clock", None) or parent_details.get("clock")
            task = recipe.feature_options.get("task")
            resolved = self._resolve(perturbations, task, recipe.toolpacks, clock, resolved=request.resolved)
        if not resolved:
            return {}
        functions = Functions(self._catalog.functions(recipe.toolpacks))
        return _details(resolved, counts_at_fork(parent, head, version, self._paths, self._kinds, functions))

    def _resolve(
        self,
        perturbations: Mapping[str, Any],
        task: str | None,
        toolpacks: Sequence[str],
        clock: str | None,
        *,
        resolved: bool = False,
    ) -> Perturbations:
        """Check perturbations, and return them with the rules of their variant added.

        Args:
            resolved: Whether `perturbations` already includes the variant's rules, as it does in a bundle.

        Raises:
            InvalidParamsError: The rules can't be used in this session.
        """
        variant, seed = perturbations.get("variant"), perturbations.get("seed") or ""
        all_rules = [*(perturbations.get("rules") or ())]
        if variant is not None and not resolved:
            all_rules = [*self._variant(task, variant), *all_rules]
        try:
            rules = read_rules(all_rules)
        except ValueError as error:
            raise InvalidParamsError(f"{error}.") from None
        self._check(rules, Functions(self._catalog.functions(toolpacks)), clock)
        if not resolved:  # for a bundle, `harm` was checked when the session was created
            self._check_harm(rules, toolpacks)
        return {"variant": variant, "rules": all_rules, "seed": seed}

    def _variant(self, name: str | None, variant: str) -> Sequence[Mapping[str, Any]]:
        """Return the rules of a variant. Raise `InvalidParamsError` if the task or the variant doesn't exist."""
        if name is None:
            raise InvalidParamsError(
                "A variant belongs to a task, but the session has no task: create the session with a task, or give "
                "rules."
            )
        variants = find_task(self._catalog, name)[1].variants
        if variant not in variants:
            raise InvalidParamsError(
                f"The task {shown(name)!r} has no variant {shown(variant)!r}: it has {', '.join(variants) or 'none'}."
            )
        return [dict(rule) for rule in variants[variant]]

    def _check_harm(self, rules: Sequence[Rule], toolpacks: Sequence[str]) -> None:
        """Check that each task named in `harm` belongs to a toolpack of the session."""
        for rule in rules:
            if isinstance(rule.harm, str) and find_task(self._catalog, rule.harm)[0].name not in toolpacks:
                raise InvalidParamsError(
                    f"Rule {shown(rule.name)!r}: its harm {shown(rule.harm)!r} isn't a task of the session's toolpacks."
                )

    @staticmethod
    def _check(rules: Sequence[Rule], functions: Functions, clock: str | None) -> None:
        """Check that the named functions exist, that the clock can be advanced, and that new names are unique."""
        session_rules = SessionRules(rules, "", functions)
        for rule in rules:
            pattern = session_rules.unknown_pattern(rule)
            if pattern is not None:
                raise InvalidParamsError(f"Rule {shown(rule.name)!r}: the session has no function {shown(pattern)!r}.")
            if rule.effect == "delay" and not clock:
                raise InvalidParamsError(
                    f"Rule {shown(rule.name)!r} advances the session's clock: create the session with `clock`."
                )

        ambiguous = session_rules.ambiguous_name()
        if ambiguous is not None:
            rule_name, name = map(shown, ambiguous)
            raise InvalidParamsError(
                f"Rule {rule_name!r}: two functions would have the name {name!r}: choose different names."
            )


def _details(perturbations: Mapping[str, Any], counts: Counts) -> Mapping[str, Any]:
    if not perturbations["rules"] and perturbations["variant"] is None:
        return {}
    return {NAME: perturbations, **({COUNTS: counts.to_json()} if counts else {})}
