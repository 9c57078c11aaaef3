"""Files of the console, a web page: from `console/`, and from the folders of features that add views.

The files contain no data, so they need no token. The page gets all data from `/rpc`, as any client does. Three files
are generated: descriptions of the kinds of records (`kinds.json`), the views of features (`views.json`), and where
functions run (`server.json`). All files are read or generated at the start and found by their exact names, so no
request reads from the disk.

The page refers to its scripts and styles below a virtual folder named after the digest of all files. A changed file
changes the folder, so browsers can cache these files forever and don't request fifty modules at each page load. Files
are compressed if the browser accepts it. They contain no secrets, so their compressed length reveals none.
"""

import gzip
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files as files_of
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from toolpack_server.base.errors import StartError
from toolpack_server.jsonio.strict import dumps
from toolpack_server.sessions.record_kinds import RecordKinds
from toolpack_server.web.auth import TokenGate
from toolpack_server.wiring.feature import Feature

FOLDER = Path(__file__).parent.parent / "console"
START = "/console/"
MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
VIEW_SUFFIXES = {".css", ".js", ".svg"}
OWN_VIEWS = {"compare", "new", "sessions", "toolpacks"}  # `main.js` contains the same value
HEADERS = {
    # The browser runs only the console's files, and these can connect only to this server.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
REVALIDATED = "no-cache"  # the browser revalidates by ETag, so that an update of the server is visible at once
IMMUTABLE = "max-age=31536000, immutable"  # for files below the folder of the digest
NO_WEIGHT = re.compile(r"q=0(\.0*)?")  # weight of a coding that the browser refuses
DIGEST_FOLDER = re.compile(r"^[0-9a-f]{24}/")
REFERENCE = re.compile(rb' (src|href)="(?=[\w.]+")')  # in the page, before the name of a file


@dataclass(frozen=True, slots=True)
class File:
    """A file of the console, as it is served."""

    content: bytes
    media_type: str
    etag: str


def console_files(kinds: RecordKinds, features: Sequence[type[Feature]], isolation: str) -> Mapping[str, File]:
    """Return all files of the console, by their paths.

    Raises:
        StartError: A feature's view can't be read, or has the name of one of the console's own views.
    """
    own_paths = [path for path in FOLDER.rglob("*") if path.suffix in MEDIA_TYPES]
    files = {path.relative_to(FOLDER).as_posix(): _file(path.name, path.read_bytes()) for path in own_paths}
    kind_descriptions = {
        name: {"title": kind.title, "content": kind.content, "is_call": kind.is_call, "is_message": kind.is_message}
        for name, kind in kinds.items()
    }
    views: dict[str, str] = {}
    for feature in features:
        for name, module in feature.views.items():
            if name in OWN_VIEWS:
                raise StartError(
                    f"The feature {feature.name!r} has a view {name!r}, and so has the console: leave the feature out "
                    f"with TOOLPACK_FEATURES=-{feature.name}."
                )
            views[name], view_files = _view(feature, name, module)
            files |= view_files
    generated = {"kinds.json": kind_descriptions, "views.json": views, "server.json": {"isolation": isolation}}
    return files | {name: _file(name, dumps(content)) for name, content in generated.items()}


def console_routes(gate: TokenGate, files: Mapping[str, File]) -> list[Route]:
    """Return the routes of the console's files, and the redirects of `/`, `/console` and `/rpc` to its page."""

    async def to_console(request: Request) -> Response:
        gate.check_origin(dict(request.scope["headers"]))
        return RedirectResponse(request.scope.get("root_path", "") + START, 303, {"vary": "accept"})

    async def rpc(request: Request) -> Response:
        """Redirect a browser to the console. Other clients get 405, because `/rpc` needs a POST."""
        gate.check_origin(dict(request.scope["headers"]))
        if "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(405, headers={"allow": "POST"})
        return await to_console(request)

    digest = _tag(b"".join(name.encode() + files[name].etag.encode() for name in sorted(files)))
    page = files["index.html"]
    files = {**files, "index.html": _file("index.html", REFERENCE.sub(rb' \1="%s/' % digest.encode(), page.content))}

    async def console(request: Request) -> Response:
        """Return a file of the console, or 304 if the browser has it cached. An empty path means the page itself."""
        gate.check_origin(dict(request.scope["headers"]))
        path = request.path_params["name"]
        file = files.get(DIGEST_FOLDER.sub("", path) or "index.html")
        if file is None:
            raise HTTPException(404)
        # During a rolling update a request can name another version's folder. It gets this version's file, uncached.
        caching = IMMUTABLE if path.startswith(digest) else REVALIDATED
        headers = HEADERS | {"etag": f"W/{file.etag}", "cache-control": caching, "vary": "accept-encoding"}
        cached_tags = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if file.etag in cached_tags:
            return Response(status_code=304, headers=headers)
        if not _accepts_gzip(request.headers.get("accept-encoding", "")):
            return Response(file.content, headers=headers, media_type=file.media_type)
        headers["content-encoding"] = "gzip"
        return Response(_compressed(file.content), headers=headers, media_type=file.media_type)

    paths = {"/": to_console, "/console": to_console, "/console/{name:path}": console, "/rpc": rpc}
    return [Route(path, endpoint, methods=["GET"]) for path, endpoint in paths.items()]


def _view(feature: type[Feature], name: str, module: str) -> tuple[str, Mapping[str, File]]:
    """Return the URL of a view's module, and all scripts, styles and images of its folder by URL."""
    package, _, path = module.partition(":")
    try:
        entry = Path(str(files_of(package))) / path
        content = {each.name: each.read_bytes() for each in entry.parent.iterdir() if each.suffix in VIEW_SUFFIXES}
        content[entry.name] = entry.read_bytes()
    except (ImportError, OSError, TypeError) as error:
        raise StartError(
            f"The view {name!r} of the feature {feature.name!r}, {module}, can't be read ({error}): name a file of a "
            f"package, or leave the feature out with TOOLPACK_FEATURES=-{feature.name}."
        ) from error
    base = f"features/{feature.name}"
    return f"./{base}/{entry.name}", {f"{base}/{name}": _file(name, content[name]) for name in content}


def _file(name: str, content: bytes) -> File:
    return File(content, MEDIA_TYPES[Path(name).suffix], f'"{_tag(content)}"')


def _accepts_gzip(header: str) -> bool:
    """Return whether an Accept-Encoding header names gzip with a weight above 0."""
    codings = {name: weight for name, _, weight in ("".join(each.split()).partition(";") for each in header.split(","))}
    return "gzip" in codings and not NO_WEIGHT.fullmatch(codings["gzip"])


@cache
def _compressed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def _tag(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=12).hexdigest()
