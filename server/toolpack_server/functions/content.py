"""Types of MCP content blocks that functions can return: text, images, audio and resources.

A function annotated `-> Content` returns a list of these blocks. MCP clients receive the blocks unchanged, and all
other clients receive them as JSON.
"""

import base64
import binascii
from functools import lru_cache
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, AnyUrl, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from toolpack_server.base.errors import ResultError, shown


def _is_base64(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("it is not base64") from None
    return text


def _is_uri(text: str) -> str:
    AnyUrl(text)
    return text


Base64 = Annotated[str, AfterValidator(_is_base64)]
Uri = Annotated[str, AfterValidator(_is_uri)]


class Annotations(TypedDict, total=False):
    """Hints for a client: a block's audience, its priority from 0 to 1, and the time of its last change (ISO 8601)."""

    audience: list[Literal["user", "assistant"]]
    priority: Annotated[float, Field(ge=0, le=1)]
    lastModified: str


class TextContent(TypedDict):
    """A block of text."""

    type: Literal["text"]
    text: str
    annotations: NotRequired[Annotations]


class ImageContent(TypedDict):
    """An image: its bytes in base64, and their MIME type."""

    type: Literal["image"]
    data: Base64
    mimeType: str
    annotations: NotRequired[Annotations]


class AudioContent(TypedDict):
    """An audio recording: its bytes in base64, and their MIME type."""

    type: Literal["audio"]
    data: Base64
    mimeType: str
    annotations: NotRequired[Annotations]


class ResourceLink(TypedDict):
    """A link to a resource that the client can read by itself."""

    type: Literal["resource_link"]
    uri: Uri
    name: str
    title: NotRequired[str]
    description: NotRequired[str]
    mimeType: NotRequired[str]
    size: NotRequired[int]
    annotations: NotRequired[Annotations]


class TextResource(TypedDict):
    """The content of a text resource."""

    uri: Uri
    text: str
    mimeType: NotRequired[str]


class BlobResource(TypedDict):
    """The content of a binary resource, in base64."""

    uri: Uri
    blob: Base64
    mimeType: NotRequired[str]


class EmbeddedResource(TypedDict):
    """A resource that is included in the result with its content."""

    type: Literal["resource"]
    resource: TextResource | BlobResource
    annotations: NotRequired[Annotations]


Block = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource

Content = list[Block]
"""The return annotation of a function that returns content blocks."""


_RESOURCES = {TextResource.__name__, BlobResource.__name__}


def is_content(annotation: Any) -> bool:
    """Return whether a return annotation is `Content`."""
    return bool(annotation == Content)


def check_content(result: bytes) -> None:
    """Check that the JSON of a result is a list of content blocks.

    Raises:
        ResultError: The JSON isn't such a list. The message names the first wrong location.
    """
    try:
        _blocks().validate_json(result, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        index, *keys = first["loc"] or ("",)
        # Leave out the names of types. Pydantic adds them to the location after the index, and before a resource's
        # keys.
        location = f"result[{index}]" + "".join(f".{key}" for key in keys[1:] if key not in _RESOURCES)
        raise ResultError(
            f"the function is annotated -> Content, but {shown(location)} isn't an MCP content block: {first['msg']}."
        ) from None


@lru_cache(maxsize=1)
def _blocks() -> TypeAdapter[Any]:
    return TypeAdapter(list[Annotated[Block, Field(discriminator="type")]])
