"""What the conformance suite of MCP calls, and a few more: content blocks of all kinds, marked headers, waiting."""

import threading
import time
from typing import Annotated

from pydantic import BaseModel, Field

from server import Content, Depends, TaskEnvironment, Toolpack

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SILENCE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="


class Tally(BaseModel):
    counts: list[int] = []


class TallyEnvironment(TaskEnvironment):
    tally: Tally = Tally()


toolpack = Toolpack("conformance", TallyEnvironment)

Counts = Annotated[Tally, Depends("tally")]


@toolpack.function(read_only=True)
def test_simple_text() -> str:
    """Get a text."""
    return "This is a simple text response for testing."


@toolpack.function(read_only=True)
def test_image_content() -> Content:
    """Get an image."""
    return [{"type": "image", "data": PIXEL, "mimeType": "image/png"}]


@toolpack.function(read_only=True)
def test_audio_content() -> Content:
    """Get a sound."""
    return [{"type": "audio", "data": SILENCE, "mimeType": "audio/wav"}]


@toolpack.function(read_only=True)
def test_embedded_resource() -> Content:
    """Get a resource."""
    resource = {"uri": "test://embedded-resource", "mimeType": "text/plain", "text": "This is an embedded resource."}
    return [{"type": "resource", "resource": resource}]


@toolpack.function(read_only=True)
def test_multiple_content_types() -> Content:
    """Get a text, an image, a resource and a link."""
    return [
        {"type": "text", "text": "Multiple content types test:", "annotations": {"audience": ["user"], "priority": 1}},
        {"type": "image", "data": PIXEL, "mimeType": "image/png"},
        {
            "type": "resource",
            "resource": {"uri": "test://mixed", "mimeType": "application/octet-stream", "blob": PIXEL},
        },
        {"type": "resource_link", "uri": "test://link", "name": "link"},
    ]


@toolpack.function
def test_error_handling() -> str:
    """Fail."""
    raise RuntimeError("This tool intentionally returns an error for testing")


@toolpack.function
def test_tool_with_progress(tally: Counts, seconds: float = 0.7) -> str:  # noqa: PT028 - no test
    """Wait, then count.

    :param seconds: How long.
    """
    time.sleep(seconds)
    tally.counts.append(1)
    return f"waited {seconds:g} s"


@toolpack.function
def count(tally: Counts, number: int) -> dict[str, list[int]]:
    """Note a number, and get all that were noted.

    :param number: The number.
    """
    tally.counts.append(number)
    return {"counts": tally.counts}


@toolpack.function
def note_content(tally: Counts, blocks: list[dict[str, object]]) -> Content:
    """Count, then give back what was given.

    :param blocks: Content blocks, or something else.
    """
    tally.counts.append(len(blocks))
    return blocks


@toolpack.function(read_only=True)
def marked(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
    shard: Annotated[int, Field(json_schema_extra={"x-mcp-header": "Shard"})] = 1,
    dry: Annotated[bool, Field(json_schema_extra={"x-mcp-header": "Dry"})] = False,
) -> str:
    """Say what was given.

    :param region: A text that comes as a header, too.
    :param shard: An integer that does.
    :param dry: A boolean that does.
    """
    return f"{region} {shard} {dry}"


@toolpack.function(read_only=True)
def test_streaming_elicitation() -> str:
    """Take long enough for an event stream, and ask nothing."""
    time.sleep(0.3)
    return "nothing to ask"


@toolpack.function(read_only=True)
def test_logging_tool() -> str:
    """Take long enough for an event stream, and log nothing there."""
    time.sleep(0.3)
    return "nothing to log"


@toolpack.function(read_only=True)
def echo(value: object) -> object:
    """Give a value back.

    :param value: Any value.
    """
    return value


gates: dict[str, threading.Event] = {}
started: list[str] = []


@toolpack.function(timeout_seconds=60)
def count_and_wait(tally: Counts, number: int, gate: str) -> int:
    """Note a number, then wait until a gate is open.

    :param number: The number.
    :param gate: The gate.
    """
    tally.counts.append(number)
    started.append(gate)
    while not gates[gate].wait(0.005):
        pass
    return len(tally.counts)
