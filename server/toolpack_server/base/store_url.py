"""What the URL of a store says about it: whether it lasts, who may share it, and which files it has.

Whoever isn't a store asks here and knows no scheme.
"""

import re
from pathlib import Path

SQLITE = "sqlite:///"

# In each of several URLs, what stands before its host, and what an option says that has a password's name.
_SECRETS = re.compile(r"(?<=://)(?!/)(?:(?!://).)*@|(?<=password=)[^&,]*", re.IGNORECASE)


class StoreUrl(str):
    """`memory:`, `sqlite:///path` or `redis://host`; also one that names no store."""

    __slots__ = ()

    @property
    def scheme(self) -> str:
        return self.partition(":")[0]

    @property
    def shown(self) -> str:
        """The URL without passwords."""
        return _SECRETS.sub(lambda found: "…@" if found[0].endswith("@") else "…", self)

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
