"""Receipts: files that prove a score, because any reader can run their sessions again.

A forged receipt is rejected, or running it again shows a difference.
"""

import asyncio
import contextlib
import copy
import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import click
import pytest
import redis_server
import server_process
from command_line import invoke, run, run_here
from hypothesis import given
from hypothesis import strategies as st

from toolpack_server.cli.local import memory_settings
from toolpack_server.cli.requests import local
from toolpack_server.features.replay.receipts import keys
from toolpack_server.features.replay.receipts import receipt as receipts
from toolpack_server.features.replay.receipts.command import _replay_session
from toolpack_server.features.replay.receipts.entries import create_entry, find_difference
from toolpack_server.features.replay.receipts.keys import SigningKey
from toolpack_server.features.replay.receipts.receipt import ReceiptRefusedError, canonical, read
from toolpack_server.packs.loading import load_catalog
from toolpack_server.rpc.caller import Caller
from toolpack_server.wiring.service import Service

PACKS = ["--pack-dir", str(server_process.serving.PACKS), "--packs", "ledger,vault,bank"]
TASKS = ("bank/save-300", "bank/pay-dentist")
SEEDS = {"seed": "first", "clock": "2026-03-02T09:30:00Z"}


def play(server, **options):
    """Play each task twice: by its solution, and without any call. The calls have call_ids, as the client's have."""
    for task in TASKS:
        for number in range(2):
            labels = {"run": "first", "rollout": str(number)}
            session = server.rpc("create_session", task=task, labels=labels, **options)
            session_id = session["session_id"]
            solution = server.rpc("get_solution", session_id=session_id)
            server.rpc("add_message", session_id=session_id, role="assistant", content="I look.", metadata={"n": 1})
            server.call(session_id, "get_balance", {"call_id": f"look-{session_id}"})
            for call in [] if number else solution["calls"]:
                server.call(session_id, call["function"], **call["kwargs"])
            params = {"answer": solution["answer"], "call_id": f"answer-{session_id}"}
            body = {"jsonrpc": "2.0", "id": 1, "method": "submit_answer", "params": params}
            assert server.http.post(session["agent_path"], json=body).json()["result"] is True


def write_receipt(server, folder):
    """Write a receipt of the sessions on a server. Return its file and the result of the command."""
    file = folder / "receipt.json"
    ended = invoke("evaluate", "--url", server.url, "--receipt", file, "--sign-key", folder / "receipt.key")
    assert ended.exit_code == 0, ended
    return file, ended


@pytest.fixture(scope="module")
def valid_receipt(tmp_path_factory):
    """Return a receipt. Its server and the server's data no longer exist."""
    folder, data = tmp_path_factory.mktemp("receipt"), tmp_path_factory.mktemp("server")
    with server_process.served(data) as server:
        play(server)
        file, ended = write_receipt(server, folder)
    shutil.rmtree(data)
    return SimpleNamespace(
        file=file, text=file.read_bytes(), json=json.loads(file.read_bytes()), key=folder / "receipt.key", said=ended
    )


def sign_again(value, key):
    """Sign a receipt again, as anyone can with their own key."""
    unsigned = {name: each for name, each in value.items() if name != "signature"} | {"key": key.public}
    return canonical(unsigned | {"signature": key.sign(canonical(unsigned))}) + b"\n"


def refusal(tmp_path, text, key=None):
    """Return the error for a file that is rejected before anything runs."""
    (tmp_path / "forged.json").write_bytes(text)
    with mock.patch("toolpack_server.features.replay.receipts.command.Service", side_effect=AssertionError):
        ended = run_here("verify", *PACKS, *(["--key", key] if key else []), tmp_path / "forged.json")
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    return line.removeprefix(f"toolpack-server: {tmp_path / 'forged.json'} ")


# Valid receipts


