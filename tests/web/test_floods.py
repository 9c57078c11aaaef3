"""A flood on one connection neither blocks the event loop nor fills the memory. `python -m tools.fuzz` sends more."""

import pytest
from http_endpoint import PROTOCOLS, served
from serving import PACKS

from toolpack_server.packs.loading import load_catalog
from tools.fuzz.floods import ANSWER_BYTES, BODIES, FRAME_FLOODS, HTTP_FLOODS, TOKEN, WRAPPERS, Flood, flood_of_streams

CATALOG = load_catalog((PACKS,), ("bank", "chores"))
SIZE = 300_000


@pytest.fixture(params=list(PROTOCOLS), scope="module")
def flood(request):
    with served(request.param, catalog=CATALOG, tokens={"ann": TOKEN}) as endpoint:
        yield Flood(endpoint)


@pytest.mark.parametrize("name", HTTP_FLOODS)
def test_a_flood_of_http_delays_no_other_client(flood, name):
    flood.http(name, SIZE)


@pytest.mark.parametrize("name", FRAME_FLOODS)
def test_a_flood_of_frames_delays_no_other_client(flood, name):
    flood.frames(name, SIZE, "/openenv/bank/ws")


@pytest.mark.parametrize(
    ("path", "name"), [*((path, "members") for path in WRAPPERS), ("/aggregate_metrics", "a list")]
)
def test_a_body_of_many_values_delays_no_other_client(flood, path, name):
    flood.body(path, WRAPPERS[path][-1].replace(b"%b", BODIES[name]), path)
    flood.body(path, BODIES[name], path)


@pytest.mark.parametrize("http", PROTOCOLS)
def test_unread_event_streams_are_limited(http):
    with flood_of_streams(http) as flood:
        flood.streams(ANSWER_BYTES)
