"""A queue of what has ended, and the thread that sends it.

Whoever puts something in never waits. What doesn't fit into the queue, or can't be sent, is lost, and the log
says so at most once a minute. Each wait for the receiver has a limit, also when the server stops. The headers, which
may hold a key, are sent to the receiver that was configured and to no other: redirects aren't followed.
"""

import gzip
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from toolpack_server.base.logger import log
from toolpack_server.features.telemetry.environment import METRICS, TRACES, Destination, number
from toolpack_server.functions.leftovers import SERVER_THREADS

THREAD = "telemetry"
SERVER_THREADS.add(THREAD)
ATTEMPTS = 3
PAUSE_SECONDS = 1.0  # before the second attempt; each further pause is twice as long
QUIET_SECONDS = 60.0  # between two lines in the log
CLOSE_SECONDS = 2.0
SPANS_PER_CALL = 4
BATCH, QUEUE = 4096, 16_384  # spans; each request takes as much of the processor as many calls
MAX_REPLY = 65_536  # bytes
_AGAIN = {429, 502, 503, 504}  # for these the standard wants another attempt


class Sender:
    """Sends items in batches.

    Args:
        encode: Makes a request's body of items.
        measured: Makes the body of a request with all metrics.
    """

    def __init__(
        self,
        targets: dict[str, Destination],
        encode: Callable[[Sequence[Any]], bytes],
        measured: Callable[[], bytes],
    ) -> None:
        self._targets = targets
        self.measures = METRICS in targets
        self._encode = encode
        self._measured = measured
        self._seconds = number("OTEL_BSP_SCHEDULE_DELAY", 5000) / 1000
        self._interval = number("OTEL_METRIC_EXPORT_INTERVAL", 60_000) / 1000
        self._most = max(number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH) // SPANS_PER_CALL, 1)
        self._queue: deque[Any] = deque(
            maxlen=max(number("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE) // SPANS_PER_CALL, self._most)
        )
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._lost = 0
        self._told = float("-inf")
        self._measured_at = time.monotonic()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def put(self, item: Any) -> None:
        """Send something some time; from any thread."""
        queue = self._queue
        if len(queue) == queue.maxlen:
            self._lost += 1
        queue.append(item)
        if self._thread is None:
            self.start()
        if len(queue) >= self._most and not self._wake.is_set():
            self._wake.set()

    def start(self) -> None:
        """Start the thread, unless it runs already: the first call does, as the process may have been forked before."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Send what is left, as far as that is quick."""
        self._closed.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            self._wake.wait(self._seconds)
            self._wake.clear()
            try:
                self._send_all()
            except Exception:
                log.exception("Telemetry could not be sent")
            if self._closed.is_set():
                return

    def _send_all(self) -> None:
        while self._queue:
            items = [self._queue.popleft() for _ in range(min(len(self._queue), self._most))]
            if TRACES in self._targets and not self._post(self._targets[TRACES], self._encode(items)):
                self._lost += len(items)
        now = time.monotonic()
        if self.measures and (self._closed.is_set() or now - self._measured_at >= self._interval):
            self._measured_at = now
            self._post(self._targets[METRICS], self._measured())
        if self._lost and now - self._told >= QUIET_SECONDS:
            log.warning("The spans of %d calls were lost: the receiver of telemetry doesn't keep up.", self._lost)
            self._lost, self._told = 0, now

    def _post(self, target: Destination, body: bytes) -> bool:
        headers = {"Content-Type": "application/x-protobuf", **target.headers}
        if target.gzip:
            body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
        why, opener = "", _opener(target)
        for attempt in range(ATTEMPTS):
            # Its scheme was checked when the server started.
            request = urllib.request.Request(target.url, body, headers)  # noqa: S310
            try:
                with opener.open(request, timeout=target.seconds) as reply:
                    reply.read1(MAX_REPLY)  # what there is: a receiver that trickles is waited for once
                    return True
            except urllib.error.HTTPError as error:
                why = f"status {error.code}"
                error.close()
                if error.code not in _AGAIN:
                    break
            except TimeoutError:
                why = f"no answer within {target.seconds:g} s"
                break  # it may have taken the batch
            except (OSError, ValueError) as error:
                why = str(getattr(error, "reason", error))
            if self._closed.is_set() or attempt == ATTEMPTS - 1:
                break
            self._closed.wait(PAUSE_SECONDS * 2**attempt)
        if time.monotonic() - self._told >= QUIET_SECONDS:
            self._told = time.monotonic()
            log.warning("Telemetry can't be sent to %s: %s.", urlsplit(target.url).hostname, why)
        return False


def _opener(target: Destination) -> urllib.request.OpenerDirector:
    """Get what urllib opens URLs with, but for the handler of redirects: that would send all headers to any host."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=target.tls),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
    ):
        opener.add_handler(handler)
    return opener
