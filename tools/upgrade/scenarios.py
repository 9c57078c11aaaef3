"""The scenarios of the upgrade test. Each uses some features while servers are replaced, and checks every answer.

Two consecutive requests go to different servers. A request that changes something has a `call_id`, so it can be
repeated.
"""

from pathlib import Path

PACKS = Path(__file__).parent / "packs"


class BrokenError(Exception):
    """A check of a scenario failed."""


def expect(value, expected, what):
    """Raise a `BrokenError` if a value isn't the expected one."""
    if value != expected:
        raise BrokenError(f"{what}: {value!r}, but {expected!r} was expected")


class Scenario:
    """A scenario in rounds. Each round may run on other versions of the servers than the previous round.

    Attributes:
        pack: The toolpack of the scenario.
        sessions: The ids of the scenario's sessions. All servers must return the same data for them.
    """

    pack = "errands"

    def __init__(self, ask):
        self.ask = ask
        self.sessions = []
        self._ids = 0

    def id(self):
        """Return a new `call_id`."""
        self._ids += 1
        return f"{type(self).__name__}-{self._ids}"

    def create(self, **params):
        """Create a session, then repeat the request on the other server, which must return the same session."""
        params |= {"call_id": self.id()}
        session = self.ask("create_session", **params)
        second_answer = self.ask("create_session", **params)
        expect(second_answer["session_id"], session["session_id"], "a session of a repeated request")
        self.sessions.append(session["session_id"])
        return session

    def call(self, session, function, *, at_agents=False, **kwargs):
        """Call a function, then repeat the call on the other server, which must return the same answer."""
        params = {"function": function, "kwargs": kwargs, "call_id": self.id()}
        params |= {"at": session["agent_path"]} if at_agents else {"session_id": session["session_id"]}
        envelope = self.ask("run_function", **params)
        expect(self.ask("run_function", **params), envelope, "a call that was sent twice")
        return envelope

    def begin(self):
        self.session = self.create(toolpacks=[self.pack])

    def round(self, number):
        raise NotImplementedError


class Notes(Scenario):
    """Calls, forks and resets, with a check of totals and order."""

    def begin(self):
        super().begin()
        self.notes = []

    def round(self, number):
        for place in range(3):
            self.notes.append(f"{number}.{place}")
            expect(self.call(self.session, "note", text=self.notes[-1])["result"], len(self.notes), "notes")
        target = {"session_id": self.session["session_id"]}
        version = self.ask("get_session", **target)["version"]
        fork = self.ask("fork_session", **target, version=version - 1, call_id=self.id())[0]
        self.sessions.append(fork["session_id"])
        expect(self.call(fork, "note", text="fork")["result"], len(self.notes), "notes of a fork")
        path = self.ask("get_trace", session_id=fork["session_id"], path=True, limit=1000)
        texts = [record["kwargs"]["text"] for record in path if record.get("function") == "note"]
        expect(texts, [*self.notes[:-1], "fork"], "the path of a fork")
        expect(self.call(self.session, "note", text="undone")["result"], len(self.notes) + 1, "notes")
        self.ask("reset_session", **target, version=version, call_id=self.id())
        expect(self.call(self.session, "read_notes")["result"], self.notes, "notes after a reset")


class Bundles(Scenario):
    """Bundles and replays."""

    def begin(self):
        super().begin()
        self.notes = []

    def round(self, number):
        self.notes.append(str(number))
        self.call(self.session, "note", text=self.notes[-1])
        target = {"session_id": self.session["session_id"]}
        for _ in range(2):  # each server exports a bundle that the other imports
            bundle = self.ask("export_bundle", **target)["bundle"]
            moved = self.ask("import_bundle", bundle=bundle, call_id=self.id())
            expect(self.call(moved, "read_notes")["result"], self.notes, "notes of a bundle")
            self.sessions.append(moved["session_id"])
            self.ask("get_session", **target)  # one more request, so that the other server gets the next export
        replayed = self.ask("replay_session", **target, call_id=self.id())
        expect(replayed["complete"], True, f"a replay, which differs at {replayed.get('diverged')}")


