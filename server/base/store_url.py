"""What the URL of a store says about it: whether it lasts, who may share it, and which files it has.

The rule: whoever isn't a store asks here and knows no scheme.
"""

from pathlib import Path

SQLITE = "sqlite:///"


class StoreUrl(str):
    """`memory:`, `sqlite:///path` or `redis://host`; also one that names no store."""

    __slots__ = ()

    @property
    def scheme(self) -> str:
        return self.partition(":")[0]

    @property
    def persistent(self) -> bool:
        """Whether sessions outlive the process."""
        return self.scheme != "memory"

    @property
    def shared(self) -> bool:
        """Whether servers may share it that know nothing of each other, also on several machines.

        That is so of each that isn't in memory or in a file, also of those that features add.
        """
        return self.scheme not in {"memory", "sqlite"}

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it is kept in, on the server's own machine; others that belong to one begin with its name."""
        return (Path(self.removeprefix(SQLITE)),) if self.startswith(SQLITE) else ()
