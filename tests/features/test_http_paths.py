"""Responses of features' HTTP paths: their bytes count towards the limit until they are sent.

A stopping server cuts off a response that takes too long.
"""

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


def set_response(monkeypatch, make):
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
    """Return a function that returns the messages of uvicorn's logger. This logger doesn't propagate them."""
    uvicorn = logging.getLogger("uvicorn.error")
    uvicorn.addHandler(caplog.handler)
    yield lambda: [record.getMessage() for record in caplog.records]  # caplog has a list for each phase of a test
    uvicorn.removeHandler(caplog.handler)


def in_flight(endpoint):
    return endpoint.app.state.gateway.in_flight.total


def read(connection, size=-1):
    content = bytearray()
    while size < 0 or len(content) < size:
        some = connection.recv(2**16)
        if not some:
            break
        content += some
    return bytes(content)


def test_large_response_is_counted_until_it_is_read(endpoint, monkeypatch):
    set_response(monkeypatch, large)
    with endpoint.connect(ASK) as connection:
        wait_until(lambda: in_flight(endpoint) == LARGE, "the answer")
        head, _, body = read(connection, LARGE).partition(b"\r\n\r\n")
        assert b"content-length: %d" % LARGE in head
        body += read(connection, LARGE - len(body))
        assert body == b"x" * LARGE
        wait_until(lambda: in_flight(endpoint) == 0, "its release")


@pytest.mark.parametrize("make", [large, streamed])
def test_response_that_cannot_be_finished_is_cut_off_silently(endpoint, monkeypatch, complaints, make):
    set_response(monkeypatch, make)
    with endpoint.connect(ASK) as connection:
        wait_until(lambda: in_flight(endpoint) == LARGE, "the answer")
        endpoint.cancel_requests()
        with contextlib.suppress(ConnectionResetError):
            assert len(read(connection)) < LARGE
        wait_until(lambda: in_flight(endpoint) == 0, "its release")
    assert complaints() == []


def test_any_starlette_response_can_be_sent(endpoint, monkeypatch, tmp_path):
    (tmp_path / "page.txt").write_text("Kept on a disk.")
    background_runs = []
    for response, expected in [
        (FileResponse(tmp_path / "page.txt"), "Kept on a disk."),
        (StreamingResponse(iter(["in ", "pieces"])), "in pieces"),
        (PlainTextResponse("first", background=BackgroundTask(background_runs.append, "then")), "first"),
    ]:
        set_response(monkeypatch, lambda _request, response=response: response)
        reply = endpoint.http.get("/health")
        assert (reply.status_code, reply.text, len(reply.headers["x-request-id"])) == (200, expected, 16)
    wait_until(lambda: background_runs == ["then"], "what is done after the answer")


def test_stream_ends_when_its_client_disconnects(endpoint, monkeypatch):
    ended = []

    async def signs():
        try:
            while True:
                yield b": still running\n"
                await asyncio.sleep(0.01)
        finally:
            ended.append(True)

    set_response(monkeypatch, lambda _request: StreamingResponse(signs()))
    with endpoint.connect(ASK) as connection:
        assert read(connection, 1)
    wait_until(lambda: ended, "the end of the stream")
    wait_until(lambda: endpoint.app.state.gateway.answering == 0, "its place")
