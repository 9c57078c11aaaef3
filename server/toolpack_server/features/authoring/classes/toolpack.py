"""The constructors `Toolpack.from_class` and `Toolpack.from_classes`, which create toolpacks from any Python classes.

They return ordinary toolpacks, whose environment contains instances of these classes.
"""

from collections.abc import Iterable, Mapping
from typing import Self

from toolpack_server.features.authoring.classes.methods import Methods
from toolpack_server.features.authoring.classes.worlds import ClassWorld, Maker, world_of_class, world_of_classes
from toolpack_server.packs.registration import caller_location, located
from toolpack_server.packs.toolpack import Toolpack


class ClassToolpacks(Toolpack):
    """The methods of `Toolpack` that create toolpacks from classes."""

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
        lazy: bool = True,
    ) -> Self:
        """Create a toolpack from a class. The environment is one instance; public methods become the functions.

        Args:
            name: The name of the toolpack.
            cls: Any Python class. Public methods with a docstring become functions, including inherited, static and
                async methods. Type hints and descriptions of parameters can be missing.
            read_only: The methods that don't change the instance: their names, or a predicate that accepts a method.
            exclude: The methods that don't become functions: their names, or a predicate that accepts a method.
            options: How to create the instance. By default, the constructor creates it, and the constructor's
                documented parameters are the toolpack's options. If you give a function, it must return the instance,
                and its parameters are the options. If you give the name of a method, it is called on a new instance,
                and its parameters are the options. A method with required parameters isn't called if the session gives
                no options.
            opt_in: Whether only sessions that name this toolpack get it.
            state_types: Further classes of objects that the instance can contain. Classes in the modules of `cls` and
                its bases, and in annotations of constructors, are found automatically.
            lazy: Whether objects of a large environment are loaded only when a call uses them.

        Raises:
            RegistrationError: The class or a method can't be used; the message says what to do.
        """
        with located(caller_location(name)):
            world = world_of_class(name, cls, read_only, exclude, options)
            return toolpack._from_world(cls, world, name, opt_in, state_types, lazy)
        return toolpack(name, opt_in=opt_in)  # during `check`, `located` collects the error instead of raising it

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
        lazy: bool = True,
    ) -> Self:
        """Create a toolpack from several classes. The environment contains one instance of each.

        See `from_class` for the other arguments. In `read_only` and `exclude`, `instance.method` selects the method of
        one instance.

        Args:
            name: The name of the toolpack.
            classes: The classes by the names of their instances. If two classes have a method of the same name, the
                functions are called `<instance>_<method>`.
            options: How to create each instance, by the instance's name. The toolpack's options are grouped in the same
                way: each instance's name maps to the options of this instance.

        Raises:
            RegistrationError: A class or a method can't be used; the message says what to do.
        """
        with located(caller_location(name)):
            world = world_of_classes(name, classes, read_only, exclude, options or {})
            return toolpack._from_world(next(iter(classes.values())), world, name, opt_in, state_types, lazy)
        return toolpack(name, opt_in=opt_in)  # during `check`, `located` collects the error instead of raising it

    @classmethod
    def _from_world(
        toolpack,  # noqa: N804 - as above
        source: type,
        world: ClassWorld,
        name: str,
        opt_in: bool,
        state_types: Iterable[type],
        lazy: bool,
    ) -> Self:
        """Create a toolpack from the parts in `world`, which were derived from the classes."""
        kinds = dict.fromkeys([*state_types, *world.state_types])
        pack = toolpack(name, world.environment, opt_in=opt_in, state_types=kinds, lazy=lazy)
        pack._use_world(source, world)  # noqa: SLF001 - an instance of this class
        return pack

    def _use_world(self, source: type, world: ClassWorld) -> None:
        """Replace the toolpack's source, builder and options by those of the classes, and register their functions."""
        self.holds_instances = True
        self.source, self._build, self._options = source, world.build, world.options
        for function, read_only in world.functions:
            self.register_function(function, read_only=read_only)