def test_receipt_is_verified_without_its_server(valid_receipt):
    ended = run("verify", *PACKS, "--key", valid_receipt.json["key"], valid_receipt.file)
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    assert ended.stdout.splitlines()[-1] == "equal: all 4 sessions"
    assert "bank/save-300     2       1        0.500" in ended.stdout
    assert "whose key" not in ended.stdout


def test_sessions_that_differ_only_in_times_are_reported(valid_receipt, tmp_path):
    value = copy.deepcopy(valid_receipt.json)
    value["sessions"].insert(1, value["sessions"][0])
    times = copy.deepcopy(value["times"]["sessions"][0])
    times[-1][1] += 1.0
    value["times"]["sessions"].insert(1, times)
    (tmp_path / "twice.json").write_bytes(sign_again(value, SigningKey(tmp_path / "key")))
    ended = run_here("verify", *PACKS, "--no-sandbox", tmp_path / "twice.json")
    assert "1 of 5 sessions differ from another one only in their times. They might be copies." in ended.stdout


def test_verify_prints_json_and_writes_an_html_page(valid_receipt, tmp_path):
    ended = run_here("verify", *PACKS, "--no-sandbox", "--json", "--html", tmp_path / "page.html", valid_receipt.file)
    report = json.loads(ended.stdout)
    assert (report["equal"], report["key"], len(report["sessions"])) == (True, valid_receipt.json["key"], 4)
    assert [each["verdict"]["passed"] for each in report["sessions"]] == [True, False, True, False]
    message = f"4 of 4 sessions are equal to those in the receipt with key {report['key']}."
    assert message in (tmp_path / "page.html").read_text()


def test_verification_ignores_request_limits_of_this_server(valid_receipt):
    """A server with higher limits may have written a receipt with larger sessions than this server accepts."""
    ended = run_here("verify", *PACKS, "--no-sandbox", valid_receipt.file, TOOLPACK_MAX_BODY_BYTES="1024")
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="it is Linux's")
def test_full_disk_for_the_page_is_not_a_difference(valid_receipt):
    ended = run_here("verify", *PACKS, "--no-sandbox", "--html", "/dev/full", valid_receipt.file)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "toolpack-server: No space left on device.\n"


def test_key_is_made_once_and_readable_only_by_its_user(valid_receipt, tmp_path):
    assert stat.S_IMODE(valid_receipt.key.stat().st_mode) == 0o600
    assert (
        valid_receipt.said.stderr.strip()
        == f"Receipt of 4 sessions, signed with key {SigningKey(valid_receipt.key).public}"
    )
    valid_receipt.key.chmod(0o644)
    try:
        ended = run_here("evaluate", "--receipt", tmp_path / "x", "--sign-key", valid_receipt.key)
    finally:
        valid_receipt.key.chmod(0o600)
    assert ended.returncode == 1
    assert ended.stderr.startswith("toolpack-server: Other users can read the key file")
    ended = run_here("evaluate", "--sign-key", valid_receipt.key)
    assert "--sign-key signs a receipt: also give --receipt." in ended.stderr


def unlike(value):
    """Return the parts of a receipt that must be equal in two receipts of the same run."""
    return {name: each for name, each in value.items() if name not in {"times", "key", "signature"}}


def receipt_on(folder, *flags, seeds=None, **variables):
    folder.mkdir()
    with server_process.served(folder, *flags, **variables) as server:
        play(server, **(seeds or {}))
        return write_receipt(server, folder)[0].read_bytes()


