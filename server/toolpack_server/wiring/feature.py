"""What a feature adds to the server.

The core knows no feature by name. Installed distributions name their features (see `installed.py`), and each
adds what its class attributes say; a server without it lacks that and nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from toolpack_server.base.settings import FeatureSettings, Settings
from toolpack_server.execution.conditions import ExecutionPolicy
from toolpack_server.execution.runner import RunnerOperation
from toolpack_server.observability.metrics import MetricFamily
from toolpack_server.observability.tracing import Tracer
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
    """What a feature adds to the server; the class itself is used, never an instance.

    `Service` makes and adds what the attributes declare. What it makes changes nothing of the server by itself.

    Attributes:
        name: Its name, which its entry point has, too: a word in lower case.
        needs: The names of features without which it can't work: they are loaded before it.
        after: The names of features that are loaded before it if they are there. In the order of loading features
            change requests for new sessions, and do what they do around an operation, from the outside in.
        settings: Its settings: their variables begin with `TOOLPACK_` and its name. `Settings.of` gets them.
        metrics: Its numbers at `/metrics`.
        services: What its methods work with: each makes an object when the server starts, which `App.feature` gets by
            its class.
        methods: JSON-RPC methods.
        about: What the OpenRPC document says of it besides, in a sentence.
        parameters: Further parameters of the core's methods.
        results: Further members of results, as a `TypedDict` by the one that has them, such as `Session`: what creation
            hooks keep by their name is shown there.
        record_kinds: Kinds of records; one with the name of another, whose class it derives from, takes its place.
        creation_hooks: What it has to do with new sessions.
        operation_hooks: What it does around the operations on sessions.
        filters: What it leaves out of lists of sessions, if a request asks for it.
        watchers: Classes of what is told on the event loop what happens in sessions, which `App.feature` gets, too.
        named_addresses: The addresses that sessions have besides their agent's. Only one feature can say that.
        address_hooks: What it says of the addresses of sessions: their functions, limits, prompts, and how functions
            appear there.
        address_tools: What addresses offer besides functions, to agents that speak MCP.
        address_paths: Further paths of an address, by the member of results that has them; `{key}` stands for its key.
        tracer: Makes what traces calls, or None if nothing is to be traced. Only one feature can trace.
        routes: Further endpoints of HTTP, by path, as import paths of classes that `web.endpoints.Endpoint` describes.
            A path that ends with `/{key}` is one of agents' addresses.
        cookies: The names of cookies that its clients send, each with paths of other features. A request with such a
            cookie reaches these and the feature's own paths only: a program may take the path from a model.
        views: Pages of the console, by the word behind the `#` of their addresses: `package:path` of an ES module that
            exports `open(place, ids, query, signal)`. Scripts, styles and pictures of its folder are served, too, as
            `/console/features/` and the feature's name.
        operations: What its code lets the runner do with toolpacks' code.
        conditions: Conditions under which its code lets toolpacks' code run.
        checks: Called with the settings before anything starts; they raise `SettingsError`.
        before_serving: Called with the settings before a server's processes start.
        isolations: Where toolpacks' code runs but in threads, by the value of `TOOLPACK_ISOLATION`: import paths of
            functions that start a `Runner`; they take what `service.create_runner` gives them.
        volumes: What an environment may hold that is stored by what changes.
        stores: Further stores: import paths of functions that open one, by the scheme of its URL. They take the URL,
            and the keyword `exclusive`, as `wiring.stores.open_store` does.
        around_stores: What it puts around the store, whichever that is: each is called with the store and the settings,
            and gets what the server is to use in its place, which may be the same.
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
    before_serving: ClassVar[Sequence[Callable[[Settings], None]]] = ()
    isolations: ClassVar[Mapping[str, str]] = {}
    volumes: ClassVar[Sequence[type[Volume]]] = ()
    stores: ClassVar[Mapping[str, str]] = {}
    around_stores: ClassVar[Sequence[Callable[[SessionStore, Settings], SessionStore]]] = ()
