"""Base class of features, which extend the server.

The core doesn't name any feature. Installed distributions register their features (see `installed.py`). A feature adds
what its class attributes declare, and a server without the feature lacks only these additions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from toolpack_server.base.settings import FeatureSettings, Settings
from toolpack_server.execution.policy import ExecutionPolicy
from toolpack_server.execution.runner import RunnerOperation
from toolpack_server.observability.metrics import MetricFamily
from toolpack_server.observability.tracing import Tracer
from toolpack_server.packs.inventory import Inventory
from toolpack_server.protocol.parameters import Parameters
from toolpack_server.rpc.method import App, Method
from toolpack_server.sessions.addresses import AddressHook, AddressTool, NamedAddresses
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.hooks import CreationHook, SessionFilter, Watcher
from toolpack_server.sessions.operation import OperationHook
from toolpack_server.sessions.record_kinds import RecordKind
from toolpack_server.stores.base import SessionStore
from toolpack_server.volumes.volume import Volume


class Feature:
    """Declaration of a feature. The server uses the class itself and never creates an instance.

    `Service` creates the declared objects and registers them. Creating them has no other effect on the server.

    Attributes:
        name: Name of the feature and of its entry point, a word in lower case.
        needs: Names of required features. They are loaded before this one.
        after: Names of optional features. Those that are installed are loaded before this one. Creation hooks run in
            loading order. Operation hooks also run in that order, from the outside in.
        settings: Settings class. The variables begin with `TOOLPACK_` and the feature's name. `Settings.of` returns an
            instance.
        metrics: Metrics that `/metrics` shows.
        services: Functions that create the feature's objects when the server starts. `App.feature` finds such an object
            by its class.
        methods: JSON-RPC methods.
        about: Sentence for the description in the OpenRPC document.
        parameters: Additional parameters, by the core method that they extend.
        results: Additional fields of results: a `TypedDict`, by the result type that it extends, such as `Session`. A
            field of `Session` shows the value that a creation hook stored under the same name.
        record_kinds: Kinds of records. A kind replaces another kind of the same name if it derives from its class.
        creation_hooks: Functions that create hooks for new sessions.
        operation_hooks: Functions that create hooks for operations on sessions.
        filters: Functions that create filters for lists of sessions.
        watchers: Classes that are notified of events in sessions, on the event loop. `App.feature` also returns their
            instances.
        named_addresses: Class that defines the addresses of sessions besides the agent's. Only one feature can declare
            it.
        address_hooks: Functions that create hooks for the addresses of sessions. A hook sets an address's functions,
            call limit and prompt, and how functions appear there.
        address_tools: Functions that create tools which an address offers besides functions, to agents that use MCP.
        address_paths: Additional paths of an address, by the field of results that shows the path. `{key}` is replaced
            by the key of the address.
        tracer: Function that creates a call tracer, or returns None if tracing is off. Only one feature can declare it.
        routes: Additional HTTP endpoints: import paths of subclasses of `web.endpoints.Endpoint`, by path. A path that
            ends with `/{key}` belongs to agents' addresses. Two features can declare the same path if they declare the
            same endpoint.
        cookies: Names of cookies that the feature's clients send, each with allowed paths of other features. A request
            with such a cookie reaches only these paths and the feature's own, because a model might have chosen the
            request's path.
        views: Pages of the console, by the word after the `#` of their URL. The value is `package:path` of an ES module
            that exports `open(place, ids, query, signal)`. Scripts, styles and pictures in its folder are served under
            `/console/features/` and the feature's name.
        operations: Operations on toolpacks' code that the feature runs in the runner.
        conditions: Execution policies that the feature applies to toolpacks' code, such as a pinned clock.
        checks: Functions that check the settings before the server starts. For a wrong setting they raise
            `SettingsError`.
        banner: Functions that return lines for the banner of `serve`. They get the server's URL, the settings and the
            inventory of toolpacks.
        before_serving: Functions that are called with the settings before the server's processes start.
        isolations: Alternatives to running toolpacks' code in threads: import paths of functions that start a `Runner`,
            by the value of `TOOLPACK_ISOLATION`. `service.create_runner` calls them.
        volumes: Kinds of volumes: fields of an environment, such as databases, for which only changes are stored.
        stores: Additional stores: import paths of functions that open a store, by the scheme of its URL. They accept
            the URL and the keyword `exclusive`, just as `wiring.stores.open_store` does.
        around_stores: Functions that wrap the store. Each accepts the store and the settings, and returns the store to
            use instead, which can be the same store.
    """

    name: ClassVar[str]
    needs: ClassVar[Sequence[str]] = ()
    after: ClassVar[Sequence[str]] = ()
    settings: ClassVar[type[FeatureSettings] | None] = None
    metrics: ClassVar[Sequence[MetricFamily]] = ()
    services: ClassVar[Sequence[Callable[[App], Any]]] = ()
    methods: ClassVar[Sequence[type[Method]]] = ()
    about: ClassVar[str] = ""
    parameters: ClassVar[Mapping[type[Method], type[Parameters]]] = {}
    results: ClassVar[Mapping[type, type]] = {}
    record_kinds: ClassVar[Sequence[type[RecordKind]]] = ()
    creation_hooks: ClassVar[Sequence[Callable[[SessionContext], CreationHook]]] = ()
    operation_hooks: ClassVar[Sequence[Callable[[SessionContext], OperationHook]]] = ()
    filters: ClassVar[Sequence[Callable[[SessionContext], SessionFilter]]] = ()
    watchers: ClassVar[Sequence[type[Watcher]]] = ()
    named_addresses: ClassVar[type[NamedAddresses] | None] = None
    address_hooks: ClassVar[Sequence[Callable[[App], AddressHook]]] = ()
    address_tools: ClassVar[Sequence[Callable[[App], AddressTool]]] = ()
    address_paths: ClassVar[Mapping[str, str]] = {}
    tracer: ClassVar[Callable[[App], Tracer | None] | None] = None
    routes: ClassVar[Mapping[str, str]] = {}
    cookies: ClassVar[Mapping[str, Sequence[str]]] = {}
    views: ClassVar[Mapping[str, str]] = {}
    operations: ClassVar[Sequence[type[RunnerOperation[Any]]]] = ()
    conditions: ClassVar[Sequence[type[ExecutionPolicy]]] = ()
    checks: ClassVar[Sequence[Callable[[Settings], None]]] = ()
    banner: ClassVar[Sequence[Callable[[str, Settings, Inventory], Sequence[str]]]] = ()
    before_serving: ClassVar[Sequence[Callable[[Settings], None]]] = ()
    isolations: ClassVar[Mapping[str, str]] = {}
    volumes: ClassVar[Sequence[type[Volume]]] = ()
    stores: ClassVar[Mapping[str, str]] = {}
    around_stores: ClassVar[Sequence[Callable[[SessionStore, Settings], SessionStore]]] = ()
