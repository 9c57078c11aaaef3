"""Frames from an executor: toolpack code may forge them, so a frame that is too long is neither read nor parsed."""

import socket
import struct
import threading
from dataclasses import dataclass

import pytest

from toolpack_server.execution.runner import RunnerOperation
from toolpack_server.execution.snapshot import Snapshot, Versions
from toolpack_server.features.executors.channel import MAX_HEAD_VALUES, Channel
from toolpack_server.features.executors.transport import Transport

MAX_BYTES = 1000


@pytest.fixture
def channel():
    """Yield the worker's end of a channel, and a socket that can send any bytes to it."""
    end, theirs = socket.socketpair()
    with end, theirs:
        yield Channel(end, MAX_BYTES), theirs


def start(text_size, size=0):
    return struct.pack("<II", text_size, size)


def unread(_):
    raise AssertionError("its JSON was parsed")


@pytest.mark.parametrize("sizes", [(2**27, 0), (10, MAX_BYTES + 1)])
def test_frame_that_is_too_long_is_not_received(channel, sizes):
    end, theirs = channel
    theirs.sendall(start(*sizes))
    with pytest.raises(ValueError, match="too long"):
        end.receive(unread)


def test_json_with_too_many_values_is_not_parsed(channel):
    end, theirs = channel
    text = b"[%b[]]" % (b"[]," * MAX_HEAD_VALUES)
    sender = threading.Thread(target=theirs.sendall, args=[start(len(text)) + text])
    sender.start()
    with pytest.raises(ValueError, match="values"):
        end.receive(unread)
    sender.join()


def test_piece_that_is_not_allowed_is_not_received(channel):
    end, theirs = channel
    text = b"[{},[3,5]]"
    theirs.sendall(start(len(text), 8) + text)
    requested = []
    with pytest.raises(ValueError, match="2 pieces with 8 bytes"):
        end.receive(allows=requested.append)
    assert requested == [[3, 5]]


def test_trusted_side_may_send_frames_of_any_length():
    end, theirs = socket.socketpair()
    with end, theirs:
        text = b'[{"a":1},[1,%d]]' % (MAX_BYTES * 2)
        theirs.sendall(start(len(text), 1 + MAX_BYTES * 2) + text + b"x" * (1 + MAX_BYTES * 2))
        frame = Channel(end).receive()
    assert frame.head == {"a": 1}
    assert [len(piece) for piece in frame.pieces] == [1, 2000]


@dataclass(eq=False)
class Looked(RunnerOperation[None]):
    world: Snapshot
    at: Versions


def test_executor_gets_only_the_data_that_its_request_names():
    class Unsealed:
        def unseal(self, *of):
            return of[-1]

    versions = []
    looked = Looked(Snapshot({"shop": "1"}, {"shop": b"mine"}), lambda at: versions.append(at) or looked.world)
    travelling = Transport(looked)
    request = travelling.write(Unsealed(), 0)
    assert (request.head["fields"]["world"]["sent"], request.pieces) == (["shop"], [b"mine"])
    assert travelling.supply(["/world", "shop"], Unsealed()).pieces == [b"mine"]
    assert travelling.supply(["/at", 3], Unsealed()).pieces == [b"mine"]
    assert travelling.supply(["/at/3", "shop"], Unsealed()).pieces == [b"mine"]
    for need in (
        ["/at/4", "shop"],
        ["/world", "other"],
        ["/world", 1],
        ["/at", -1],
        ["/at", True],
        ["/", "shop"],
        None,
    ):
        with pytest.raises((KeyError, TypeError, ValueError)):
            travelling.supply(need, Unsealed())
    assert versions == [3]
