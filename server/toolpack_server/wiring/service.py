"""The whole server but for HTTP: store, toolpacks, sessions, methods, metrics and call log, wired in one place.

The application, the command line and the tests start from here. Importing it has no effect.
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
from toolpack_server.rpc.method import Method, agents_methods, clients_methods
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
from toolpack_server.wiring.installed import described, in_order, load_features
from toolpack_server.wiring.stores import open_store_of

T = TypeVar("T")

MEASURE_SECONDS = 1.0


def all_methods(features: Sequence[type[Feature]]) -> list[type[Method]]:
    """Get the core's methods and those of features, with the parameters and the kinds of records that features add."""
    types = result_types(tuple(features))
    results: dict[type[Method], Any] = {GetTrace: list[all_record_kinds(features).shape]}  # type: ignore[misc] # a type that is known now only
    return [
        method.extend(
            *(feature.parameters[method] for feature in features if method in feature.parameters),
            result=results.get(method) or types.of(method.declared.result),
        )
        for method in (*METHODS, *(method for feature in features for method in feature.methods))
    ]


@cache
def result_types(features: tuple[type[Feature], ...]) -> ExtendedTypes:
    return ExtendedTypes(feature.results for feature in features)


def openrpc(methods: Sequence[type[Method]], features: Sequence[type[Feature]]) -> dict[str, Any]:
    document = openrpc_document(methods, filter(None, (feature.about for feature in features)))
    return document | {"x-features": described(features)}


def all_record_kinds(features: Sequence[type[Feature]]) -> RecordKinds:
    kinds = RecordKinds()
    for each in [(CallKind, ResetKind), *(feature.record_kinds for feature in features)]:
        for kind in each:
            if kind.name in kinds and not issubclass(kind, type(kinds[kind.name])):
                raise StartError(
                    f"Two kinds of records are called {kind.name!r}: derive {kind.__qualname__} from "
                    f"{type(kinds[kind.name]).__qualname__} to take its place, or give it another name."
                )
            kinds[kind.name] = kind()
    types = result_types(tuple(features))
    for made in kinds.values():
        made.shape = types.of(made.shape)
    return kinds


def create_metrics(inventory: Inventory, features: Sequence[type[Feature]], rows: int = 1) -> Metrics:
    """Create the metrics of so many workers that have these toolpacks and features."""
    families = [feature.metrics for feature in features]
    return Metrics(inventory.functions, OUTCOMES, rows, families)


def isolation(settings: Settings, features: Sequence[type[Feature]]) -> str | None:
    """Get the import path of what runs toolpacks' code as `TOOLPACK_ISOLATION` wants it; None for threads.

    Raises:
        SettingsError: No feature can run it so.
    """
    found = {name: path for feature in features for name, path in feature.isolations.items()}
    if settings.isolation not in {THREAD, *found}:
        raise SettingsError(
            f"TOOLPACK_ISOLATION={settings.isolation} isn't a part of this server: use "
            f"{' or '.join((THREAD, *sorted(found)))}."
        )
    return found.get(settings.isolation)


def check_settings(settings: Settings, features: Sequence[type[Feature]]) -> None:
    """Check what the settings ask of features, and of this machine.

    Raises:
        StartError: They ask for what there isn't.
    """
    for feature in features:
        if feature.settings is not None:
            settings.of(feature.settings)
        for check in feature.checks:
            check(settings)
    isolation(settings, features)


def create_runner(settings: Settings, codec: Codec, metrics: Metrics, features: Sequence[type[Feature]]) -> Runner:
    """Create what runs toolpacks' code.

    Raises:
        StartError: It can't run as the settings want it.
    """
    check_settings(settings, features)
    start = isolation(settings, features)
    if start is None:
        return LocalRunner(ExecutionContext(codec, settings.max_result_bytes, here))
    operations = [*OPERATIONS, *(operation for feature in features for operation in feature.operations)]
    conditions = [each for feature in features for each in feature.conditions]
    runner: Runner = resolve_name(start)(settings, codec, metrics, interruptible, operations, conditions)
    return runner


