"""Toolpacks of any classes: `Toolpack.from_class` and `Toolpack.from_classes`.

What they make is a toolpack like any other; only how its environment is built differs.
"""

from collections.abc import Iterable, Mapping
from typing import Self

from toolpack_server.features.authoring.classes.methods import Methods
from toolpack_server.features.authoring.classes.worlds import ClassWorld, Maker, world_of_class, world_of_classes
from toolpack_server.packs.registration import caller_place, located
from toolpack_server.packs.toolpack import Toolpack


class ClassToolpacks(Toolpack):
    """The part of `Toolpack` that makes toolpacks of classes."""

    @classmethod
    def from_class(
        toolpack,  # noqa: N804 - `cls` is the author's class
        name: str,
        cls: type,
        *,
        read_only: Methods = (),
        exclude: Methods = (),
        options: Maker | None = None,
        opt_in: bool = False,
        state_types: Iterable[type] = (),
    ) -> Self:
        """Make a toolpack of a class: its environment is one instance, its public methods are the functions.

        Args:
            cls: Any Python class. Its public methods with a docstring become functions; those that it inherits, and
                static and async ones, too. Type hints and descriptions of parameters may be missing.
            read_only: The methods that leave the instance unchanged: their names, or a predicate of a method.
            exclude: The methods that don't become functions: likewise.
            options: What makes the instance. None: the constructor, whose documented parameters are the options. A
                function that returns an instance: its parameters are the options. The name of a method, called on a
                new instance: its parameters are the options; where it needs some and none is given, it isn't called.
            opt_in: Only sessions that name this toolpack get it.
            state_types: Classes that the instance may hold, besides those that the modules of the class and its bases
                define and those in annotations.

        Raises:
            RegistrationError: The class or a method can't be used; the text says what to do.
        """
        with located(caller_place(name)):
            world = world_of_class(name, cls, read_only, exclude, options)
            return toolpack._of(cls, world, name, opt_in, state_types)
        return toolpack(name, opt_in=opt_in)  # the problem was collected

    @classmethod
    def from_classes(
        toolpack,  # noqa: N804 - `cls` is the author's class
        name: str,
        classes: Mapping[str, type],
        *,
        read_only: Methods = (),
        exclude: Methods = (),
        options: Mapping[str, Maker] | None = None,
        opt_in: bool = False,
        state_types: Iterable[type] = (),
    ) -> Self:
        """Make a toolpack of several classes: its environment holds one instance of each.

        The arguments are those of `from_class`, and in `read_only` and `exclude` `instance.method` names the method of
        one of them.

        Args:
            classes: The classes, by the names of their instances. Methods of one name become functions called
                `<instance>_<method>`.
            options: By the names of the instances. The toolpack's options are those of each instance, by its name.

        Raises:
            RegistrationError: A class or a method can't be used; the text says what to do.
        """
        with located(caller_place(name)):
            world = world_of_classes(name, classes, read_only, exclude, options or {})
            return toolpack._of(next(iter(classes.values())), world, name, opt_in, state_types)
        return toolpack(name, opt_in=opt_in)  # the problem was collected

    @classmethod
    def _of(toolpack, source: type, world: ClassWorld, name: str, opt_in: bool, state_types: Iterable[type]) -> Self:  # noqa: N804
        kinds = dict.fromkeys([*state_types, *world.state_types])
        made = toolpack(name, world.environment, opt_in=opt_in, state_types=kinds)
        made._hold(source, world)  # noqa: SLF001 - it is made here
        return made

    def _hold(self, source: type, world: ClassWorld) -> None:
        self.holds_instances = True
        self.source, self._build, self._options = source, world.build, world.options
        for function, read_only in world.functions:
            self.register_function(function, read_only=read_only)
