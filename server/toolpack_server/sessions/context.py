"""Services that operations on sessions share: the store, the environments and the functions.

The server creates one context when it starts. Features extend it before the first request.
"""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from toolpack_server.base.errors import ClassesChangedError, StateDamagedError, shown
from toolpack_server.base.logger import log
from toolpack_server.base.settings import Settings
from toolpack_server.base.thread_labels import labelled
from toolpack_server.execution.codec import Codec
from toolpack_server.execution.initial import InitialEnvironments
from toolpack_server.execution.operations import BuildEnvironment, ParseEnvironment
from toolpack_server.execution.policy import ExecutionPolicy
from toolpack_server.execution.read_only_checks import ReadOnlyChecks
from toolpack_server.execution.runner import Runner, RunnerOperation
from toolpack_server.execution.runtime import SessionRuntime
from toolpack_server.observability.running import RunningFunctions
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.registration import location_of
from toolpack_server.protocol.parameters import SessionRequest
from toolpack_server.sessions.addresses import Addresses
from toolpack_server.sessions.hooks import CreationHook, SessionFilter, SessionHook
from toolpack_server.sessions.identity import Identities
from toolpack_server.sessions.paths import Paths
from toolpack_server.sessions.quotas import Quotas
from toolpack_server.sessions.recipes import FORK, Recipe, details_of
from toolpack_server.sessions.record_kinds import RecordKinds
from toolpack_server.sessions.records import Records
from toolpack_server.sessions.views import SessionViews
from toolpack_server.stores.base import SessionStore, StoredSession

T = TypeVar("T")


INITIAL_BYTES = 64 * 2**20
RUNTIMES = 256


class SessionContext:
    """Shared services of operations on sessions.

    Args:
        tracebacks: Whether the outcome of a function that raised an exception contains the traceback.
    """

    def __init__(
        self,
        catalog: Catalog,
        store: SessionStore,
        settings: Settings,
        key: bytes,
        codec: Codec,
        runner: Runner,
        *,
        running: RunningFunctions,
        tracebacks: bool = False,
    ) -> None:
        self.catalog = catalog
        self.store = store
        self.settings = settings
        self.running = running
        self._tracebacks = tracebacks
        self.read_only_checks = ReadOnlyChecks(always=settings.verify_read_only)
        self.records = Records(key)
        self.addresses = Addresses()
        self.identities = Identities(key, self.addresses)
        self.session_views = SessionViews(self.addresses, self.identities)
        self.record_kinds = RecordKinds()
        self.paths = Paths(store, self.records, self.identities, self.record_kinds)
        self.codec = codec
        self.runner = runner
        self.quotas = Quotas(store, settings)
        self.creation_hooks: list[CreationHook] = []
        self.session_request: type[SessionRequest] = SessionRequest  # class of requests with the features' parameters
        self.filters: list[SessionFilter] = []
        self.operation_hooks: list[SessionHook] = []
        self.initial = InitialEnvironments(
            lambda toolpack, options: self.run(BuildEnvironment(toolpack, options)), INITIAL_BYTES
        )
        self.functions = catalog.spellings()
        # The cache is limited, because clients choose the toolpacks and their order, so the number of combinations is
        # unlimited.
        self.runtime = lru_cache(maxsize=RUNTIMES)(self._runtime)

    def _runtime(self, toolpacks: tuple[str, ...], offered: frozenset[str] | None = None) -> SessionRuntime:
        """Return the functions that a session with these toolpacks offers.

        Args:
            toolpacks: Names of the toolpacks.
            offered: Names of the functions to include. None includes all functions.

        Raises:
            ClassesChangedError: One of the toolpacks is no longer loaded.
        """
        missing = [name for name in toolpacks if name not in self.catalog.toolpacks]
        if missing:
            raise ClassesChangedError(
                f"The session's toolpack {missing[0]!r} is not loaded any more: load it, or close the session."
            )
        return SessionRuntime(
            self.catalog.functions(toolpacks),
            self.settings.timeout_seconds,
            self.read_only_checks,
            tracebacks=self._tracebacks,
            offered=offered,
        )

    def mark_not_read_only(self, toolpack: str, function: str, change: str) -> None:
        """Log that a function is falsely declared read-only, and treat it as a changing function from now on.

        Args:
            toolpack: The toolpack.
            function: The function.
            change: Description of the change, for the log.
        """
        if self.read_only_checks.mark_not_read_only(toolpack, function):
            self.runtime.cache_clear()
            log.warning(
                "%s: it promised read_only=True but changed %s. The server now treats it as a changing function: "
                "correct it, or remove read_only=True.",
                location_of(self.catalog.toolpacks[toolpack].functions[function].function),
                change,
            )

    @cached_property
    def _supported(self) -> frozenset[str]:
        """Names of all feature data that this server supports in a session's recipe and details."""
        return frozenset({FORK}).union(*(hook.option_names for hook in self.creation_hooks))

    def unknown(self, *feature_options: Mapping[str, Any]) -> str | None:
        """Return the first name in features' data that no feature of this server supports, or None if there is none.

        Args:
            feature_options: Features' data from the session's recipe or details, by name.
        """
        return next((shown(name) for data in feature_options for name in data if name not in self._supported), None)

    def check_session(self, session: StoredSession) -> None:
        """Check that the data that a session was created from is unchanged, and that this server supports all of it.

        Raises:
            StateDamagedError: The data was changed, or was created with another secret key, by a newer version of the
                server, or with a feature that this server lacks.
        """
        self.identities.check(session)
        unknown = self.unknown(Recipe.of(session).feature_options, details_of(session))
        if unknown is not None:
            raise StateDamagedError(
                f"The session has {unknown!r}, which this server doesn't know: use the version of the server that "
                "created the session, or a newer one, with the same features."
            )

    def run(self, operation: RunnerOperation[T]) -> T:
        """Run code of a toolpack that isn't a function. The error of a missed deadline names the code."""
        with labelled(operation.who):
            return self.runner.run(operation)

    def initial_conditions(self, details: Mapping[str, Any]) -> ExecutionPolicy | None:
        """Return the execution policy for building a session's initial environments, or None.

        Args:
            details: The session's details.
        """
        policies = (hook.conditions(details) for hook in self.creation_hooks) if details else ()
        return next(filter(None, policies), None)

    def initial_parts(
        self,
        toolpacks: tuple[str, ...],
        options: Mapping[str, Any],
        environment: Mapping[str, Any],
        conditions: ExecutionPolicy | None = None,
    ) -> tuple[dict[str, str], dict[str, bytes]]:
        """Return the blob ids by part, and the blobs by id, of a session's initial environments.

        Args:
            toolpacks: Names of the toolpacks.
            options: Options of the request, by toolpack.
            environment: Environments of the request, by toolpack.
            conditions: The execution policy. With a policy, the environments are built anew. Without a policy, they can
                come from the cache.

        Raises:
            InvalidParamsError: The options or the environments of the request are invalid.
        """
        parts, blobs = {}, {}
        for toolpack in toolpacks:
            if toolpack in environment:
                built = self.run(ParseEnvironment(toolpack, environment[toolpack], conditions))
            elif conditions is not None:
                built = self.run(BuildEnvironment(toolpack, options.get(toolpack, {}), conditions))
            else:
                built = self.initial.get(toolpack, options.get(toolpack, {}))
            for part, (blob_id, blob) in built.items():
                parts[part], blobs[blob_id] = blob_id, blob
        return parts, blobs