def create_volumes(settings: Settings, features: Sequence[type[Feature]] | None = None) -> VolumeContext:
    """Create what the volumes of features need in this process.

    Args:
        features: Default: what is installed, as the settings choose.
    """
    features = load_features(settings.features) if features is None else features
    kinds = VolumeKinds(kind for feature in features for kind in feature.volumes)
    return VolumeContext(kinds, Scratch.of(settings), Limits.of(settings))


class Service:
    """A server that takes bytes of JSON-RPC and answers with bytes; what isn't given is made as the settings say.

    Args:
        on_call: Called with each call and its outcome, which then has the traceback of a function that raised.
        features: What it has beyond the core; default: what is installed, as the settings choose.

    Attributes:
        methods: All methods, those of agents' addresses too.
        rpc: Answers the requests of `/rpc`.
        scratch: Where the working copies of volumes lie.
        agents: Answers the requests of agents' addresses.
        features: What it has beyond the core, in the order of loading.

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
        # Its library takes a sixth of a command's start; commands that only ask a server need nothing of it.
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
        """Make what a feature declares, and add it."""
        context, addresses = self.context, self.context.addresses
        context.creation_hooks += [make(context) for make in feature.creation_hooks]
        context.filters += [make(context) for make in feature.filters]
        addresses.paths |= feature.address_paths
        if feature.named_addresses is not None:
            addresses.named = feature.named_addresses()
        hooks = [make(context) for make in feature.operation_hooks]
        context.operation_hooks += hooks
        watchers = [kind() for kind in feature.watchers]
        self.sessions.watchers += watchers
        self._features |= {type(each): each for each in (*hooks, *watchers)}
        for make in feature.services:
            service = make(self)
            self._features[type(service)] = service
        addresses.hooks += [make(self) for make in feature.address_hooks]
        addresses.tools += [make(self) for make in feature.address_tools]
        if feature.tracer is not None:
            self.sessions.tracer = feature.tracer(self)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Do the regular work of a server; at the end let calls finish, and close the store."""
        regular = [asyncio.create_task(work) for work in (self.sessions.sweep(), self._measure(), self._tidy())]
        try:
            yield
        finally:
            for task in regular:
                task.cancel()
            await self.sessions.drain()
            if self.sessions.tracer is not None:
                await asyncio.to_thread(self.sessions.tracer.close)
            self._store.close()
            self.runner.close()
            self.scratch.close()

    def is_unfit(self) -> bool:
        """Whether this process holds so many stuck threads that it should be replaced."""
        return self.sessions.queues.threads.stuck_threads() > self.settings.max_stuck_threads

    def document(self) -> Fragment:
        """Get the OpenRPC document, made when it is first asked for."""
        if self._document is None:
            self._document = Fragment(dumps(openrpc(self.methods, self.features)))
        return self._document

    def feature(self, kind: type[T]) -> T:
        made: T = self._features[kind]
        return made

    async def agent(self, key: str) -> Caller:
        """Get the caller that an agent's key stands for.

        Raises:
            SessionNotFoundError: It opens no session.
        """
        session_id, owner, name = await self.sessions.agent_session(key)
        return Caller(owner, session_id, address=name)

    async def invoke(self, caller: Caller, method: str, params: Mapping[str, Any]) -> Any:
        rpc = self.rpc if caller.session_id is None else self.agents
        return await rpc.invoke(caller, method, params)

    async def request(self, caller: Caller, method: str, params: Mapping[str, Any]) -> Any:
        try:
            return loads(dumps(await self.invoke(caller, method, loads(dumps(params)))))
        except REFUSALS as error:
            raise ReplyError(*describe(error)) from None

    async def _tidy(self) -> None:
        """Discard the databases and files of sessions that have ended, or were forgotten."""
        while True:
            if self.scratch.has_left:
                with contextlib.suppress(InternalError, RequestError):  # the next round does it
                    await self.sessions.compute(self.scratch.tidy, "", "tidy")
            await asyncio.sleep(MEASURE_SECONDS)

    async def _measure(self) -> None:
        while True:
            self.metrics.measured(*self.sessions.load(), *self.sessions.queues.threads.waiting_calls())
            self.runner.end_unused()
            await asyncio.sleep(MEASURE_SECONDS)
