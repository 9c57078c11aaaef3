"""The whole server without HTTP: store, toolpacks, sessions, methods, metrics and call log.

The application, the command line and the tests create a `Service`. Importing this module has no side effects.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cache
from pkgutil import resolve_name
from typing import Any, TypeVar

from toolpack_server.base.errors import InternalError, ReplyError, RequestError, SettingsError, StartError
from toolpack_server.base.secret_key import secret_key
from toolpack_server.base.settings import THREAD, Settings
from toolpack_server.engine.pool_thread import here, interruptible
from toolpack_server.execution.call import Outcome
from toolpack_server.execution.codec import Codec
from toolpack_server.execution.operations import OPERATIONS
from toolpack_server.execution.runner import LocalRunner, Runner
from toolpack_server.execution.world import ExecutionContext
from toolpack_server.jsonio.strict import Fragment, dumps, loads
from toolpack_server.observability.metrics import Metrics
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.inventory import Inventory
from toolpack_server.packs.loading import catalog_of
from toolpack_server.protocol.extended import ExtendedTypes
from toolpack_server.protocol.results import Session
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.codes import REFUSALS, describe
from toolpack_server.rpc.in_flight import BytesInFlight
from toolpack_server.rpc.listings import Listings
from toolpack_server.rpc.method import Method, Prepare, agents_methods, clients_methods
from toolpack_server.rpc.methods import METHODS, CreateSession, GetTrace
from toolpack_server.rpc.openrpc import openrpc_document
from toolpack_server.rpc.parsing import Parser
from toolpack_server.sessions.call_observer import OUTCOMES, CallObserver
from toolpack_server.sessions.calls import CallKind, CallRequest
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.manager import SessionManager
from toolpack_server.sessions.record_kinds import RecordKinds
from toolpack_server.sessions.resets import ResetKind
from toolpack_server.stores.base import SessionStore
from toolpack_server.volumes.scratch import Scratch
from toolpack_server.volumes.volume import Limits, VolumeContext, VolumeKinds
from toolpack_server.wiring.feature import Feature
from toolpack_server.wiring.installed import describe_features, in_order, load_features
from toolpack_server.wiring.stores import open_store_of

T = TypeVar("T")

MEASURE_INTERVAL_SECONDS = 1.0


def all_methods(features: Sequence[type[Feature]]) -> list[type[Method]]:
    """Return the methods of the core and of features, with the parameters and result fields that features add."""
    types = result_types(tuple(features))
    results: dict[type[Method], Any] = {GetTrace: list[all_record_kinds(features).shape]}  # type: ignore[misc] # computed
    return [
        method.extend(
            *(feature.parameters[method] for feature in features if method in feature.parameters),
            result=results.get(method) or types.of(method.declared.result),
        )
        for method in (*METHODS, *(method for feature in features for method in feature.methods))
    ]


@cache
def result_types(features: tuple[type[Feature], ...]) -> ExtendedTypes:
    """Return the result types with the fields that features add."""
    return ExtendedTypes(feature.results for feature in features)


def openrpc(methods: Sequence[type[Method]], features: Sequence[type[Feature]]) -> dict[str, Any]:
    """Return the OpenRPC document, with the features in `x-features`."""
    document = openrpc_document(methods, filter(None, (feature.about for feature in features)))
    return document | {"x-features": describe_features(features)}


def all_record_kinds(features: Sequence[type[Feature]]) -> RecordKinds:
    """Return the record kinds of the core and of features.

    Raises:
        StartError: A kind has the name of another kind, but doesn't derive from its class.
    """
    kinds = RecordKinds()
    for classes in [(CallKind, ResetKind), *(feature.record_kinds for feature in features)]:
        for kind in classes:
            if kind.name in kinds and not issubclass(kind, type(kinds[kind.name])):
                raise StartError(
                    f"Two kinds of records are named {kind.name!r}: derive {kind.__qualname__} from "
                    f"{type(kinds[kind.name]).__qualname__} to replace it, or give it another name."
                )
            kinds[kind.name] = kind()
    types = result_types(tuple(features))
    for record_kind in kinds.values():
        record_kind.shape = types.of(record_kind.shape)
    return kinds


def create_metrics(inventory: Inventory, features: Sequence[type[Feature]], rows: int = 1) -> Metrics:
    """Create the metrics of a server with these toolpacks and features. Each worker has one row."""
    families = [feature.metrics for feature in features]
    return Metrics(inventory.functions, OUTCOMES, rows, families)


def runner_path(settings: Settings, features: Sequence[type[Feature]]) -> str | None:
    """Return the import path of the function that starts the runner of `TOOLPACK_ISOLATION`, or None for threads.

    Raises:
        SettingsError: No feature has this kind of isolation.
    """
    paths = {name: path for feature in features for name, path in feature.isolations.items()}
    if settings.isolation not in {THREAD, *paths}:
        raise SettingsError(
            f"TOOLPACK_ISOLATION={settings.isolation} isn't available in this server: use "
            f"{' or '.join((THREAD, *sorted(paths)))}."
        )
    return paths.get(settings.isolation)


def check_settings(settings: Settings, features: Sequence[type[Feature]]) -> None:
    """Check that the features and this host support the settings.

    Raises:
        StartError: A setting isn't supported.
    """
    for feature in features:
        if feature.settings is not None:
            settings.of(feature.settings)
        for check in feature.checks:
            check(settings)
    runner_path(settings, features)


def create_runner(settings: Settings, codec: Codec, metrics: Metrics, features: Sequence[type[Feature]]) -> Runner:
    """Create the runner of toolpacks' code.

    Raises:
        StartError: A setting isn't supported.
    """
    check_settings(settings, features)
    path = runner_path(settings, features)
    if path is None:
        return LocalRunner(ExecutionContext(codec, settings.max_result_bytes, here))
    operations = [*OPERATIONS, *(operation for feature in features for operation in feature.operations)]
    conditions = [policy for feature in features for policy in feature.conditions]
    runner: Runner = resolve_name(path)(settings, codec, metrics, interruptible, operations, conditions)
    return runner


def create_volumes(settings: Settings, features: Sequence[type[Feature]] | None = None) -> VolumeContext:
    """Create the context of volumes in this process: their kinds, working copies and limits.

    Args:
        features: Default: the installed features that the settings choose.
    """
    features = load_features(settings.features) if features is None else features
    kinds = VolumeKinds(kind for feature in features for kind in feature.volumes)
    return VolumeContext(kinds, Scratch.of(settings), Limits.of(settings))


class Service:
    """Server that accepts JSON-RPC requests as bytes and returns the responses as bytes.

    Its constructor creates the arguments that are omitted, such as the store, from the settings.

    Args:
        on_call: Called with each call and its outcome. With this argument, an outcome includes the traceback if the
            function raised an exception.
        features: Features to load. Default: the installed features that the settings choose.

    Attributes:
        methods: All methods, including the methods that only agents' addresses offer.
        rpc: Dispatcher of `/rpc`.
        scratch: Directory of the working copies of volumes.
        agents: Dispatcher of agents' addresses.
        features: Features in loading order.

    Raises:
        StartError: A toolpack, the store or a setting can't be used.
    """

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog | None = None,
        *,
        store: SessionStore | None = None,
        key: bytes | None = None,
        metrics: Metrics | None = None,
        on_call: Callable[[CallRequest, Outcome], None] | None = None,
        features: Sequence[type[Feature]] | None = None,
    ) -> None:
        # Importing jsonrpcserver takes a sixth of a command's start time, and not all commands need it.
        from toolpack_server.rpc.jsonrpc import JsonRpc  # noqa: PLC0415

        self.settings = settings
        catalog = catalog or catalog_of(settings)
        self.key = key = key or secret_key(settings)
        self.features = loaded = load_features(settings.features) if features is None else in_order(features)
        self.metrics = metrics or create_metrics(catalog.inventory(), loaded)
        self._store = store or open_store_of(settings, loaded)
        volumes = create_volumes(settings, loaded)
        self.scratch = volumes.scratch
        self.codec = Codec(catalog, key, settings.max_environment_bytes, volumes)
        self.runner = create_runner(settings, self.codec, self.metrics, loaded)
        self.context = SessionContext(
            catalog,
            self._store,
            settings,
            key,
            self.codec,
            self.runner,
            running=self.metrics.running,
            tracebacks=settings.log_level == "debug" or on_call is not None,
        )
        observer = CallObserver(settings, self.metrics, on_call)
        self.sessions = SessionManager(self.context, observer, self.metrics.committed)
        self.parser = Parser(settings, self.sessions.compute)
        self.in_flight = BytesInFlight(settings)
        self.methods = all_methods(loaded)
        self.listings = Listings(self.sessions)
        self._features: dict[type, Any] = {}
        self.context.session_request = next(each for each in self.methods if issubclass(each, CreateSession))
        self.context.session_views.shape = result_types(tuple(loaded)).of(Session)
        self.context.record_kinds |= all_record_kinds(loaded)
        for feature in loaded:
            self._add(feature)
        self.rpc = JsonRpc(clients_methods(self.methods), self, self.parser)
        self.agents = JsonRpc(agents_methods(self.methods), self, self.parser)
        self._document: Fragment | None = None

    def _add(self, feature: type[Feature]) -> None:
        """Create and register the objects that a feature declares."""
        context, addresses = self.context, self.context.addresses
        context.creation_hooks += [create(context) for create in feature.creation_hooks]
        context.filters += [create(context) for create in feature.filters]
        addresses.paths |= feature.address_paths
        if feature.named_addresses is not None:
            addresses.named = feature.named_addresses()
        hooks = [create(context) for create in feature.operation_hooks]
        context.operation_hooks += hooks
        watchers = [kind() for kind in feature.watchers]
        self.sessions.watchers += watchers
        self._features |= {type(service): service for service in (*hooks, *watchers)}
        for create in feature.services:
            service = create(self)
            self._features[type(service)] = service
        addresses.hooks += [create(self) for create in feature.address_hooks]
        addresses.tools += [create(self) for create in feature.address_tools]
        if feature.tracer is not None:
            self.sessions.tracer = feature.tracer(self)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the periodic work of a server during a block. At the end, wait for running calls and close the store."""
        periodic = [asyncio.create_task(work) for work in (self.sessions.sweep(), self._measure(), self._tidy())]
        try:
            yield
        finally:
            for task in periodic:
                task.cancel()
            await self.sessions.drain()  # first, because running calls use all objects that are closed below
            if self.sessions.tracer is not None:
                await asyncio.to_thread(self.sessions.tracer.close)
            self._store.close()
            self.runner.close()
            self.scratch.close()

    def is_unfit(self) -> bool:
        """Return whether this process has so many stuck threads that the supervisor should replace it."""
        return self.sessions.queues.threads.stuck_threads() > self.settings.max_stuck_threads

    def document(self) -> Fragment:
        """Return the OpenRPC document, which the first call creates."""
        if self._document is None:
            self._document = Fragment(dumps(openrpc(self.methods, self.features)))
        return self._document

    def feature(self, kind: type[T]) -> T:
        """Return a feature's object by its class. Raise `KeyError` if its feature isn't loaded."""
        service: T = self._features[kind]
        return service

    async def agent(self, key: str) -> Caller:
        """Return the caller with this agent key.

        Raises:
            SessionNotFoundError: No session has the key.
        """
        session_id, owner, name = await self.sessions.agent_session(key)
        return Caller(owner, session_id, address=name)

    async def invoke(
        self, caller: Caller, method: str, params: Mapping[str, Any], prepare: Prepare | None = None
    ) -> Any:
        """Call a method as a client, or as the agent if the caller has a session. Return its result.

        Args:
            prepare: Changes the validated request before the method handles it. None: the request stays unchanged.

        Raises:
            RequestError: The method refuses the request.
        """
        rpc = self.rpc if caller.session_id is None else self.agents
        return await rpc.invoke(caller, method, params, prepare)

    async def request(self, caller: Caller, method: str, params: Mapping[str, Any]) -> Any:
        """Do what `invoke` does, but convert parameters and result to JSON values, as a request over HTTP does.

        Raises:
            ReplyError: The method refuses the request.
        """
        try:
            return loads(dumps(await self.invoke(caller, method, loads(dumps(params)))))
        except REFUSALS as error:
            raise ReplyError(*describe(error)) from None

    async def _tidy(self) -> None:
        """Delete the working copies of sessions that ended or left the cache, at intervals."""
        while True:
            if self.scratch.has_unreferenced:
                with contextlib.suppress(InternalError, RequestError):  # the next iteration retries
                    await self.sessions.compute(self.scratch.tidy, "", "tidy")
            await asyncio.sleep(MEASURE_INTERVAL_SECONDS)

    async def _measure(self) -> None:
        """Update the load metrics, and terminate unused executors, at intervals."""
        while True:
            self.metrics.measured(*self.sessions.load(), *self.sessions.queues.threads.waiting_calls())
            self.runner.end_unused()
            await asyncio.sleep(MEASURE_INTERVAL_SECONDS)
