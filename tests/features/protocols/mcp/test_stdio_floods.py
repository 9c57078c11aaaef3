"""Floods on standard input: the server stops reading a client that sends too much or reads nothing."""

import asyncio
import json
import os
import threading

import pytest
from serving import wait_until

from toolpack_server.features.protocols.mcp.messages import read_message
from toolpack_server.features.protocols.mcp.stdio.conversation import MAX_UNANSWERED, StdioConversation
from toolpack_server.features.protocols.mcp.stdio.lines import LineReader, LineWriter
from toolpack_server.jsonio.strict import loads

REQUEST = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()


def send_all(sink, data):
    while data:
        data = data[os.write(sink, data) :]
    os.close(sink)


@pytest.mark.parametrize(("line", "runs"), [(REQUEST, True), (b"{}", False), (b"", False)])
def test_flood_of_lines_is_read_up_to_a_limit(line, runs):
    (source, theirs), (reads, sink) = os.pipe(), os.pipe()
    lines_read, answers = [], []

    async def take(line):
        lines_read.append(line)
        return read_message(loads(line or b"{}"))

    async def converse():
        end = asyncio.Event()

        async def answer(_message):
            await end.wait()
            return b"x"

        writer = LineWriter(sink)
        conversation = StdioConversation(LineReader(source, 1000), writer, take, answer, tells_progress=False)
        holding = asyncio.ensure_future(conversation.hold(1, lambda: None))
        await asyncio.to_thread(wait_until, lambda: len(lines_read) >= MAX_UNANSWERED, "the limit")
        await asyncio.sleep(0.1)
        buffered = len(lines_read) - MAX_UNANSWERED  # lines that were already in the pipe buffer
        end.set()
        threading.Thread(target=drain, daemon=True).start()
        await holding
        return buffered

    def drain():
        while data := os.read(reads, 65536):
            answers.append(data)

    sending = threading.Thread(target=send_all, args=(theirs, (line + b"\n") * 5000), daemon=True)
    sending.start()
    buffered = asyncio.run(converse())
    os.close(sink)
    assert len(lines_read) == 5000
    assert buffered <= (0 if runs else 2000)
