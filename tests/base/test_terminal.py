"""Control characters in texts of agents and functions are escaped on an operator's terminal, but not in JSON output."""

import contextlib
import io
import json

import pytest
from command_line import on_a_terminal, run
from http_server import running
from hypothesis import given
from hypothesis import strategies as some

from toolpack_server.base.terminal import echo, printable
from toolpack_server.client import Client
from toolpack_server.packs.loading import load_catalog

# ESC, a C1 CSI, a carriage return and a line like the command's own, bidirectional marks, and a Python escape.
HOSTILE = "a\x1b[2J\x9b1m\rb\u202ec\u2028d\n7 tasks: all passed\x00\U000e0041\\x1b"
PACK = f"""
from toolpack_server import Depends, Rollout, Task, TaskEnvironment, Toolpack
from typing import Annotated

HOSTILE = {HOSTILE!r}


class Said(TaskEnvironment):
    words: dict[str, str] = {{}}


toolpack = Toolpack("said", Said)


@toolpack.function
def say(said: Annotated[Said, Depends(lambda said: said)], word: str) -> str:
    '''Say a word.

    :param word: It.
    '''
    said.words[word] = word
    return word


@toolpack.function
def fail(word: str) -> str:
    '''Fail.

    :param word: Why.
    '''
    raise ValueError(word)


def judge(rollout):
    rollout.check(HOSTILE, "no answer" not in rollout.answer, HOSTILE + rollout.answer)
    if rollout.answer == HOSTILE:
        raise RuntimeError(rollout.answer)
    return "x" in rollout.environment.words


toolpack.add_task(Task("one", "Say x.", judge, solution=[("say", {{"word": "x"}})], answer=HOSTILE + "!"))
toolpack.add_task(Task("two", "Say x.", judge, solution=[("say", {{"word": "x"}})], answer=HOSTILE))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packs")
    (folder / "said.py").write_text(PACK, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def session_options(folder):
    """Start a server, and a session in which an agent has put harmful texts in every possible field.

    Return the command's options for this server, and the session's id.
    """
    with running(load_catalog((folder,), ("said",)), store="memory:", log_calls="off") as url, Client(url) as client:
        session = client.create_session(task="said/one", labels={"run": HOSTILE})
        with client.agent(session) as agent:
            agent.run_function("say", {"word": HOSTILE})
            agent.run_function("fail", {"word": HOSTILE})
            agent.run_function("say" + HOSTILE, {HOSTILE: HOSTILE})
            agent.submit_answer(HOSTILE)
        client.add_message(session["session_id"], "user", HOSTILE)
        yield ["--url", url], session["session_id"]


@given(some.text())
def test_a_line_stays_one_printable_line(text):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        echo(text)
    assert output.getvalue() == f"{printable(text)}\n"
    assert printable(text).isprintable()
    if text.isprintable():
        assert printable(text) == text


@given(some.recursive(some.text() | some.integers(), lambda some_: some.dictionaries(some.text(), some_)))
def test_json_stays_the_same_json(value):
    assert json.loads(printable(json.dumps(value, ensure_ascii=False))) == value


@pytest.mark.parametrize("command", ["list", "env", "diff", "trace", "export", "evaluate", "evaluate -"])
def test_texts_of_agents_are_escaped(command, session_options):
    where, session_id = session_options
    name, *arguments = command.split()
    flags = ["--trajectories", "-"] if arguments else []
    of = [] if name in ("list", "evaluate") else [session_id]
    words = [name] if name == "evaluate" else ["session", name]
    texts = [on_a_terminal(*words, *where, *flags, *of, status=name == "evaluate")]
    piped = run(*words, *where, *flags, *of)
    texts += [piped.stdout, piped.stderr]
    for text in texts:
        assert [line for line in text.split("\n") if not line.isprintable()] == []
        assert "\n7 tasks: all passed" not in text
    assert "\\u009b1m" in "".join(texts)


def test_texts_of_functions_are_escaped(folder):
    command = ["call", "--pack-dir", folder, "--packs", "said", "say", f"word={HOSTILE}".replace("\0", "")]
    assert_escaped(on_a_terminal(*command))


def assert_escaped(text):
    assert [line for line in text.split("\n") if not line.isprintable()] == []
    assert "\n7 tasks: all passed" not in text
    assert "\\u009b1m" in text
