"""Servers that send hostile answers to a client: endless, one byte at a time, compressed, or arbitrary JSON."""

import contextlib
import gzip
import itertools
import socket
import threading

from hypothesis import strategies as some

JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=5),
    lambda each: some.lists(each, max_size=4) | some.dictionaries(some.text(max_size=5), each, max_size=4),
    max_leaves=8,
)
ERRORS = some.fixed_dictionaries(
    {"error": some.fixed_dictionaries({}, optional={"code": JSON, "message": JSON, "data": JSON})}
)
REPLIES = JSON | ERRORS | some.builds(lambda result: {"id": 1, "result": result}, JSON)
"""Possible answers to a request: any JSON, and values that resemble a response."""


@contextlib.contextmanager
def server_that(answers):
    """Run a server that reads each request and then calls `answers` with the connection, to send the answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    ends = threading.Event()

    def serve(connection):
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            answers(connection, ends)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        ends.set()
        listener.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def endless(connection, ends):
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    while not ends.is_set():
        connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")


def trickle(connection, ends):
    connection.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n")
    while not ends.wait(0.02):
        connection.sendall(b" ")


def trickled_head(connection, ends):
    connection.sendall(HEAD)
    for number in itertools.count():
        if ends.wait(0.02):
            return
        connection.sendall(b"X-%d: 1\r\n" % number)


def bomb(connection, _ends):
    body = gzip.compress(b" " * 2**26)
    connection.sendall(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
