"""A WebSocket client that can violate the protocol, because it builds its frames byte by byte."""

import json
import socket
import struct

from patience import PATIENCE

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
MASK = b"\x01\x02\x03\x04"
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # the key and its answer from the example in RFC 6455


def frame(payload, opcode=TEXT, *, last=True, masked=True, bits=0):
    size = len(payload)
    if size < 126:
        length = bytes([size])
    else:
        length = b"\x7e" + struct.pack("!H", size) if size < 2**16 else b"\x7f" + struct.pack("!Q", size)
    head = bytes([(0x80 if last else 0) | bits | opcode, length[0] | (0x80 if masked else 0)]) + length[1:]
    if not masked:
        return head + payload
    pattern = (MASK * (size // 4 + 1))[:size]
    scrambled = int.from_bytes(payload, "big") ^ int.from_bytes(pattern, "big")
    return head + MASK + scrambled.to_bytes(size, "big")


class RawWebSocket:
    """A connection after its handshake. `status` and `body` are those of the response to the handshake."""

    def __init__(self, port, path, token=None, *, seconds=PATIENCE, **headers):
        headers_to_send = {
            "host": "127.0.0.1",
            "upgrade": "websocket",
            "connection": "Upgrade",
            "sec-websocket-version": "13",
            "sec-websocket-key": KEY,
            **({} if token is None else {"authorization": f"Bearer {token}"}),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = [
            f"GET {path} HTTP/1.1",
            *(f"{name}: {value}" for name, value in headers_to_send.items() if value is not None),
        ]
        self.connection = socket.create_connection(("127.0.0.1", port), timeout=seconds)
        self._file = self.connection.makefile("rb")
        self.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        self.status = int(self._file.readline().split()[1])
        self.headers = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(": ")
            self.headers[name.lower()] = value
        self.body = self._file.read(int(self.headers.get("content-length", 0)))

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self._file.close()
        self.connection.close()

    def write(self, data):
        self.connection.sendall(data)

    def say(self, message):
        self.write(frame(json.dumps(message).encode()))

    def read(self):
        """Read a frame, and return its opcode and payload, or None if the connection has ended."""
        head = self._file.read(2)
        if len(head) < 2:
            return None
        assert not head[1] & 0x80, "a server masks nothing"
        size = head[1]
        if size == 126:
            (size,) = struct.unpack("!H", self._file.read(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", self._file.read(8))
        assert head[0] & 0xF0 == 0x80
        return head[0] & 0x0F, self._file.read(size)

    def hear(self):
        """Read and return a message."""
        opcode, payload = self.read()
        assert opcode == TEXT, (opcode, payload)
        return json.loads(payload)

    def ask(self, message):
        self.say(message)
        return self.hear()

    def closed(self):
        """Read the server's close frame, and return the code and the reason."""
        while (received := self.read()) is not None:
            opcode, payload = received
            if opcode == CLOSE:
                assert self.read() is None, "nothing comes behind it"
                return struct.unpack("!H", payload[:2])[0], payload[2:].decode()
        return None
