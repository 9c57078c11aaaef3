"""Observer that counts and logs ended calls.

Calls that end in one iteration of the event loop are logged together in the next iteration, so no response waits for
the log.
"""

import asyncio
import time
from collections.abc import Callable

from toolpack_server.base.settings import Settings
from toolpack_server.execution.call import Outcome
from toolpack_server.execution.failure import Failure
from toolpack_server.observability.log import CallLog, EndedCall
from toolpack_server.observability.metrics import Metrics
from toolpack_server.observability.request_ids import request_id
from toolpack_server.observability.trace_context import trace_context
from toolpack_server.protocol.senders import CLIENT
from toolpack_server.sessions.calls import CallRequest

OK, REFUSED = "ok", "refused"
OUTCOMES = [OK, *Failure, REFUSED]


class CallObserver:
    """Counter and logger of calls.

    Args:
        on_call: Callback that receives the request and the outcome of each call that wasn't refused.
    """

    def __init__(
        self, settings: Settings, metrics: Metrics, on_call: Callable[[CallRequest, Outcome], None] | None = None
    ) -> None:
        self._metrics = metrics
        self._log = CallLog(settings.log_calls, level=settings.log_level)
        self._has_tracebacks = settings.log_level == "debug"
        self._on_call = on_call
        self._ended: list[EndedCall] = []  # calls that ended in this iteration of the event loop

    def ended(
        self, session_id: str, owner: str, request: CallRequest, outcome: Outcome | None, seconds: float
    ) -> EndedCall:
        """Schedule the report of an ended call, and return its log entry.

        Args:
            session_id: The session.
            owner: The owner of the session. The log entry contains the owner only for clients' calls.
            request: The call.
            outcome: The outcome. None means that the call was refused.
            seconds: The duration.
        """
        if outcome is None:
            function, name, result = ("", ""), REFUSED, None
        else:
            failure = outcome.failure
            function, name = (outcome.toolpack, outcome.toolpack and outcome.function), failure.why if failure else OK
            result = failure.text if failure else outcome.result
            if self._on_call is not None:
                self._on_call(request, outcome)
        logged_owner = owner if request.by == CLIENT else None
        call = EndedCall(
            *(time.time(), request_id.get(), session_id, logged_owner, request.function, request.sent),
            *(name, result, seconds),
            trace=trace_context.get(),
            counted_as=function,
        )
        if outcome is not None and outcome.failure:
            trace = outcome.failure.traceback if self._has_tracebacks else None
            call = call._replace(traceback=trace, raised_at=outcome.failure.raised_at)
        self._ended.append(call)
        if len(self._ended) == 1:
            asyncio.get_running_loop().call_soon(self._report)
        return call

    def _report(self) -> None:
        """Count and log the calls that have ended since the last report."""
        calls, self._ended = self._ended, []
        for call in calls:
            self._metrics.called(*call.counted_as, call.outcome, call.seconds)
        self._log.write(calls)
