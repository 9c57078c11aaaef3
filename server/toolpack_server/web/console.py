"""The console: a page for a browser, served from `console/`, and from folders of features that have views.

The files hold no data, so they need no token. Whatever the page shows it asks for at `/rpc`, as any client
does; what it has to know of the kinds of records and of features' views are files too, `kinds.json` and `views.json`. A
file is found by its exact name among those that were read or made at the start, so no request reaches the disk.

The page names its scripts and styles in a folder that doesn't exist, whose name is the digest of all files: browsers
keep what is in it, as another server has another folder, and needn't ask for fifty modules again for each new page.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
OF_VIEWS = {".css", ".js", ".svg"}
OWN_VIEWS = {"compare", "new", "sessions", "toolpacks"}  # as `main.js` has them
HEADERS = {
    # Nothing but the files of this folder runs, and they talk to this server only.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
ASKED_AGAIN = "no-cache"  # with the ETag: an update of the server is seen at once
KEPT = "max-age=31536000, immutable"
FOLDER_OF_FILES = re.compile(r"^[0-9a-f]{24}/")
REFERENCE = re.compile(rb' (src|href)="(?=[\w.]+")')  # in the page; the name of a file follows


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    media_type: str
    etag: str


def console_files(kinds: RecordKinds, features: Sequence[type[Feature]]) -> Mapping[str, File]:
    """Get all files of the console, by their paths.

    Raises:
        StartError: A view of a feature can't be read, or has the name of one that the console has itself.
    """
    found = [path for path in FOLDER.rglob("*") if path.suffix in MEDIA_TYPES]
    files = {path.relative_to(FOLDER).as_posix(): _file(path.name, path.read_bytes()) for path in found}
    shown = {
        name: {"title": kind.title, "content": kind.content, "is_call": kind.is_call, "is_message": kind.is_message}
        for name, kind in kinds.items()
    }
    views: dict[str, str] = {}
    for feature in features:
        for name, module in feature.views.items():
            if name in OWN_VIEWS:
                raise StartError(
                    f"The feature {feature.name!r} has a view {name!r}, and so has the console: leave it out by "
                    f"TOOLPACK_FEATURES=-{feature.name}."
                )
            views[name], beside = _view(feature, name, module)
            files |= beside
    made = {"kinds.json": shown, "views.json": views}
    return files | {name: _file(name, dumps(content)) for name, content in made.items()}


def console_routes(gate: TokenGate, files: Mapping[str, File]) -> list[Route]:
    async def to_console(request: Request) -> Response:
        gate.check_origin(dict(request.scope["headers"]))
        return RedirectResponse(request.scope.get("root_path", "") + START, 303, {"vary": "accept"})

    async def rpc(request: Request) -> Response:
        """Show the console to a person who opens `/rpc` in a browser; programs are told to POST."""
        gate.check_origin(dict(request.scope["headers"]))
        if "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(405, headers={"allow": "POST"})
        return await to_console(request)

    digest = _tag(b"".join(name.encode() + files[name].etag.encode() for name in sorted(files)))
    page = files["index.html"]
    files = {**files, "index.html": _file("index.html", REFERENCE.sub(rb' \1="%s/' % digest.encode(), page.content))}

    async def console(request: Request) -> Response:
        gate.check_origin(dict(request.scope["headers"]))
        path = request.path_params["name"]
        file = files.get(FOLDER_OF_FILES.sub("", path) or "index.html")
        if file is None:
            raise HTTPException(404)
        # While servers are replaced by others, one is asked for files of another: it gives its own, not to be kept.
        answered = HEADERS | {"etag": file.etag, "cache-control": KEPT if path.startswith(digest) else ASKED_AGAIN}
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if file.etag in known:
            return Response(status_code=304, headers=answered)
        return Response(file.content, headers=answered, media_type=file.media_type)

    paths = {"/": to_console, "/console": to_console, "/console/{name:path}": console, "/rpc": rpc}
    return [Route(path, endpoint, methods=["GET"]) for path, endpoint in paths.items()]


def _view(feature: type[Feature], name: str, module: str) -> tuple[str, Mapping[str, File]]:
    """Get the address of a view's module, and all scripts, styles and pictures of its folder by their addresses."""
    package, _, path = module.partition(":")
    try:
        entry = Path(str(files_of(package))) / path
        content = {each.name: each.read_bytes() for each in entry.parent.iterdir() if each.suffix in OF_VIEWS}
        content[entry.name] = entry.read_bytes()
    except (ImportError, OSError, TypeError) as error:
        raise StartError(
            f"The view {name!r} of the feature {feature.name!r}, {module}, can't be read ({error}): name a file of a "
            f"package, or leave the feature out by TOOLPACK_FEATURES=-{feature.name}."
        ) from error
    base = f"features/{feature.name}"
    return f"./{base}/{entry.name}", {f"{base}/{name}": _file(name, content[name]) for name in content}


def _file(name: str, content: bytes) -> File:
    return File(content, MEDIA_TYPES[Path(name).suffix], f'"{_tag(content)}"')


def _tag(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=12).hexdigest()
