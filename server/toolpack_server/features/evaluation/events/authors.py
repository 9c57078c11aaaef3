"""Methods of `Toolpack` that register event rules and conditions."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, TypeVar

from pydantic import BaseModel

from toolpack_server.base.errors import RegistrationError
from toolpack_server.features.evaluation.event_rules import (
    DEFAULT_BEGINS,
    MAX_SECONDS,
    microseconds,
    read_event_rules,
)
from toolpack_server.features.evaluation.events.world import WORLD_PACK
from toolpack_server.functions_runtime import EmptyEnv
from toolpack_server.packs.registration import caller_location, located
from toolpack_server.packs.toolpack import Toolpack

Plain = TypeVar("Plain", bound=Callable[..., Any])


class EventAuthor(Toolpack):
    """The part of `Toolpack` that registers events: functions that the world calls when a rule says so.

    Attributes:
        event_rules: The toolpack's rules, as JSON objects.
        hidden: The names of the functions of events and conditions, which agents and other participants can't call.

    Args:
        begins: The simulated time when the toolpack's sessions begin, in RFC 3339 with an offset. Default:
            2026-01-01T00:00:00Z.
        step_seconds: The simulated time that a call takes, in seconds. Default: 1.
    """

    def __init__(
        self,
        name: str,
        environment: Callable[..., BaseModel] = EmptyEnv,
        functions: Iterable[Any] = (),
        opt_in: bool = False,
        state_types: Iterable[type] = (),
        lazy: bool = True,
        *,
        begins: str | None = None,
        step_seconds: float | None = None,
    ) -> None:
        super().__init__(name, environment, functions, opt_in, state_types, lazy)
        with located(self.location):
            try:
                microseconds(begins or DEFAULT_BEGINS)
            except (TypeError, ValueError):
                raise RegistrationError(f"begins is {begins!r}: give a time like 2026-03-02T09:00:00Z.") from None
            step = 1 if step_seconds is None else step_seconds
            if type(step) not in {int, float} or not 0 <= step <= MAX_SECONDS:
                raise RegistrationError(f"step_seconds is {step!r}: give a number of seconds, at most 366 days.")
        self.begins, self.step_seconds = begins, step_seconds
        if begins is not None or step_seconds is not None:
            self.companions = (WORLD_PACK,)

    @cached_property
    def event_rules(self) -> list[Mapping[str, Any]]:
        return []

    @cached_property
    def hidden(self) -> set[str]:
        return set()

    def event(self, **rule: Any) -> Callable[[Plain], Plain]:
        """Register the decorated function as an event: the world calls it when its rule says so. Return it unchanged.

        The arguments are the fields of the rule, which docs/write/moving.md lists. `do` isn't among them, because the
        event calls this function. The default of `name` is the function's name.

        Raises:
            RegistrationError: The rule or the function is invalid; the message says what to change.
        """

        def register(plain: Plain) -> Plain:
            with located(plain):
                name = plain.__name__
                own = {"name": name, **rule, "do": f"{self.name}.{name}"}
                try:
                    # Not complete: `after` can name an event that is registered later.
                    read_event_rules([*self.event_rules, own], complete=False)
                except ValueError as error:
                    raise RegistrationError(f"{error}.") from None
                self.register_function(plain)
                self.event_rules.append(own)
                self.hidden.add(name)
                self.companions = (WORLD_PACK,)  # adds `wait` and `get_time` to the toolpack's sessions
            return plain

        return register

    def add_event(self, **rule: Any) -> None:
        """Register a rule whose event calls no new function.

        The event can send a message, or offer and withdraw functions. Without an effect, it only adds a record to the
        trace.

        Raises:
            RegistrationError: The rule is invalid; the message says what to change.
        """
        with located(caller_location(self.name)):
            try:
                read_event_rules([*self.event_rules, rule], complete=False)
            except ValueError as error:
                raise RegistrationError(f"{error}.") from None
            self.event_rules.append(rule)
            self.companions = (WORLD_PACK,)

    def condition(self, plain: Plain) -> Plain:
        """Register the decorated function as a condition, which rules name in `when`. Return the function unchanged.

        The function must return a bool, and it is called without arguments.
        """
        self.register_function(plain, read_only=True)
        self.hidden.add(plain.__name__)
        return plain
