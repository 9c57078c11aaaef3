"""Runner that executes operations in executors.

The runner treats all operations alike. The transport of an operation checks the answers. It also unseals and seals
snapshots in the worker, because executors don't have the key. Strings from an executor are cut before they are logged
or included in an error.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from traceback import format_tb
from typing import Any, Protocol, TypeVar

from toolpack_server.base.errors import CrashedError, InternalError, OverloadedError, shown
from toolpack_server.base.logger import log
from toolpack_server.base.settings import Settings
from toolpack_server.base.terminal import printable
from toolpack_server.execution.codec import Codec
from toolpack_server.execution.policy import ExecutionPolicy
from toolpack_server.execution.runner import RunnerOperation
from toolpack_server.execution.world import ExecutionContext
from toolpack_server.features.executors.calls import TRANSPORTS
from toolpack_server.features.executors.channel import ExecutorGoneError, Frame
from toolpack_server.features.executors.child import ExecutorProcess, Zygote
from toolpack_server.features.executors.executor import Configuration
from toolpack_server.features.executors.pool import Pool
from toolpack_server.features.executors.refusals import MAX_TEXT, read_refusal
from toolpack_server.features.executors.settings import ExecutorsSettings
from toolpack_server.features.executors.transport import Transport, path_of
from toolpack_server.functions.steps import Steps
from toolpack_server.observability.metrics import Metrics
from toolpack_server.observability.tracing import running_trace
from toolpack_server.volumes.volume import Limits

T = TypeVar("T")

ATTEMPTS = 3  # number of executors to try until one of them reads the request
STOPPED = "The processes for toolpacks' code have exited; nothing was changed. Send the call again with its call_id."


class InterruptibleBlock(Protocol):
    def waiting(self, end: Callable[[], None]) -> AbstractContextManager[object]:
        """Return a context manager for a blocking wait. A missed deadline calls `end`; see `engine.interruption`."""


def start_executors(
    settings: Settings,
    codec: Codec,
    metrics: Metrics,
    interruptible: Callable[[], InterruptibleBlock],
    operations: Iterable[type[RunnerOperation[Any]]],
    policies: Iterable[type[ExecutionPolicy]],
) -> "ExecutorRunner":
    """Start the zygote and a first executor, and return the runner.

    Args:
        operations: The operations that executors must support.
        policies: The execution policies that executors must support.

    Raises:
        StartError: The toolpacks can't be loaded, or no executor can be started.
    """
    own = settings.of(ExecutorsSettings)
    own_files = [path for path in (settings.data_dir, settings.tokens_file, *settings.store_url.files) if path]
    configuration = Configuration(
        pack_dirs=[str(folder.resolve()) for folder in settings.pack_dir],
        packs=[*settings.packs],
        preload=True,
        operations=[*map(path_of, operations)],
        policies=[*map(path_of, policies)],
        max_environment_bytes=settings.max_environment_bytes,
        max_result_bytes=settings.max_result_bytes,
        max_answer_bytes=settings.max_session_bytes + settings.max_reply_bytes,
        sandbox=[*own.sandbox],
        hidden=[str(path.resolve()) for path in own_files],
        volumes=[*map(path_of, codec.volumes.kinds.values())] if codec.volumes else [],
        limits=[*Limits.of(settings)],
        scratch_dir=str(settings.scratch_dir.resolve()) if settings.scratch_dir else None,
        scratch_bytes=settings.scratch_bytes // own.max,
        memory_bytes=own.memory_bytes,
    )
    pool = Pool(Zygote(configuration, codec.catalog.inventory()), settings, metrics)
    return ExecutorRunner(ExecutionContext(codec, settings.max_result_bytes), codec, pool, interruptible, own.max)


class ExecutorRunner:
    """Runner that executes each operation in an executor of the pool; see `Runner`."""

    def __init__(
        self,
        context: ExecutionContext,
        codec: Codec,
        pool: Pool,
        interruptible: Callable[[], InterruptibleBlock],
        max_executors: int,
    ) -> None:
        self.capacity = max_executors
        self._context = context
        self._codec = codec
        self._pool = pool
        self._interruptible = interruptible

    def run(self, operation: RunnerOperation[T]) -> T:
        """Run an operation in an executor. If the executor exits before it has read the request, use another executor.

        Raises:
            CrashedError: The executor exited while it ran the operation.
            OverloadedError: No executor has begun the operation, or all executors have exited.
        """
        transport: Transport[T] = TRANSPORTS[type(operation)](operation)
        try:
            for _ in range(ATTEMPTS):
                with self._pool.executor(transport.preferred, clean=not operation.leaves_traces) as child:
                    try:
                        answer = self._answer(child, operation, transport)
                        # An executor that lacks memory or descriptors will probably lack them again, so replace it.
                        overloaded = answer.head.get("refused") == OverloadedError.__name__
                        child.retired = answer.head.get("retire") is not False or "fault" in answer.head or overloaded
                        _raise_refusal(answer)
                        return transport.read(answer, self._context, child.number)
                    except ExecutorGoneError as gone:
                        # If the executor hasn't read the request, the next attempt uses another executor. If the zygote
                        # has also exited (`how` is None), the executor didn't crash because of a function.
                        how = None if gone.unread else child.exit_reason()
                        if how is not None:
                            raise CrashedError(
                                f"{operation.who} ended its process ({how}); nothing has changed."
                            ) from None
                        if not gone.unread:
                            break
                    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:  # a malformed answer
                        child.retired = True
                        log.error(  # noqa: TRY400 - the error's text must be cut
                            "%s made its process unusable: its answer can't be used: %s: %s\n%s",
                            *(operation.who, type(error).__name__, printable(shown(str(error)))),
                            "".join(format_tb(error.__traceback__)),
                        )
                        raise CrashedError(f"{operation.who} made its process unusable; nothing has changed.") from None
        except CrashedError as error:
            return operation.crashed(error)
        raise OverloadedError(STOPPED)

    def _answer(self, child: ExecutorProcess, operation: RunnerOperation[T], transport: Transport[T]) -> Frame:
        """Send a request, supply data that the executor asks for, and return the answer. Log the executor's output."""
        request = transport.write(self._codec, child.number)
        allows = partial(transport.allows, context=self._context)
        trace = running_trace()
        context = {"trace": trace.process_data} if trace is not None and trace.process_data is not None else {}
        try:
            with self._interruptible().waiting(child.kill):
                child.ask({"do": operation.name, **context, **request.head}, request.pieces)
                while True:
                    frame = child.answer(allows)
                    if "need" not in frame.head:
                        if trace is not None and "traced" in frame.head:
                            trace.take(frame.head["traced"])
                        return frame
                    child.ask(*transport.supply(frame.head["need"], self._codec))
        finally:
            printed = child.printed(rest=child.awaits_answer)
            if printed:
                log.info("%s printed:%s", operation.who, printed)

    def steps(self, operation: RunnerOperation[T]) -> Steps[T]:
        """Run an operation as a generator that never yields, because the executor itself awaits coroutines."""
        return self.run(operation)
        yield  # makes this a generator

    def end_unused(self) -> None:
        self._pool.end_unused()

    def close(self) -> None:
        self._pool.close()


def _raise_refusal(answer: Frame) -> None:
    """Raise the error in an answer, if the request was refused or failed because of a bug in the server.

    Return if the answer contains a result.
    """
    head = answer.head
    if "fault" in head:
        rows = str(head["fault"])[:MAX_TEXT].splitlines()
        log.error("A request failed in an executor:%s", "".join(f"\n  {printable(row)}" for row in rows))
        raise InternalError
    if "refused" in head:
        raise read_refusal(head)