@pytest.mark.heavy
@pytest.mark.parametrize("seeds", [pytest.param(None, marks=pytest.mark.long), SEEDS], ids=["unseeded", "seeded"])
def test_receipts_of_two_servers_differ_only_in_times_and_keys(seeds, tmp_path, redis_url):
    if seeds and sys.platform != "linux":
        pytest.skip("seeded sessions need executors")
    where = {
        "TOOLPACK_SECRET_KEY": "k" * 32,
        "PYTHONHASHSEED": "7",
        "TOOLPACK_ISOLATION": "process" if seeds else "thread",
    }
    first = receipt_on(tmp_path / "one", "--store", redis_server.emptied(redis_url), seeds=seeds, **where)
    where = {"TOOLPACK_ISOLATION": "process" if sys.platform == "linux" else "thread", "PYTHONHASHSEED": "11"}
    other = receipt_on(tmp_path / "other", seeds=seeds, **where)
    assert first != other
    texts = [canonical(unlike(json.loads(text))) for text in (first, other)]
    assert texts[0] == texts[1]
    assert (b'"state":' in texts[0]) is (seeds is not None)
    (tmp_path / "receipt.json").write_bytes(first)
    assert run("verify", *PACKS, tmp_path / "receipt.json").returncode == 0


# Forks


FAMILY_SEEDS = pytest.param(SEEDS, marks=pytest.mark.skipif(sys.platform != "linux", reason="they need executors"))


@pytest.mark.parametrize("seeds", [{}, FAMILY_SEEDS])
def test_receipt_of_a_fork_has_its_whole_past(tmp_path, seeds):
    async def results():
        isolation = "process" if seeds else "thread"
        service = Service(memory_settings((server_process.serving.PACKS,), "ledger,bank", isolation=isolation))
        send = local(service, Caller())

        async def call(session_id, function="move_to_savings", **kwargs):
            await send("run_function", {"session_id": session_id, "function": function, "kwargs": kwargs})

        async with service.running():
            root = (await send("create_session", {"task": TASKS[0], **seeds}))["session_id"]
            await call(root, amount="250.00")
            await call(root, amount="9.00")
            await send("reset_session", {"session_id": root, "version": 1})
            await call(root, "get_balance")
            (fork,) = await send("fork_session", {"session_id": root})
            await call(root, amount="8.00")  # This call isn't part of the fork's past.
            await call(fork["session_id"], amount="40.00")
            await call(fork["session_id"], amount="7.00")
            other = {"perturbations": {"variant": "lost"}} | ({"seed": "other"} if seeds else {})
            (second_fork,) = await send("fork_session", {"session_id": fork["session_id"], "version": 1, **other})
            await call(second_fork["session_id"], amount="10.00")
            await send("submit_answer", {"answer": "Done."}, second_fork["agent_path"])
            summaries = (await send("summarize_sessions", {"evaluate": True, "order": "-created"}))["sessions"][::-1]
            entries_of_sessions = [await create_entry(send, each) for each in summaries]
            for each in summaries:
                await send("close_session", {"session_id": each["session_id"]})
            reruns = [
                await _replay_session(service, send, 0, entry, times, None) for entry, times, _ in entries_of_sessions
            ]
            last, times, _ = entries_of_sessions[-1]
            forged = last.model_copy(deep=True)
            forged.forked_from[1].records[0]["kwargs"]["amount"] = "41.00"
            return entries_of_sessions, reruns, await _replay_session(service, send, 0, forged, times, None)

    entries_of_sessions, reruns, forged = asyncio.run(results())
    parts = [[len(part.records) for part in entry.parts] for entry, _, _ in entries_of_sessions]
    assert parts == [[5], [4, 2], [4, 1, 2]]
    assert entries_of_sessions[-1][0].details["perturbations"]["variant"] == "lost"
    assert [entry.verdict["passed"] for entry, _, _ in entries_of_sessions] == [False, False, True]
    assert [each["equal"] for each in reruns] == [True] * 3, reruns
    assert [each["verdict"] for each in reruns] == [entry.verdict for entry, _, _ in entries_of_sessions]
    difference = forged["difference"]
    assert (forged["equal"], difference["index"], difference["record"], difference["what"]) == (
        False,
        0,
        "move_to_savings",
        "result",
    )
    entries = [(entry, times) for entry, times, _ in entries_of_sessions]
    key = SigningKey(tmp_path / "key")
    (tmp_path / "receipt.json").write_bytes(
        receipts.write(entries_of_sessions[0][2], entries, "2026-03-02T09:30:00.000Z", key)
    )
    assert len(read(tmp_path / "receipt.json", key.public).sessions) == 3
    value = json.loads((tmp_path / "receipt.json").read_bytes())
    forks = [each for each in value["sessions"] if "forked_from" in each]
    assert len(forks) == 2
    forks[1]["forked_from"][0]["version"] = 9
    difference = "was forked at version 9, but the records before the fork don't have this version."
    assert difference in refusal(tmp_path, sign_again(value, key))


