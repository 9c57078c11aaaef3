"""The feature that adds replays, seeded sessions and bundles to the server."""

from toolpack_server.features.replay.blob_digests import ReadEntries
from toolpack_server.features.replay.bundles import Bundles
from toolpack_server.features.replay.methods import METHODS
from toolpack_server.features.replay.pinned_clock import PinnedClock
from toolpack_server.features.replay.replays import Replays
from toolpack_server.features.replay.results import SessionSeeds
from toolpack_server.features.replay.seed_hook import SeedCreationHook, SeedHook
from toolpack_server.features.replay.seed_parameters import SeedParameters
from toolpack_server.features.replay.settings import ReplaySettings
from toolpack_server.protocol.results import Session
from toolpack_server.rpc.method import App
from toolpack_server.rpc.methods import CreateSession, ForkSession
from toolpack_server.wiring.feature import Feature


def _replays(app: App) -> Replays:
    return Replays(app.context, app.sessions)


def _bundles(app: App) -> Bundles:
    key = app.settings.of(ReplaySettings).bundle_key
    secret = key.get_secret_value().encode() if key else app.key
    return Bundles(app.context, app.sessions.factory, secret, app.in_flight.max_per_request)


class ReplayFeature(Feature):
    name = "replay"
    settings = ReplaySettings
    needs = ("episodes",)
    after = ("tasks",)
    services = (_replays, _bundles)
    methods = METHODS
    creation_hooks = (SeedCreationHook,)
    operation_hooks = (SeedHook,)
    parameters = {CreateSession: SeedParameters, ForkSession: SeedParameters}
    results = {Session: SessionSeeds}
    operations = (ReadEntries,)
    conditions = (PinnedClock,)
