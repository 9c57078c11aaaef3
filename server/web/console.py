"""The console: a page for a browser, served from `server/console/`.

The rule: the files hold no data, so they need no token. Whatever the page shows it asks for at `/rpc`, as any client
does; what it has to know of the kinds of records is a file too, `kinds.json`. A file is found by its exact name among
those that were read or made at the start, so no request reaches the disk.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from server.jsonio.strict import dumps
from server.sessions.record_kinds import RecordKinds
from server.web.auth import TokenGate

FOLDER = Path(__file__).parent.parent / "console"
START = "/console/"
MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
HEADERS = {
    # Nothing but the files of this folder runs, and they talk to this server only.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # a browser asks again, with the ETag: an update of the server is seen at once
}


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    media_type: str
    etag: str


def console_routes(gate: TokenGate, kinds: RecordKinds) -> list[Route]:
    found = [path for path in FOLDER.rglob("*") if path.suffix in MEDIA_TYPES]
    files = {path.relative_to(FOLDER).as_posix(): _file(path.name, path.read_bytes()) for path in found}
    shown = {
        name: {"title": kind.title, "content": kind.content, "is_call": kind.is_call, "is_message": kind.is_message}
        for name, kind in kinds.items()
    }
    files["kinds.json"] = _file("kinds.json", dumps(shown))

    async def to_console(request: Request) -> Response:
        gate.check_origin(dict(request.scope["headers"]))
        return RedirectResponse(request.scope.get("root_path", "") + START, 303, {"vary": "accept"})

    async def rpc(request: Request) -> Response:
        """Show the console to a person who opens `/rpc` in a browser; programs are told to POST."""
        gate.check_origin(dict(request.scope["headers"]))
        if "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(405, headers={"allow": "POST"})
        return await to_console(request)

    async def console(request: Request) -> Response:
        gate.check_origin(dict(request.scope["headers"]))
        file = files.get(request.path_params["name"] or "index.html")
        if file is None:
            raise HTTPException(404)
        answered = HEADERS | {"etag": file.etag}
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if file.etag in known:
            return Response(status_code=304, headers=answered)
        return Response(file.content, headers=answered, media_type=file.media_type)

    paths = {"/": to_console, "/console": to_console, "/console/{name:path}": console, "/rpc": rpc}
    return [Route(path, endpoint, methods=["GET"]) for path, endpoint in paths.items()]


def _file(name: str, content: bytes) -> File:
    etag = hashlib.blake2b(content, digest_size=12).hexdigest()
    return File(content, MEDIA_TYPES[Path(name).suffix], f'"{etag}"')