@pytest.mark.parametrize("seeds", [{}, FAMILY_SEEDS])
def test_receipt_of_a_fork_before_a_record(seeds):
    async def results():
        isolation = "process" if seeds else "thread"
        service = Service(memory_settings((server_process.serving.PACKS,), "bank", isolation=isolation))
        send = local(service, Caller())

        async def call(session_id, function, **kwargs):
            await send("run_function", {"session_id": session_id, "function": function, "kwargs": kwargs})

        async with service.running():
            root = (await send("create_session", {"task": TASKS[0], **seeds}))["session_id"]
            for function, kwargs in [("get_balance", {}), ("move_to_savings", {"amount": "300.00"}), ("get_iban", {})]:
                await call(root, function, **kwargs)
            await call(root, "get_savings_balance")
            for before in (0, 1, 3):
                (fork,) = await send("fork_session", {"session_id": root, "before": before})
                await call(fork["session_id"], "get_savings_balance")
            summaries = (await send("summarize_sessions", {"evaluate": True, "order": "-created"}))["sessions"][::-1]
            entries = [await create_entry(send, each) for each in summaries]
            for each in summaries:
                await send("close_session", {"session_id": each["session_id"]})
            return entries, [await _replay_session(service, send, 0, *entry[:2], None) for entry in entries]

    entries, reruns = asyncio.run(results())
    assert [[len(part.records) for part in entry.parts] for entry, _, _ in entries] == [[4], [0, 1], [1, 1], [3, 1]]
    assert [each["equal"] for each in reruns] == [True] * 4, reruns


def test_fork_with_an_unreadable_parent_is_rejected(tmp_path):
    with server_process.served(tmp_path) as server:
        session_id = server.rpc("create_session", task=TASKS[0])["session_id"]
        (fork,) = server.rpc("fork_session", session_id=session_id)
        server.rpc("close_session", session_id=session_id)
        words = ["evaluate", "--url", server.url, "--sign-key", tmp_path / "k", "--receipt", tmp_path / "r"]
        ended = run_here(*words)
        assert ended.returncode == 1
        assert f"its parent {session_id} can't be read" in ended.stderr
        bundle = server.rpc("export_bundle", session_id=fork["session_id"])["bundle"]
        server.rpc("close_session", session_id=fork["session_id"])
        server.rpc("import_bundle", bundle=bundle)
        assert "is a fork that was imported in a bundle." in run_here(*words).stderr
        assert not (tmp_path / "r").exists()
        assert "There are no sessions for a receipt" in run_here(*words, "--label", "run=none").stderr


# Receipts that are rejected before anything runs

NOT_OBJECT = "isn't a receipt: it isn't a JSON object, or is nested more than 200 deep."
CHANGED = "has a wrong signature: it was changed, or its key didn't sign it."


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"passed":false,"perturbed"', '"passed":true,"perturbed"'),
        ('"amount":"300.00"', '"amount":"301.00"'),
        ('"result":"1840.25"', '"result":"1840.26"'),
        ('"bank":{"digest":"', '"bank":{"digest":"0'),
        ('"run":"first"', '"run":"second"'),
    ],
)
def test_edited_receipt_is_rejected(valid_receipt, tmp_path, old, new):
    assert old in valid_receipt.text.decode()
    assert refusal(tmp_path, valid_receipt.text.replace(old.encode(), new.encode())) == CHANGED


