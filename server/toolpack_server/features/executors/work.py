"""Request handler of an executor: runs the requested operation and builds the answer.

The zygote's configuration names the supported operations. In an executor, operations read and write bytes without a
keyed hash, because an executor has no key.
"""

import traceback
from collections.abc import Iterable
from contextvars import Context
from functools import partial
from pkgutil import resolve_name
from typing import Any

from toolpack_server.base.errors import CallError, RequestError
from toolpack_server.execution.codec import PlainCodec
from toolpack_server.execution.runner import RunnerOperation
from toolpack_server.execution.world import ExecutionContext
from toolpack_server.features.executors.calls import TRANSPORTS
from toolpack_server.features.executors.channel import Channel, Frame
from toolpack_server.features.executors.refusals import write_refusal


class RequestHandler:
    """Handles requests in an executor. Operations use the channel to ask for data that a request doesn't contain."""

    def __init__(
        self,
        channel: Channel,
        codec: PlainCodec,
        operations: Iterable[type[RunnerOperation[Any]]],
        max_result_bytes: int,
    ) -> None:
        self._channel = channel
        context = ExecutionContext(codec, max_result_bytes)
        self._operations = {kind.name: TRANSPORTS[kind].make_handler(kind, context, self._ask) for kind in operations}

    def do(self, request: Frame) -> Frame:
        """Run the requested operation in a new context, and return the answer.

        If the worker traces the request, `trace["by"]` names the function that runs the operation and records its
        spans; the answer then carries the spans to the worker.
        """
        trace = request.head.get("trace")
        if trace is None:
            return Context().run(self._do, request)
        answer, spans = Context().run(resolve_name(trace["by"]), trace, partial(self._do, request))
        return Frame({**answer.head, "traced": spans}, answer.pieces) if spans else answer

    def _do(self, request: Frame) -> Frame:
        """Run the requested operation. Errors become answers, because the executor must stay usable."""
        try:
            return self._operations[request.head["do"]](request)
        except (RequestError, CallError) as error:
            return refused(error)
        except Exception:  # noqa: BLE001 - a bug of the server; the worker logs it
            return Frame({"fault": traceback.format_exc()}, [])

    def _ask(self, need: Any) -> Frame:
        self._channel.send({"need": need})
        return self._channel.receive()


def refused(error: CallError | RequestError) -> Frame:
    """Return the answer for a refused request."""
    return Frame(write_refusal(error), [])
