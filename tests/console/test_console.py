"""The console over HTTP: headers, files, and redirects of browsers. test_console_in_browser.py tests its behaviour."""

import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import server_process
from ci import without
from patience import PATIENCE

import toolpack_server
from toolpack_server.web.console import MEDIA_TYPES

FOLDER = Path(toolpack_server.__file__).parent / "console"
FILES = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir() if path.is_file()}
VENDORED = FOLDER / "vendored"
USED = ("jsdiff/diff/line.js", "jsdiff/diff/word.js")
CHECKS = Path(__file__).parent
VIEWS = {
    f"features/{path.parts[-3]}/console/{path.name}": path for path in FOLDER.parent.glob("features/**/console/*.js")
}
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}
SCRIPTS |= {name: path.read_text(encoding="utf-8") for name, path in VIEWS.items()}
DIGEST = re.compile(r"\b[0-9a-f]{24}/")  # the folder of the file names in the page
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with server_process.served(tmp_path_factory.mktemp("console"), "--store", "memory:") as running:
        yield running


@pytest.mark.parametrize("path", ["/", "/console"])
@pytest.mark.parametrize("headers", [HTML, {}], ids=["browser", "program"])
def test_root_redirects_to_the_console(served, path, headers):
    reply = served.http.get(path, headers=headers)
    assert (reply.status_code, reply.headers["location"]) == (303, "/console/")


def test_get_rpc_redirects_browsers_and_rejects_programs(served):
    reply = served.http.get("/rpc", headers=HTML)
    assert (reply.status_code, reply.headers["location"], reply.headers["vary"]) == (303, "/console/", "accept")
    for headers in ({}, {"Accept": "application/json"}):
        reply = served.http.get("/rpc", headers=headers)
        assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
        assert reply.json()["error"]["message"] == "This path doesn't accept GET: use POST."


@pytest.mark.parametrize("name", ["", *FILES])
def test_every_file_is_served_with_a_strict_content_policy(served, name):
    reply = served.http.get(f"/console/{name}")
    assert (reply.status_code, DIGEST.sub("", reply.text)) == (200, FILES[name or "index.html"])
    headers = reply.headers
    assert headers["content-security-policy"] == POLICY
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert headers["content-type"].partition(";")[0] == MEDIA_TYPES[Path(name or "index.html").suffix]


def test_record_kinds_are_served_and_no_script_names_one(served):
    reply = served.http.get("/console/kinds.json")
    assert (reply.status_code, reply.headers["content-security-policy"]) == (200, POLICY)
    kinds = reply.json()
    assert kinds["call"] == {"title": "{function}", "content": "", "is_call": True, "is_message": False}
    display = {"title": "message of the {role}", "content": "content", "is_call": False, "is_message": True}
    assert kinds["message"] == display
    assert set(kinds) == {"call", "reset", "message", "answer", "verdict", "turn", "failure", "event"}
    named = rf"""kind\)? *[!=]== *["'](?:{"|".join(kinds)})["']"""
    assert {name: matches for name, text in SCRIPTS.items() if (matches := re.findall(named, text))} == {}


def test_views_of_features_are_served_like_other_files(served):
    views = served.http.get("/console/views.json").json()
    assert views == {"runs": "./features/tasks/runs.js"}
    for name, path in VIEWS.items():
        reply = served.http.get(f"/console/{name.replace('/console/', '/')}")
        assert (reply.status_code, reply.headers["content-security-policy"]) == (200, POLICY)
        assert reply.text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*USED, "jsdiff/diff/base.js", "jsdiff/util/string.js", "jsdiff/util/params.js"])
def test_vendored_files_are_served_like_other_files(served, name):
    reply = served.http.get(f"/console/vendored/{name}")
    assert (reply.status_code, reply.headers["content-security-policy"]) == (200, POLICY)
    assert reply.text == (VENDORED / name).read_text(encoding="utf-8")


