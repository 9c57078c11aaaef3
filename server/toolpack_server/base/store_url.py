"""Store URL: whether the store is persistent or shared, and its files. Other modules don't test URL schemes."""

import re
from pathlib import Path

SQLITE = "sqlite:///"

# Matches, in each of several URLs, the credentials before the host and the value of a password option.
_SECRETS = re.compile(r"(?<=://)(?!/)(?:(?!://).)*@|(?<=password=)[^&,]*", re.IGNORECASE)


class StoreUrl(str):
    """A URL such as `memory:`, `sqlite:///path` or `redis://host`. It needn't name an existing kind of store."""

    __slots__ = ()

    @property
    def scheme(self) -> str:
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
        """The store's files on this machine. Further files of a store begin with the name of one of these."""
        return (Path(self.removeprefix(SQLITE)),) if self.startswith(SQLITE) else ()
