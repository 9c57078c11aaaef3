"""The command line: its output and its errors. Each error is one sentence and exits with status 1."""

import fcntl
import http.server
import json
import socket
import subprocess
import threading
from pathlib import Path
from typing import ClassVar

import click
import pytest
import server_process
import serving
from command_line import invoke, run, run_here
from patience import PATIENCE

from toolpack_server.base.companions import COMMANDS, companions
from toolpack_server.base.settings import Settings
from toolpack_server.cli.call import _owner
from toolpack_server.cli.serve import banner
from toolpack_server.packs.loading import load_catalog
from toolpack_server.wiring.installed import load_features

FIXTURES = ["--pack-dir", str(serving.PACKS), "--packs", "ledger,vault"]


def broken_packs(folder):
    (folder / "broken_syntax.py").write_text('"""Broken."""\n\ndef (:\n')
    (folder / "broken_import.py").write_text('"""Broken."""\n\nimport a_module_that_is_nowhere\n')
    (folder / "broken_functions.py").write_text(
        '"""Broken twice."""\nfrom toolpack_server import Toolpack\n\ntoolpack = Toolpack("broken")\n\n\n'
        "@toolpack.function\ndef bare(): ...\n\n\n"
        '@toolpack.function\ndef vague(x: int):\n    """Do it."""\n'
    )
    return folder


def test_check_prints_file_function_and_remedy_of_each_problem(tmp_path):
    result = run("check", "--pack-dir", str(broken_packs(tmp_path)))
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    assert len(lines) == 4
    assert f"{tmp_path}/broken_functions.py:7: bare: there is no docstring: add one" in result.stderr
    assert f"{tmp_path}/broken_functions.py:11: vague: parameter `x` has no default and no description" in result.stderr
    assert (
        f"{tmp_path}/broken_import.py:3: ModuleNotFoundError: No module named 'a_module_that_is_nowhere'"
        in result.stderr
    )
    assert f"{tmp_path}/broken_syntax.py:3: SyntaxError: " in result.stderr
    assert "Traceback" not in result.stderr


def test_serve_prints_the_first_problem_and_counts_the_rest(tmp_path):
    result = run("serve", "--pack-dir", str(broken_packs(tmp_path)), "--data-dir", str(tmp_path / "data"))
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "(3 more: see `toolpack-server check`)" in result.stderr
    assert not (tmp_path / "data").exists()


def test_check_reports_that_there_are_no_problems():
    result = invoke("check", "--packs", "bank")
    assert result.exit_code == 0, result.output
    assert result.stdout == "1 toolpack with 13 functions: no problems.\n"


def test_list_shows_packs_and_functions():
    result = invoke("list", *FIXTURES)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == f"ledger ({serving.PACKS}/ledger.py)"
    assert "  add(amount): Add an entry and get the sum." in lines
    assert "  total() [read-only]: Return the sum of all entries." in lines
    assert f"vault ({serving.PACKS}/vault.py, opt-in)" in lines


def test_list_shows_the_functions_of_moving_worlds():
    result = invoke("list", "--packs", "errands")
    assert result.exit_code == 0, result.output
    names = [line for line in result.stdout.splitlines() if not line.startswith((" ", "note: "))]
    assert [name.partition(" ")[0] for name in names] == ["errands", "world"]


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["add", "amount=4"], 4),
        (["total"], 0),
        (["echo", "value=text"], "text"),
        (["echo", 'value="4"'], "4"),
        (["echo", 'value={"a": [1, null]}'], {"a": [1, None]}),
        (["echo", "value=a=b"], "a=b"),
        (["take_gold", "amount=1"], 1),
    ],
)
def test_call_runs_a_function_locally_and_prints_its_result(arguments, printed):
    result = invoke("call", *FIXTURES, *arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == printed


def test_call_acts_as_the_agent(tmp_path):
    (tmp_path / "town.py").write_text(
        """
from toolpack_server import Toolpack

toolpack = Toolpack("town")


@toolpack.function
def knock() -> str:
    \"\"\"Knock at the door.\"\"\"
    return "knocked"


toolpack.add_event(name="open", call="knock", by="agent", notice="The door opens.")
"""
    )
    for flags, news in ([], []), (["--as-agent"], ["The door opens."]):
        result = invoke("call", "--pack-dir", str(tmp_path), *flags, "knock", "--", "wait")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout.removeprefix('"knocked"\n'))["news"] == news
    result = invoke("call", *FIXTURES, "--as-agent", "take_gold", "amount=1")
    assert json.loads(result.stdout) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fly"], "ToolNotFoundError: The requested function `fly` is not available."),
        (["add_then", "how=raise"], "LookupError: half of it is done"),
        (["add", "amount"], "'amount' is not of the form name=value."),
        (["add", "--session", "x"], "--session needs --url"),
        (["add", "amount=1", "--url", "http://127.0.0.1:1"], "can't be reached"),
        (["add", "amount=1", "--url", "nonsense"], "--url is not of the form http://host:port."),
        (["add", "amount=1", "--url", "http://127.0.0.1:1", "--token", "a\nb"], "must consist of visible ASCII"),
        (["add", "amount=\udcff"], "isn't UTF-8"),
        (["\udcff"], "isn't UTF-8"),
        (["add", "amount=NaN"], "input_value='NaN'"),
    ],
)
def test_call_prints_errors_to_stderr(arguments, message):
    result = invoke("call", *FIXTURES, *arguments)
    assert result.exit_code != 0
    assert message in result.stderr
    assert result.stdout == ""