def test_missing_cut_or_foreign_signature_is_rejected(valid_receipt, tmp_path):
    other = SigningKey(tmp_path / "other.key")
    unsigned = {name: each for name, each in valid_receipt.json.items() if name != "signature"}
    assert refusal(tmp_path, canonical(unsigned) + b"\n") == "isn't signed."
    cut = valid_receipt.json | {"signature": valid_receipt.json["signature"][:-2]}
    for forged in (
        cut,
        valid_receipt.json | {"signature": "x" * 128},
        valid_receipt.json | {"key": other.public},
        valid_receipt.json | {"key": "z"},
    ):
        assert refusal(tmp_path, canonical(forged) + b"\n") == CHANGED
    assert refusal(tmp_path, canonical(valid_receipt.json | {"signature": 7}) + b"\n") == "isn't signed."
    resigned = sign_again(valid_receipt.json, other)
    assert refusal(tmp_path, resigned, valid_receipt.json["key"]).startswith(
        f"was signed with the key {other.public}, not with"
    )
    named = tmp_path / "whose"
    named.write_text(f"{valid_receipt.json['key']}\n")
    assert refusal(tmp_path, resigned, named).startswith(f"was signed with the key {other.public}, not with")
    ended = run_here("verify", "--key", "nobody", valid_receipt.file)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "--key nobody is neither a key, 64 hexadecimal digits, nor a file" in ended.stderr


@pytest.mark.parametrize("sign", [0, 0x80])
@pytest.mark.parametrize("point", sorted(keys._SMALL_ORDER), ids=bytes.hex)
def test_key_of_small_order_is_rejected(point, sign):
    """With such a key A, R = A and S = 0 are a valid signature of some texts, and a library may accept it."""
    key = point[:-1] + bytes([point[-1] | sign])
    for first in keys._SMALL_ORDER:
        signature = first.hex() + "00" * 32
        assert not any(keys.is_valid_signature(key.hex(), signature, b"%d" % number) for number in range(8))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "isn't a receipt: it isn't JSON."),
        (b"{", "isn't a receipt: it isn't JSON."),
        (b"\xff\xfe", "isn't a receipt: it isn't JSON."),
        (b"7", NOT_OBJECT),
        (b'{"format":"toolpack-receipt-2"}', "doesn't have the format 'toolpack-receipt-1' of this version."),
        (b'{"a":' * 300 + b"1" + b"}" * 300, NOT_OBJECT),
        (b"[" * 1_000_000, "isn't a receipt: it isn't JSON."),
        (b'{"a":' + b"9" * 5000 + b"}", "isn't a receipt: it isn't JSON."),
        (b"[" + b"1," * 2_000_001 + b"1]", "isn't a receipt: it has more than 67108864 bytes or 2000000 values."),
        (b" " * (receipts.MAX_BYTES + 1), "isn't a receipt: it has more than 67108864 bytes or 2000000 values."),
    ],
    ids=["empty", "cut", "bytes", "number", "format", "nested", "deep", "digits", "values", "bytes-too-many"],
)  # fmt: skip
def test_file_that_is_no_receipt_is_rejected(text, message, tmp_path):
    assert refusal(tmp_path, text) == message


def test_receipt_must_be_canonical_byte_for_byte(valid_receipt, tmp_path):
    for text in (
        json.dumps(valid_receipt.json).encode(),
        valid_receipt.text[:-1],
        valid_receipt.text.replace(b'{"code"', b'{"code":1,"code"', 1),
    ):
        assert refusal(tmp_path, text) == "was changed: it isn't in canonical form."


def twice(value):
    for of in (value["sessions"], value["times"]["sessions"]):
        of.insert(1, of[0])


def other_order(value):
    for of in (value["sessions"], value["times"]["sessions"]):
        of.reverse()


def nameless(value):
    value["sessions"][0]["toolpacks"].append("../../etc/passwd")


def no_times(value):
    value["times"]["sessions"].pop()


def other_task(value):
    value["sessions"][0]["verdict"]["task"] = "bank/another"


def with_extra_member(value):
    value["sessions"][0]["script"] = "x"


