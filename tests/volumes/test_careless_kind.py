"""A kind of volume that lets read-only calls write: its changes reach no other call.

At the end of a read-only call, the server also relies on the kind's report that the working copy is unchanged.
"""

import importlib
from pathlib import Path
from typing import Annotated

import pytest
from serving import FEATURES, Bench

from toolpack_server import Depends, TaskEnvironment, Toolpack
from toolpack_server.features.api.core import Feature
from toolpack_server.packs.catalog import Catalog

TIDE = Path(__file__).parents[1] / "fixtures" / "tide"


@pytest.fixture
def careless(monkeypatch):
    """Return a kind whose `add` doesn't check whether writing is allowed."""
    monkeypatch.syspath_prepend(TIDE)

    class Careless(importlib.import_module("tide.tally").Tally):
        kind = "careless"

        def add(self, line):
            self.lines.append(line)
            self._added += 1

    return Careless


def test_writes_of_a_read_only_call_end_with_it(careless):
    class Pier(TaskEnvironment):
        log: careless = careless(["built"])

    pack = Toolpack("pier", Pier)
    log = Annotated[careless, Depends("log")]

    @pack.function
    def moor(log: log, boat: str) -> int:
        """Moor a boat.

        :param boat: Its name.
        """
        log.add(boat)
        return len(log.lines)

    @pack.function(read_only=True)
    def peek(log: log, boat: str) -> list[str]:
        """Write, although the function is declared read-only.

        :param boat: The name of a boat.
        """
        log.add(boat)
        if boat == "wreck":
            raise ValueError("it sinks")
        return log.lines

    @pack.function(read_only=True)
    def moored(log: log) -> list[str]:
        """Return the moored boats."""
        return log.lines

    feature = type("CarelessFeature", (Feature,), {"name": "careless", "volumes": (careless,)})
    with Bench(Catalog({"pier": pack}), features=[*FEATURES, feature]) as bench:
        session = bench.create("pier")
        (fork,) = bench.rpc("fork_session", session_id=session)
        for boat in ("ghost", "wreck"):
            bench.call(session, "peek", boat=boat)
            assert bench.result(session, "moored") == ["built"]
            assert bench.result(fork["session_id"], "moored") == ["built"]
        assert bench.result(session, "moor", boat="Anna") == 2
        bench.call(session, "peek", boat="ghost")
        assert bench.result(session, "moor", boat="Berta") == 3
        assert bench.rpc("get_environment", session_id=session)["pier"]["log"] == ["built", "Anna", "Berta"]
