"""Answers at the paths of features: they are counted while they wait, and are cut off where the server can't wait."""

import asyncio
import contextlib
import logging

import pytest
from http_endpoint import PROTOCOLS, served
from serving import wait_until
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, PlainTextResponse, StreamingResponse

from toolpack_trainers.ors.endpoints import HealthEndpoint

LARGE = 30_000_000
ASK = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(params=list(PROTOCOLS), scope="module")
def endpoint(request):
    with served(request.param) as running:
        yield running


def answering(monkeypatch, make):
    async def answer(_self, request):
        return make(request)

    monkeypatch.setattr(HealthEndpoint, "answer", answer)


def large(_request):
    return PlainTextResponse("x" * LARGE)


def streamed(request):
    async def pieces():
        request.holds(LARGE)
        yield b"x"
        await asyncio.Event().wait()

    return StreamingResponse(pieces())


@pytest.fixture
def complaints(caplog):
    """Get what uvicorn writes, which hands it on to nobody."""
    uvicorn = logging.getLogger("uvicorn.error")
    uvicorn.addHandler(caplog.handler)
    yield lambda: [record.getMessage() for record in caplog.records]  # each phase of a test has a list of its own
    uvicorn.removeHandler(caplog.handler)


def in_flight(endpoint):
    return endpoint.app.state.gateway.in_flight.total


def read(connection, size=-1):
    found = bytearray()
    while size < 0 or len(found) < size:
        some = connection.recv(2**16)
        if not some:
            break
        found += some
    return bytes(found)


def test_a_large_answer_is_counted_until_it_is_read(endpoint, monkeypatch):
    answering(monkeypatch, large)
    with endpoint.connect(ASK) as connection:
        wait_until(lambda: in_flight(endpoint) == LARGE, "the answer")
        head, _, body = read(connection, LARGE).partition(b"\r\n\r\n")
        assert b"content-length: %d" % LARGE in head
        body += read(connection, LARGE - len(body))
        assert body == b"x" * LARGE
        wait_until(lambda: in_flight(endpoint) == 0, "its release")


@pytest.mark.parametrize("make", [large, streamed])
def test_an_answer_that_can_not_be_sent_in_full_is_cut_off_without_a_traceback(endpoint, monkeypatch, complaints, make):
    answering(monkeypatch, make)
    with endpoint.connect(ASK) as connection:
        wait_until(lambda: in_flight(endpoint) == LARGE, "the answer")
        endpoint.cancel_requests()
        with contextlib.suppress(ConnectionResetError):
            assert len(read(connection)) < LARGE
        wait_until(lambda: in_flight(endpoint) == 0, "its release")
    assert complaints() == []


def test_any_response_of_starlette_is_sent_as_it_is_there(endpoint, monkeypatch, tmp_path):
    (tmp_path / "page.txt").write_text("Kept on a disk.")
    done = []
    for made, expected in [
        (FileResponse(tmp_path / "page.txt"), "Kept on a disk."),
        (StreamingResponse(iter(["in ", "pieces"])), "in pieces"),
        (PlainTextResponse("first", background=BackgroundTask(done.append, "then")), "first"),
    ]:
        answering(monkeypatch, lambda _request, made=made: made)
        found = endpoint.http.get("/health")
        assert (found.status_code, found.text, len(found.headers["x-request-id"])) == (200, expected, 16)
    wait_until(lambda: done == ["then"], "what is done after the answer")


def test_a_stream_ends_when_its_client_has_left(endpoint, monkeypatch):
    ended = []

    async def signs():
        try:
            while True:
                yield b": still running\n"
                await asyncio.sleep(0.01)
        finally:
            ended.append(True)

    answering(monkeypatch, lambda _request: StreamingResponse(signs()))
    with endpoint.connect(ASK) as connection:
        assert read(connection, 1)
    wait_until(lambda: ended, "the end of the stream")
    wait_until(lambda: endpoint.app.state.gateway.answering == 0, "its place")