def negative(value):
    value["times"]["sessions"][0][0][1] = -1.0


def no_time(value):
    value["times"]["made"] = "yesterday, by the judge"


def other_time(value):
    value["times"]["sessions"][0][0][0] = "2026-03-02T09:30:00Z\nequal: all"


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (no_time, "isn't a valid receipt, at times.made."),
        (other_time, "isn't a valid receipt, at times.sessions.0.0.0."),
        (twice, "occurs twice"),
        (other_order, "is out of order"),
        (nameless, "has no digest of the toolpack '../../etc/passwd' of session 0."),
        (no_times, "doesn't have a time for each record of its sessions."),
        (other_task, "has a verdict on another task, or of no toolpack."),
        (with_extra_member, "isn't a valid receipt, at sessions.0.script."),
        (negative, "isn't a valid receipt, at times.sessions.0.0.1."),
    ],
)
def test_validly_signed_receipt_must_be_consistent(valid_receipt, tmp_path, forge, message):
    value = copy.deepcopy(valid_receipt.json)
    forge(value)
    assert message in refusal(tmp_path, sign_again(value, SigningKey(tmp_path / "key")))


@given(st.data())
def test_any_changed_byte_is_detected(valid_receipt, tmp_path_factory, data):
    text = bytearray(valid_receipt.text)
    position = data.draw(st.integers(0, len(text) - 1))
    match data.draw(st.sampled_from(["flip", "insert", "delete", "cut"])):
        case "flip":
            text[position] ^= data.draw(st.integers(1, 255))
        case "insert":
            text.insert(position, data.draw(st.integers(0, 255)))
        case "delete":
            del text[position]
        case "cut":
            del text[position:]
    file = tmp_path_factory.getbasetemp() / "changed.json"
    file.write_bytes(text)
    if bytes(text) != valid_receipt.text:
        with pytest.raises(ReceiptRefusedError):
            read(file, None)


# The code that verifies


def test_different_code_is_reported_before_anything_runs(valid_receipt, tmp_path):
    value = copy.deepcopy(valid_receipt.json)
    value["code"]["toolpacks"]["bank"]["digest"] = "0" * 64
    value["code"]["server"]["digest"] = "1" * 64
    value["code"]["python"] = "3.0.0"
    (tmp_path / "r.json").write_bytes(sign_again(value, SigningKey(tmp_path / "key")))
    with mock.patch("toolpack_server.features.replay.receipts.command._verify_sessions", side_effect=AssertionError):
        ended = run_here("verify", *PACKS, "--no-sandbox", tmp_path / "r.json")
    assert ended.returncode == 2
    assert "the toolpack 'bank' is 0.1.0 " in ended.stderr
    assert ", and was 0.1.0 000000000000…" in ended.stderr
    assert " 111111111111…; " in ended.stderr
    assert ", and was 3.0.0; the server is " in ended.stderr
    ended = run_here("verify", *PACKS, "--no-sandbox", "--other-code", tmp_path / "r.json")
    assert ended.returncode == 0
    assert "Other code: the toolpack 'bank' is 0.1.0 " in ended.stdout


