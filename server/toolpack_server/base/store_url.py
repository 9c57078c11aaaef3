"""Store URL, which tells whether a store is persistent or shared, and names the store's files.

Other modules ask this class instead of comparing URL schemes.
"""

import re
from pathlib import Path

SQLITE = "sqlite:///"

# Matches the credentials before a host, and the value of a password option. The text can contain several URLs.
_SECRETS = re.compile(r"(?<=://)(?!/)(?:(?!://).)*@|(?<=password=)[^&,]*", re.IGNORECASE)


class StoreUrl(str):
    """URL such as `memory:`, `sqlite:///path` or `redis://host`. The class also accepts unknown schemes."""

    __slots__ = ()

    @property
    def scheme(self) -> str:
        """The kind of store, such as `redis`."""
        return self.partition(":")[0]

    @property
    def shown(self) -> str:
        """The URL without passwords."""
        return _SECRETS.sub(lambda match: "…@" if match[0].endswith("@") else "…", self)

    @property
    def persistent(self) -> bool:
        """Whether sessions outlive the process."""
        return self.scheme != "memory"

    @property
    def shared(self) -> bool:
        """Whether independent servers, also on several machines, can share the store.

        True for every store that isn't in memory or in a file, including stores that features add.
        """
        return self.scheme not in {"memory", "sqlite"}

    @property
    def files(self) -> tuple[Path, ...]:
        """The store's main files on this machine. The names of its other files begin with a main file's name."""
        return (Path(self.removeprefix(SQLITE)),) if self.startswith(SQLITE) else ()