def test_unchanged_file_is_not_sent_again(served):
    tag = served.http.get("/console/main.js").headers["etag"]
    reply = served.http.get("/console/main.js", headers={"If-None-Match": f'"other", {tag}'})
    assert (reply.status_code, reply.content, reply.headers["etag"]) == (304, b"", tag)
    assert served.http.get("/console/main.js", headers={"If-None-Match": '"other"'}).status_code == 200


def test_files_are_compressed_for_browsers_that_accept_it(served):
    plain = served.http.get("/console/main.js", headers={"Accept-Encoding": "identity"})
    small = served.http.get("/console/main.js", headers={"Accept-Encoding": "gzip, br"})
    assert (plain.headers.get("content-encoding"), small.headers["content-encoding"]) == (None, "gzip")
    assert small.content == plain.content
    assert int(small.headers["content-length"]) < int(plain.headers["content-length"]) / 2
    assert {reply.headers["vary"] for reply in (plain, small)} == {"accept-encoding"}
    for accepted, coding in (("gzip;q=0, identity", None), ("br, gzip ; q=0.000", None), ("br, gzip;q=0.01", "gzip")):
        reply = served.http.get("/console/main.js", headers={"Accept-Encoding": accepted})
        assert (reply.headers.get("content-encoding"), reply.content) == (coding, plain.content)


def test_no_browser_interprets_an_answer_as_a_page(served):
    for method in ("list_sessions", "nothing"):
        reply = served.http.post("/rpc", json={"jsonrpc": "2.0", "id": 1, "method": method})
        assert reply.headers["x-content-type-options"] == "nosniff"


def test_files_are_cached_and_the_page_is_revalidated(served):
    page = served.http.get("/console/")
    assert page.headers["cache-control"] == "no-cache"
    named = re.findall(r'(?:src|href)="([^#"]+)"', page.text)
    assert {name.partition("/")[2] for name in named} == {"icon.svg", "main.js", "runs.css", "style.css"}
    (folder,) = {name.partition("/")[0] for name in named}
    for name in (*FILES, *(path.replace("/console/", "/") for path in VIEWS)):
        reply = served.http.get(f"/console/{folder}/{name}")
        assert (reply.status_code, reply.headers["cache-control"]) == (200, "max-age=31536000, immutable")
    reply = served.http.get(f"/console/{'0' * len(folder)}/main.js")  # the folder of another server version
    assert (reply.text, reply.headers["cache-control"]) == (FILES["main.js"], "no-cache")


@pytest.mark.parametrize("path", ["main", "../settings.py", "%2e%2e/settings.py", "/etc/passwd", "main.js/", ".js"])
def test_only_files_of_the_console_are_served(served, path):
    reply = served.http.get(f"/console/{path}")
    assert reply.status_code == 404
    assert reply.json()["error"]["data"] == {"status": 404}


@pytest.mark.parametrize("path", ["/", "/console/", "/console/main.js", "/rpc"])
def test_console_has_the_host_and_origin_rules_of_rpc(served, path):
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        assert served.http.get(path, headers=headers | HTML).status_code == 403
    assert served.http.post("/console/").status_code == 405


def test_setting_disables_the_console(tmp_path):
    with server_process.served(tmp_path, "--store", "memory:", TOOLPACK_CONSOLE="false") as running:
        for path in ("/", "/console", "/console/", "/console/main.js"):
            assert running.http.get(path, headers=HTML).status_code == 404
        assert running.http.get("/rpc", headers=HTML).status_code == 405


def test_console_needs_no_token(tmp_path):
    with server_process.served(tmp_path, "--store", "memory:", TOOLPACK_TOKENS="ann:ann-secret") as running:
        assert running.http.get("/console/main.js").status_code == 200
        assert running.http.post("/rpc", json={}).status_code == 401