class _Redirecting(http.server.BaseHTTPRequestHandler):
    """Handler that redirects each request to another path of its server, and records the requests."""

    seen: ClassVar[list] = []

    def do_POST(self):
        self.seen.append((self.command, self.path))
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST  # noqa: N815 - the base class calls this name

    def log_message(self, *_args):
        pass


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_call_does_not_send_its_token_to_a_redirect_target(status):
    with http.server.HTTPServer(("127.0.0.1", 0), _Redirecting) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/{status}"
            result = invoke("call", "--url", url, "--token", "one-token", "--session", "x", "add", "amount=1")
        finally:
            server.shutdown()
            thread.join()
    assert result.exit_code == 1
    assert f"{url} redirects to /elsewhere: give the server's own address." in result.stderr
    assert ("POST", f"/{status}/rpc") in _Redirecting.seen
    assert not [path for _, path in _Redirecting.seen if path == "/elsewhere"]


class _Answering(http.server.BaseHTTPRequestHandler):
    """Handler that answers each request with the same body."""

    answer = b""

    def do_POST(self):
        self.wfile.write(self.answer)

    def log_message(self, *_args):
        pass


@pytest.fixture(scope="module")
def serve_answer():
    """Serve one fixed answer. Yield a function that sets the answer and returns the URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answering) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()

        def answer(text):
            _Answering.answer = text.encode()
            return f"http://127.0.0.1:{server.server_port}"

        yield answer
        server.shutdown()
        thread.join()


HEAD = "HTTP/1.0 200 OK\r\nContent-Length: 999\r\n\r\n"


def test_token_for_a_server_comes_from_an_option_or_a_variable(serve_answer):
    url = serve_answer('HTTP/1.0 401 Unauthorized\r\n\r\n{"error": {"message": "Send the header Authorization."}}')
    result = invoke("session", "list", "--url", url)
    message = f"{url} requires a valid token: give one with --token, or as TOOLPACK_TOKEN."
    assert (result.exit_code, result.stderr) == (1, f"Error: {message}\n")


@pytest.mark.parametrize("command", [["call", "add"], ["list"], ["session", "list"], ["session", "trace", "x"]])
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ('{"result": null}', "have the expected form (result: "),
        ('{"result": {"session_id": 1}}', "have the expected form (result"),
        ('{"result": [{"name": "x"}]}', "have the expected form (result"),
        ('{"result": "text"}', "have the expected form (result: "),
        ('{"error": "text"}', "a JSON-RPC response"),
        ('{"error": {"message": 1}}', "a JSON-RPC response"),
        ('{"error": {"message": "No.", "data": [1]}}', "No."),
        ("[" * 100_000, "isn't JSON"),
        ("no HTTP", "can't be reached: no HTTP. Is the server running?"),
        ("", "can't be reached: Remote end closed connection without response. Is the server running?"),
        (HEAD + "{", "can't be reached: IncompleteRead(1 bytes read, 998 more expected). Is the server running?"),
    ],
)
def test_reply_of_the_wrong_shape_is_a_one_sentence_error(serve_answer, command, answer, message):
    is_http = answer[:1] in {"{", "["}
    url = serve_answer(f"HTTP/1.0 200 OK\r\n\r\n{answer}" if is_http else answer)
    result = invoke(*command, "--url", url)
    assert result.exit_code == 1
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_serve_prints_address_toolpacks_and_a_first_command(tmp_path):
    with server_process.served(tmp_path, "--store", "memory:") as server:
        first, *rest = server.banner.splitlines()
        assert first == f"Toolpack Server listens on {server.url}, store memory:"
        assert "  vault: 4 functions (opt-in)" in rest
        assert rest[-3] == "Try:"
        process = subprocess.run(rest[-2], shell=True, capture_output=True, text=True, timeout=PATIENCE, check=True)
        session = json.loads(process.stdout)["result"]
        assert session["toolpacks"] == ["ledger", "bank"]
        result = invoke("call", "--url", server.url, "--session", session["session_id"], "add", "amount=4")
        assert json.loads(result.stdout) == 4
        assert server.call(session["session_id"], "total")["result"] == 4
        away = invoke("call", "--url", server.url, "add", "amount=5")
        assert json.loads(away.stdout) == 5
        assert [s["session_id"] for s in server.rpc("list_sessions")] == [session["session_id"]]
        unknown = invoke("call", "--url", server.url, "--session", "unknown", "add", "amount=5")
        assert unknown.exit_code == 1
        assert "No session has this id" in unknown.stderr


def test_serve_does_not_print_the_password_of_the_store(capsys):
    banner(Settings(store="redis://:s3cret@host"), load_features(), load_catalog().inventory(), 8000)
    first, *_ = capsys.readouterr().out.splitlines()
    assert first == "Toolpack Server listens on http://127.0.0.1:8000, store redis://…@host"


@pytest.mark.parametrize("tokens", [{}, {"me": "abcdefgh"}])
def test_serve_prints_an_address_for_an_mcp_client(capsys, tokens):
    banner(Settings(tokens=tokens), load_features(), load_catalog((), ("bank",)).inventory(), 8000)
    token = ", with the header Authorization: Bearer <token>" if tokens else ""
    *_, last = capsys.readouterr().out.splitlines()
    assert last == f"Or give this to an MCP client{token}: http://127.0.0.1:8000/mcp?packs=bank&session=mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--host", "0.0.0.0"], "docker run -p 8000:8000 -v toolpack-data:/data -e TOOLPACK_TOKENS="),
        (["serve", "--port", "70000"], "TOOLPACK_PORT: "),
        (["serve", "--store", "mongodb://x"], "No store has URLs that begin with"),
        (["serve", "--store", "memory:", "--workers", "2"], "can't share memory"),
        (["serve", "--pack-dir", "nowhere"], "nowhere is not a folder"),
        (["serve", "--packs", "nowhere"], "no module has a toolpack 'nowhere'; found: "),
    ],
)
def test_serve_rejects_invalid_settings_in_one_sentence(tmp_path, arguments, message):
    result = run_here(*arguments, "--data-dir", str(tmp_path), TOOLPACK_PORT="0")
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.heavy
@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("flags", [["--store", "memory:"], [], ["--workers", "2"]], ids=" ".join)
def test_serving_emits_no_warning(tmp_path, flags):
    with server_process.served(tmp_path, *flags) as server:
        session_id = server.rpc("create_session", toolpacks=["ledger"])["session_id"]
        assert server.call(session_id, "add", amount=1)["error"] is None
        server.process.terminate()
        assert server.process.wait(serving.PATIENCE) == 0
    assert "Warning" not in (tmp_path / "server.log").read_text()


def test_call_shows_the_line_where_a_function_raised():
    result = run("call", *FIXTURES, "add_then", "how=raise")
    assert result.returncode == 1
    first, *middle, last = result.stderr.splitlines()
    assert first == "Traceback (most recent call last):"
    assert f'File "{serving.PACKS}/ledger.py", line ' in middle[0]
    assert middle[0].endswith(", in add_then")
    assert not [line for line in middle if "/toolpack_server/" in line]
    assert last == "LookupError: half of it is done"
    assert result.stderr.count(last) == 1


def test_call_suggests_similar_function_names():
    result = run("call", *FIXTURES, "ad", "amount=1")
    assert result.returncode == 1
    assert result.stderr.startswith("ToolNotFoundError: The requested function `ad` is not available. Did you mean add")


def test_call_verifies_read_only_functions():
    result = invoke("call", "--pack-dir", str(serving.PACKS), "--packs", "liars", "search", "word=a")
    assert result.exit_code == 1
    assert result.stderr.endswith("ReadOnlyError: search promised read_only=True but changed env.seen\n")


# Failed starts: one sentence, no traceback.


def nothing(_folder):
    return []


def a_file_as_data(folder):
    (folder / "file").touch()
    return ["--data-dir", str(folder / "file")]


def no_database(folder):
    (folder / "sessions.db").write_text("no database" * 100)
    return ["--data-dir", str(folder)]


def two_workers_without_a_database(folder):
    return [*no_database(folder), "--workers", "2"]


def a_store_in_use(folder):
    (folder / "sessions.db.lock").touch(mode=0o600)
    lock = (folder / "sessions.db.lock").open()
    resources.append(lock)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return ["--data-dir", str(folder)]


def a_port_in_use(folder):
    listener = socket.create_server(("127.0.0.1", 0))
    resources.append(listener)
    return ["--data-dir", str(folder), "--port", str(listener.getsockname()[1])]


resources = []


@pytest.fixture
def release_resources():
    yield
    while resources:
        resources.pop().close()


@pytest.mark.parametrize(
    ("prepare", "arguments", "message"),
    [
        (a_file_as_data, [], "can't be opened: its folder is a file. Choose another --store."),
        (no_database, [], "sessions.db can't be opened: file is not a database. Choose another file."),
        (two_workers_without_a_database, [], "can't be opened: file is not a database. Choose another file."),
        (a_store_in_use, [], "is in use by another toolpack-server, process "),
        (a_port_in_use, [], "Address already in use. Stop what listens there, such as another toolpack-server, or "),
        (nothing, ["--port", "many"], "Invalid value for '--port': 'many' is not a valid integer."),
        (nothing, ["--nonsense"], "No such option"),
        (nothing, ["--store", "redis://127.0.0.1:1"], "Correct --store, or start it."),
        (nothing, ["--log", "x"], "No such option"),
    ],
)
@pytest.mark.usefixtures("release_resources")
def test_failed_start_prints_only_one_sentence(tmp_path, prepare, arguments, message):
    variables = {"TOOLPACK_PORT": "0", "TOOLPACK_SECRET_KEY": "0123456789abcdef"}
    result = (run_here if prepare is nothing else run)(
        "serve", "--packs", "bank", *prepare(tmp_path), *arguments, **variables
    )
    assert result.returncode != 0
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("toolpack-server: ")
    assert message in line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="it is Linux's")
@pytest.mark.parametrize("words", [["list", *FIXTURES], ["token", "ann"], ["call", *FIXTURES, "add", "amount=1"]])
def test_failed_write_to_stdout_is_a_one_sentence_error(words):
    with Path("/dev/full").open("w") as full:
        command, environment = server_process.command(*words), server_process.environment()
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "toolpack-server: No space left on device."
    assert "Traceback" not in ended.stderr


def test_command_of_a_missing_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("toolpack_server.cli.entry_points", lambda **_: ())
    for name, package in companions(COMMANDS).items():
        result = invoke(name, "--help")
        assert result.exit_code == 1
        assert result.output == (
            f"Error: {name} comes with {package}, which isn't installed: install the wheel of this version, or, in a "
            f"clone of the repository, ./packages/{package}.\n"
        )
        assert (Path(__file__).parents[2] / "packages" / package / "pyproject.toml").exists()


def test_ambiguous_function_prefers_options_and_avoids_opt_in():
    packs = [{"name": name, "functions": ["look"], "opt_in": name == "shy"} for name in ("shop", "shy")]
    assert [_owner(packs, "look", options) for options in ({}, {"shy": {}}, {"shop": {}})] == ["shop", "shy", "shop"]
    packs.append({**packs[0], "name": "market"})
    assert _owner(packs, "look", {"market": {}}) == "market"
    with pytest.raises(click.UsageError, match=r"2 toolpacks have a function 'look': call shop\.look or market\.look"):
        _owner(packs, "look", {})