def test_missing_toolpack_is_reported(valid_receipt):
    ended = run_here(
        "verify", "--pack-dir", server_process.serving.PACKS, "--packs", "ledger", "--no-sandbox", valid_receipt.file
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "The toolpack 'bank' isn't loaded" in ended.stderr


def test_verify_runs_nothing_without_a_sandbox_by_default(valid_receipt):
    with mock.patch("toolpack_server.features.executors.system.LIBC.syscall", return_value=-1, create=True):
        ended = run_here("verify", *PACKS, valid_receipt.file)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert "needs Linux 6.12 or newer with Landlock" in ended.stderr


def test_missing_package_is_reported_with_its_install_command(valid_receipt, tmp_path):
    with mock.patch.dict(sys.modules, {"cryptography.hazmat.primitives.asymmetric": None}):
        for words in (
            ["verify", valid_receipt.file],
            ["evaluate", "--receipt", tmp_path / "r", "--sign-key", valid_receipt.key],
        ):
            ended = run_here(*words)
            assert ended.returncode != 0
            assert ended.stderr == (
                "toolpack-server: Receipts need the package cryptography: pip install 'toolpack-server[receipts]'.\n"
            )


def test_server_imports_nothing_of_receipts():
    program = (
        "import sys, toolpack_server.web.app, toolpack_server.wiring.installed as i; "
        "i.load_features(); print(*sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "toolpack_server.features.replay.bundles" in ended.stdout.split()
    assert not [name for name in ended.stdout.split() if "receipts" in name or name.startswith("cryptography")]


# The results of running it again


@pytest.fixture(scope="module")
def rerun(valid_receipt):
    """Yield a function that runs the first session of a receipt again in threads of this process."""
    loop, service = asyncio.new_event_loop(), Service(memory_settings((server_process.serving.PACKS,), "bank"))
    send, times = local(service, Caller()), valid_receipt.json["times"]["sessions"][0]

    async def result_of(entry):
        try:
            return await _replay_session(service, send, 0, receipts.ReceiptEntry.model_validate(entry), times, None)
        finally:
            await send("close_session", {"labels": valid_receipt.json["sessions"][0]["labels"]})

    with contextlib.closing(loop):
        yield lambda entry: loop.run_until_complete(result_of(entry))


def leaves(value, path=()):
    if isinstance(value, dict | list) and value:
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, name))
    else:
        yield path


INPUTS = {"labels", "kwargs", "answer", "content", "role", "metadata", "by"}
"""Inputs of a session and notes of its client. With other inputs, the receipt is one of another session."""


@given(data=st.data())
def test_every_output_is_compared_even_if_a_forger_signs(valid_receipt, rerun, data):
    entry = copy.deepcopy(valid_receipt.json["sessions"][0])
    assert rerun(entry)["equal"]
    path = data.draw(st.sampled_from([each for each in leaves(entry) if INPUTS.isdisjoint(each)]))
    holder = entry
    for step in path[:-1]:
        holder = holder[step]
    was = holder[path[-1]]
    values = st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=3) | st.just({}) | st.just([])
    holder[path[-1]] = data.draw(values.filter(lambda new: canonical(new) != canonical(was)))
    with contextlib.suppress(ValueError, ReceiptRefusedError):  # The changed entry is malformed, or can't run.
        assert not rerun(entry)["equal"], path


def test_unknown_option_of_a_newer_version_is_reported(valid_receipt, tmp_path):
    value = copy.deepcopy(valid_receipt.json)
    value["sessions"][0]["feature_options"]["weather"] = "rain"
    (tmp_path / "r.json").write_bytes(sign_again(value, SigningKey(tmp_path / "key")))
    ended = run_here("verify", *PACKS, "--no-sandbox", tmp_path / "r.json")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "has data 'weather', which this server doesn't know" in ended.stderr
    assert ended.stderr.endswith(" on a server of the version that made it, or a newer one.\n")


def test_first_different_call_is_reported(valid_receipt, tmp_path):
    value = copy.deepcopy(valid_receipt.json)
    (session,) = [each for each in value["sessions"] if each["task"] == TASKS[0] and each["verdict"]["passed"]]
    (call,) = [each for each in session["records"] if each.get("function") == "move_to_savings"]
    call["kwargs"]["amount"] = "299.00"
    (tmp_path / "r.json").write_bytes(sign_again(value, SigningKey(tmp_path / "key")))
    ended = run_here("verify", *PACKS, "--no-sandbox", "--json", tmp_path / "r.json")
    assert ended.returncode == 1
    report = json.loads(ended.stdout)
    (differs,) = [each for each in report["sessions"] if not each["equal"]]
    difference = differs["difference"]
    assert (difference["index"], difference["record"], difference["what"]) == (
        call["index"],
        "move_to_savings",
        "result",
    )
    assert ('"-300.00"' in difference["recorded"], '"-299.00"' in difference["replayed"]) == (True, True)
    text = run_here("verify", *PACKS, "--no-sandbox", tmp_path / "r.json").stdout
    assert f"  record {call['index']}, move_to_savings: its result was " in text
    assert "it has no seed and no clock" in text
    assert text.endswith("\nequal: 3 of 4 sessions\n")


