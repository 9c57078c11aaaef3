"""What an executor does: each request is bytes, and so is each answer.

The rule: these are the functions that `LocalRunner` calls, too; here they work on bytes without a seal, as an executor
has no key. Environments that it keeps between calls are a cache, and nobody relies on them.
"""

import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from server.errors import CallError, RequestError, TooLargeError
from server.execution.call import Outcome, call
from server.execution.codec import PlainCodec
from server.execution.initial import Built, build, parse
from server.execution.runtime import SessionRuntime
from server.execution.views import entries, export, view
from server.execution.world import Snapshot
from server.executors.channel import Channel, Frame
from server.executors.judge import Judge
from server.packs.catalog import Catalog
from server.pins import Pin

LIVE_BYTES = 4 * 2**20  # of snapshots; the environments take four to eight times as much
RUNTIMES = 256

Answer = tuple[dict[str, Any], list[bytes]]


class Work:
    """Does requests.

    Args:
        channel: Where parts of an environment are asked for that a request lacks.
        catalog: The toolpacks.
        max_environment_bytes: The largest snapshot of a part that is written.
        max_result_bytes: The largest size of a result as JSON.
    """

    def __init__(self, channel: Channel, catalog: Catalog, max_environment_bytes: int, max_result_bytes: int) -> None:
        self._channel = channel
        self._codec = PlainCodec(catalog, max_environment_bytes)
        self._max_result_bytes = max_result_bytes
        self._live = _Live()
        self._judge = Judge(channel, self._codec, max_result_bytes)
        self._runtime = lru_cache(maxsize=RUNTIMES)(self._make_runtime)
        self._kinds: Mapping[str, Callable[[Frame], Answer]] = {
            "call": self._call,
            "build": lambda frame: _built(
                build(self._codec, frame.head["toolpack"], frame.head["options"], _pin(frame))
            ),
            "parse": lambda frame: _built(
                parse(self._codec, frame.head["toolpack"], frame.head["environment"], _pin(frame))
            ),
            "entries": lambda frame: ({"entries": entries(self._codec, self._snapshot(frame))}, []),
            "view": lambda frame: ({}, [view(self._codec, self._snapshot(frame))]),
            "evaluate": lambda frame: (self._judge.do(frame), []),
            "solve": lambda frame: (self._judge.do(frame), []),
            "export": lambda frame: ({}, [export(self._codec, self._snapshot(frame))]),
        }

    def do(self, request: Frame) -> Answer:
        """Do a request, and get the answer."""
        try:
            return self._kinds[request.head["do"]](request)
        except (RequestError, CallError) as error:
            return {"refused": type(error).__name__, "text": str(error)}, []
        except Exception:  # noqa: BLE001 - a fault of the server, which the worker logs
            return {"fault": traceback.format_exc()}, []

    @staticmethod
    def too_large(most: int) -> Answer:
        """Get the answer that takes the place of one that is too large."""
        text = f"the answer has more than {most} bytes."
        return {"refused": TooLargeError.__name__, "text": text}, []

    def _call(self, request: Frame) -> Answer:
        head = request.head
        offered = None if head["offered"] is None else frozenset(head["offered"])
        plan = self._runtime(tuple(head["toolpacks"]), offered).plan(head["function"], head["kwargs"])
        # The worker knows what has been seen of the functions in all executors.
        plan.trusted -= frozenset(head["distrusted"])
        plan.read_only, plan.compares, plan.tracebacks = head["read_only"], head["compares"], head["tracebacks"]
        plan.pin = _pin(request)
        snapshot = self._snapshot(request)
        sizes = {part: len(blob) for part, blob in snapshot.blobs.items()}
        for part, tag in head["held"].items():
            environment, sizes[part] = self._live.take((tag, part))
            if environment is not None:
                snapshot.live[part] = environment
        outcome = call(plan, snapshot, self._codec, self._max_result_bytes)
        sizes.update({part: len(blob) for part, blob in snapshot.blobs.items()})
        sizes.update({part: len(blob) for part, (_, blob) in outcome.blobs.items()})
        for part, environment in snapshot.live.items():  # those that the call hasn't used
            self._live.put((head["held"][part], part), environment, sizes[part])
        for part, environment in outcome.live.items():
            self._live.put((head["tag"], part), environment, sizes[part])
        return _outcome(outcome)

    def _snapshot(self, request: Frame) -> Snapshot:
        """Get the environments of a request: the parts that came with it, and all others when they are looked at."""
        given = dict(zip(request.head["given"], request.pieces, strict=True))
        return Snapshot(dict.fromkeys(request.head["parts"], ""), _Parts(self._channel, given))

    def _make_runtime(self, toolpacks: tuple[str, ...], offered: frozenset[str] | None) -> SessionRuntime:
        return SessionRuntime(self._codec.catalog.functions(toolpacks), timeout_seconds=0, offered=offered)


class _Parts(dict[str, bytes]):
    """The bytes of parts; those that aren't here are asked for."""

    def __init__(self, channel: Channel, given: Mapping[str, bytes]) -> None:
        super().__init__(given)
        self._channel = channel

    def __missing__(self, part: str) -> bytes:
        self._channel.send({"need": part})
        (blob,) = self._channel.receive().pieces
        self[part] = blob
        return blob


class _Live:
    """The environments that were used last, as many as fit; at least those of the last call."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, str], tuple[Any, int]] = OrderedDict()
        self._size = 0

    def take(self, key: tuple[int, str]) -> tuple[Any, int]:
        """Take an environment out, with the size of its snapshot; None if it isn't here any more."""
        environment, size = self._kept.pop(key, (None, 0))
        self._size -= size
        return environment, size

    def put(self, key: tuple[int, str], environment: Any, size: int) -> None:
        """Keep an environment whose snapshot has this size."""
        self._kept[key] = environment, size
        self._size += size
        while self._size > LIVE_BYTES and next(iter(self._kept))[0] != key[0]:
            self._size -= self._kept.popitem(last=False)[1][1]


def _pin(request: Frame) -> Pin | None:
    """Get what is pinned while a request is done."""
    pin = request.head.get("pin")
    return None if pin is None else Pin(**pin)


def _built(built: Built) -> Answer:
    return {"parts": [*built]}, [blob for _, blob in built.values()]


def _outcome(outcome: Outcome) -> Answer:
    head = {
        "error": outcome.error,
        "failure": outcome.failure,
        "errors": outcome.errors,
        "similar": outcome.similar,
        "compared_seconds": outcome.compared_seconds,
        "broken": outcome.broken,
        "traceback": outcome.traceback,
        "blobs": [*outcome.blobs],
        "live": [*outcome.live],
        "entries": outcome.entries,
    }
    return head, [outcome.result or b"", *(blob for _, blob in outcome.blobs.values())]