class Tasks(Scenario):
    """Tasks, messages, answers and verdicts."""

    def begin(self):
        self.session = None

    def round(self, number):
        del number
        earlier, self.session = self.session, self.create(task="errands/two-notes")
        self.call(self.session, "note", at_agents=True, text="one")
        if earlier is not None:  # finish the session of the previous round, which may have begun on other servers
            self._finish(earlier)

    def _finish(self, session):
        target, path = {"session_id": session["session_id"]}, session["agent_path"]
        expect(self.ask("get_task", at=path)["prompt"][:21], "Write the notes one a", "a prompt")
        message = {"role": "assistant", "content": "soon", "call_id": self.id()}
        for _ in range(2):
            self.ask("add_message", **target, **message)
        self.call(session, "note", at_agents=True, text="two")
        for _ in range(2):
            self.ask("submit_answer", at=path, answer="done")
        over = self.call(session, "note", at_agents=True, text="three")["error"]
        expect(over and over.partition(":")[0], "EpisodeOverError", "a call after the answer")
        for _ in range(2):
            verdict = self.ask("evaluate_session", **target)
            expect((verdict["reward"], verdict["passed"]), (1.0, True), "a verdict")
        kinds = [record["kind"] for record in self.ask("get_trace", **target)]
        expect(kinds, ["call", "message", "call", "answer"], "records")


class PerturbedCalls(Scenario):
    """Rules that count the agent's calls."""

    error = "ConnectionError: not now"

    def begin(self):
        rules = [{"functions": "note", "calls": "2/3", "error": self.error}]
        self.session = self.create(toolpacks=["errands"], perturbations={"rules": rules})
        self.calls, self.notes = 0, []

    def round(self, number):
        for _ in range(4):
            self.calls += 1
            text = f"{number}: {self.calls}"
            error = self.call(self.session, "note", at_agents=True, text=text)["error"]
            expect(error, self.error if self.calls % 3 == 2 else None, f"the error of call {self.calls}")
            self.notes += [text] if error is None else []
        expect(self.call(self.session, "read_notes")["result"], self.notes, "notes of a perturbed session")


class Conversation(Scenario):
    """Two participants in a conversation. The user may call no functions."""

    def begin(self):
        self.session = self.create(toolpacks=["errands"], participants={"user": {"functions": []}})
        self.paths = {name: each["agent_path"] for name, each in self.session.get("participants").items()}
        self.last_index, self.calls = -1, 0

    def round(self, number):
        self.ask("say", at=self.paths["user"], text=f"note {number}", call_id=self.id())
        (message,) = self.ask("listen", at=self.paths["agent"], after=self.last_index, wait_seconds=5)["messages"]
        expect((message["by"], message["content"]), ("user", f"note {number}"), "a message")
        self.last_index = message["index"]
        self.calls += 1
        expect(self.call(self.session, "note", at_agents=True, text="x")["result"], self.calls, "notes of the agent")
        refused = self.ask("run_function", at=self.paths["user"], function="note", kwargs={"text": "y"})["error"]
        expect(refused.partition(":")[0], "ToolNotFoundError", "a call of a participant without functions")


class Shop(Scenario):
    """A database and files."""

    pack = "shop"

    def begin(self):
        super().begin()
        self.items = []

    def round(self, number):
        target = {"session_id": self.session["session_id"]}
        for place in range(5):
            self.items.append(f"{number}.{place}")
            expect(self.call(self.session, "order", item=self.items[-1])["result"], len(self.items), "an order")
        fork = self.ask("fork_session", **target, call_id=self.id())[0]
        self.sessions.append(fork["session_id"])
        expect(self.call(fork, "order", item="fork")["result"], len(self.items) + 1, "the order of a fork")
        rows = self.ask("get_environment", **target, pointer="/shop/db/orders", limit=1000)
        expect([row["item"] for row in rows.values()], self.items, "rows")
        papers = self.ask("get_environment", **target, pointer="/shop/papers")
        expect(len(papers), len(self.items) + 1, "files")
        expect(self.call(self.session, "orders")["result"], self.items, "orders")


SCENARIOS = (Notes, Bundles, Tasks, PerturbedCalls, Conversation, Shop)