def test_no_script_turns_text_into_markup_or_code():
    words = (
        r"(?:inner|outer)HTML|insertAdjacent|document\.write|ContextualFragment|DOMParser|srcdoc|\beval\(|Function\("
    )
    matches = {name: re.findall(words, text) for name, text in SCRIPTS.items()}
    assert {name: words for name, words in matches.items() if words} == {}


def test_console_loads_nothing_from_other_servers():
    addresses = {name: re.findall(r"""(?:https?:)?//[\w.-]+\.\w+[^\s"']*""", text) for name, text in FILES.items()}
    assert {name for name, urls in addresses.items() if urls} == {"icon.svg", "runs_chart.js"}
    assert {urls for each in addresses.values() for urls in each} == {"http://www.w3.org/2000/svg"}
    imported = {
        module
        for text in SCRIPTS.values()
        for module in re.findall(r'^(?:import|\}) .*"(?:\./|\.\./\.\./)(.*)";$', text, re.MULTILINE)
    }
    referred = set(re.findall(r'(?:src|href)="(?!#)([^"]+)"', FILES["index.html"]))
    assert imported | referred == {*FILES, *(f"vendored/{name}" for name in USED)} - {"index.html"}
    for name in USED:  # Vendored files are the published ones, and they import no file from elsewhere.
        text = (VENDORED / name).read_text(encoding="utf-8")
        for module in re.findall(r'^import .* from [\'"](.*)[\'"];$', text, re.MULTILINE):
            assert (VENDORED / name).parent.joinpath(module).is_file()
    assert "Redistribution and use in source and binary forms" in (VENDORED / "jsdiff" / "LICENSE").read_text()


def test_lines_have_at_most_120_columns():
    long = [(name, line) for name, text in FILES.items() for line in text.splitlines() if len(line) > 120]
    assert [line for name, line in long if not name.startswith("icon.")] == []


@pytest.mark.heavy
def test_formatter_linter_and_types_report_nothing(tmp_path):
    if shutil.which("npm") is None:
        without("no npm here: the console's scripts aren't checked")
    for folder, names in {CHECKS: ["package.json", "biome.json", "tsconfig.json"], FOLDER: FILES}.items():
        for name in names:
            shutil.copy(folder / name, tmp_path)
    for name, path in VIEWS.items():  # the checks need all files in the folder from which they are served
        target = tmp_path / "views" / name.split("/")[1] / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    for name in USED:
        target = tmp_path / "vendored" / name.replace(".js", ".d.ts")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKS / "jsdiff.d.ts", target)
    quiet = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock"]
    subprocess.run(quiet, cwd=tmp_path, check=True, timeout=PATIENCE)
    checked = subprocess.run(["npm", "run", "check"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def colours(text):
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", text))


def luminance(colour):
    channels = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    darker, lighter = sorted([luminance(one), luminance(other)])
    return (lighter + 0.05) / (darker + 0.05)


def test_text_has_wcag_aa_contrast_in_light_and_dark():
    light, dark = FILES["style.css"].split("@media (prefers-color-scheme: dark)")
    plain = ["page", "panel", "sunk", "chosen"]
    pairs = [*itertools.product(["text", "soft", "accent"], plain), ("on-accent", "accent")]
    pairs += [
        *itertools.product(["good", "bad", "mark"], plain),
        *((role, f"{role}-back") for role in ("good", "bad", "mark")),
    ]
    pairs += [
        *itertools.product(["text", "soft", "good", "bad"], ["good-back", "bad-back", "mark-back"]),
        ("panel", "text"),
    ]
    for scheme in (colours(light), colours(light) | colours(dark.split("}")[0])):
        weak = {pair: round(contrast(*(scheme[name] for name in pair)), 2) for pair in pairs}
        assert {pair: ratio for pair, ratio in weak.items() if ratio < 4.5} == {}


def test_readme_shows_a_picture_of_the_console():
    picture = FOLDER.parents[2] / "docs" / "evaluate" / "console.png"
    assert "](docs/evaluate/console.png)" in (FOLDER.parents[2] / "README.md").read_text(encoding="utf-8")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 200_000