WILD = '''"""What depends on the machine."""

import os
import time

from toolpack_server import Toolpack

toolpack = Toolpack("wild")


@toolpack.function
def die() -> None:
    """End the process."""
    os._exit(3)


@toolpack.function(timeout_seconds=0.5)
def stay() -> None:
    """Stay."""
    time.sleep(60)


@toolpack.function
def now() -> float:
    """Get the time."""
    return time.time()
'''


@pytest.mark.skipif(sys.platform != "linux", reason="executors need Linux")
def test_host_failures_are_accepted_and_unseeded_clocks_differ(tmp_path):
    (tmp_path / "wild.py").write_text(WILD)

    async def play_calls(send, *functions):
        session = await send("create_session", {"task": TASKS[0], "toolpacks": ["wild"]})
        for function in functions:
            await send("run_function", {"function": function}, session["agent_path"])
        # A recorded verdict, and a record after it.
        await send("summarize_sessions", {"evaluate": True, "record": True})
        await send("submit_answer", {"answer": "Done."}, session["agent_path"])
        (summary,) = (await send("summarize_sessions", {"evaluate": True}))["sessions"]
        entry, times, _ = await create_entry(send, summary)
        await send("close_session", {"session_id": session["session_id"]})
        return entry, times

    async def results():
        service = Service(memory_settings((tmp_path,), "wild,bank", isolation="process"))
        send = local(service, Caller())
        async with service.running():
            played_sessions = [await play_calls(send, "die", "stay", "get_balance"), await play_calls(send, "now")]
            return played_sessions[0][0], [
                await _replay_session(service, send, 0, *each, None) for each in played_sessions
            ]

    entry, (ended, looked) = asyncio.run(results())
    assert [each.get("failure") for each in entry.records][:2] == ["crashed", "deadline"]
    assert (entry.verdict["failure"]["kind"], ended["verdict"]["valid"]) == ("infrastructure", False)
    assert ended["equal"], ended
    assert (looked["equal"], looked["difference"]["record"], looked["difference"]["what"]) == (False, "now", "result")


def test_signed_but_forged_verdict_differs(valid_receipt, tmp_path):
    value = copy.deepcopy(valid_receipt.json)
    failed = [each for each in value["sessions"] if not each["verdict"]["passed"]]
    for each in failed:
        each["verdict"] |= {"passed": True, "reward": 1.0}
    (tmp_path / "r.json").write_bytes(sign_again(value, SigningKey(tmp_path / "key")))
    ended = run_here("verify", *PACKS, "--no-sandbox", tmp_path / "r.json")
    assert ended.returncode == 1
    assert ended.stdout.count("  its verdict was ") == len(failed) == 2
    assert "bank/save-300     2       1        0.500" in ended.stdout  # The printed score is that of this run.


def test_entry_is_of_the_evaluated_version_with_all_records(make_bench):
    bench = make_bench(load_catalog((), ("bank",)), packs=("bank",))
    session_id, send = bench.rpc("create_session", task=TASKS[0])["session_id"], local(bench.service, Caller(""))
    bench.result(session_id, "get_balance")
    (summary,) = bench.rpc("summarize_sessions", evaluate=True)["sessions"]
    entry, _, _ = bench._run(create_entry(send, summary))
    assert find_difference(entry, entry) is None
    assert find_difference(entry, entry.model_copy(update={"records": []}))["what"] == "records"
    bench.result(session_id, "move_to_savings", amount="1.00")
    with pytest.raises(click.ClickException, match="changed while it was evaluated"):
        bench._run(create_entry(send, summary))
