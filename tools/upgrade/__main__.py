"""Test of an upgrade of two running servers on one store: no data may be lost, changed or written twice.

    python -m tools.upgrade                    from the last release; does nothing if there is no older release
    python -m tools.upgrade --from REF --back  from a commit or a wheel, and back again
    python -m tools.upgrade --store postgres   on Postgres

The test starts two servers of the older version. While clients call functions on both servers and workers are killed,
it replaces one server after a stop, and then the other after kill -9. Exit status 1 means that a check failed.

The older version runs with the packages of this environment, so its dependencies must be the same.
"""

import contextlib
import itertools
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import zipfile
from pathlib import Path

import click
from postgres_server import start as start_postgres
from redis_server import start as start_redis

from tools.faults.checks import check_all
from tools.faults.clients import OVERLOADED, Clients, Connection, RefusedError, UnknownError
from tools.faults.world import PACKS as CROWD_PACKS
from tools.faults.world import ROOT, Server, send_signal, wait_until
from tools.upgrade.scenarios import PACKS, SCENARIOS, BrokenError

REPOSITORY = Path(os.environ.get("REPOSITORY", ROOT))
OLD, NEW = "old", "new"
# The versions of both servers in each stage.
UPGRADE_STAGES, DOWNGRADE_STAGES = ((OLD, OLD), (NEW, OLD), (NEW, NEW)), ((OLD, NEW), (OLD, OLD))
CLIENTS, SESSIONS = 6, 8  # clients and new sessions in each stage; clients also use the sessions of earlier stages
ROUNDS = 2  # rounds of each scenario in each stage
ANSWER_TIMEOUT_SECONDS = 60.0
MAX_PRINTED = 20
START_TIMEOUT_SECONDS = 40.0
WAIT_SECONDS = (0.5, 3.0)  # durations of calls that wait while a server is replaced
MAX_COMPARED = 30  # maximum number of the clients' sessions to read from both servers


def git(*words):
    """Run a git command in the repository, and return its process."""
    # git refuses a repository of another user, for example in a container, unless it is declared safe.
    command = ["git", "-c", "safe.directory=*", "-C", str(REPOSITORY), *words]
    return subprocess.run(command, capture_output=True, check=False)


def last_release():
    """Return the last release's tag before this commit, or None if this folder has no older release."""
    return git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^").stdout.decode().strip() or None


def unpack(source, folder):
    """Unpack the code of a wheel or of a commit into a folder."""
    folder.mkdir()
    if source.endswith(".whl"):
        zipfile.ZipFile(source).extractall(folder)
        return
    archive = git("archive", source, "server", "toolpacks", "pyproject.toml")
    if archive.returncode:
        raise click.UsageError(
            f"{source!r} is neither a wheel nor a commit of this repository: {archive.stderr.decode().strip()}"
        )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    # Use the layout of a wheel: the package and its metadata at the top. Then the features are found here first.
    (folder / "server" / "toolpack_server").rename(folder / "toolpack_server")
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata_folder = folder / "toolpack_server-0.dist-info"
    metadata_folder.mkdir()
    metadata = "Metadata-Version: 2.1\nName: toolpack-server\nVersion: 0\n"
    (metadata_folder / "METADATA").write_text(metadata, encoding="utf-8")
    groups = project.get("entry-points", {}).items()
    lines = [line for group, points in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in points.items()))]
    (metadata_folder / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


class Fleet:
    """Two servers on one store, which can be replaced by servers of another version.

    Attributes:
        codes: The folder of the code, by version.
        servers: The servers.
    """

    def __init__(self, codes, folder, url, workers, packs, rng):
        self.codes = codes
        self.servers = [
            Server(folder, url, workers, f"server-{number}", pack_dir=packs, log_level="warning") for number in (1, 2)
        ]
        self._rng = rng
        self._connections = [Connection([server.port], rng) for server in self.servers]
        self._turns = itertools.cycle(range(len(self.servers)))

    @property
    def ports(self):
        return [server.port for server in self.servers]

    def ask(self, method, at="/rpc", **params):
        """Send a request to the servers in turn until one answers. The next request starts at the next server."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            try:
                return self._connections[next(self._turns)].send(method, params, at)
            except UnknownError as unknown:
                reason = unknown
            except RefusedError as refused:
                if refused.code != OVERLOADED:
                    raise BrokenError(f"{method} {params}: {refused}") from refused
                reason = refused
            time.sleep(0.05)
        raise BrokenError(f"{method} {params}: not answered within {ANSWER_TIMEOUT_SECONDS:g} s: {reason}")

    def replace_servers(self, versions):
        """Replace the servers that don't have these versions: the first after a stop, the second after kill -9."""
        for number, (server, version) in enumerate(zip(self.servers, versions, strict=True)):
            code = self.codes[version]
            if server.process is not None and server.code == code:
                continue
            if server.process is not None:
                server.kill() if number else server.stop()
            server.code = code
            server.start()

    def kill_workers(self):
        """Kill a worker of each server. The supervisors start others."""
        for server in self.servers:
            wait_until(server.workers, START_TIMEOUT_SECONDS, "a worker")
            send_signal(self._rng.choice(server.workers()), 9)

    def wait_until_up(self):
        for server in self.servers:
            wait_until(server.is_up, START_TIMEOUT_SECONDS, "a new worker")

    def read(self, number, method, **params):
        """Send a request to the server with this number."""
        return self._connections[number].insist(method, params, time.monotonic() + ANSWER_TIMEOUT_SECONDS)

    def end(self):
        for server in self.servers:
            server.end()


def shared_members(one, other):
    """Return a JSON value with only the members that another value has, too. A newer version may add members."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: shared_members(value, other[name]) for name, value in one.items() if name in other}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [shared_members(*pair) for pair in zip(one, other, strict=True)]
    return one


def differences(fleet, session_ids):
    """Read sessions from both servers, and yield the differences."""
    for session_id in session_ids:
        for method, params in (
            ("get_session", {}),
            ("get_environment", {}),
            ("diff_environment", {}),
            ("get_trace", {"path": True, "limit": 1000}),
        ):
            try:
                one, other = (fleet.read(number, method, session_id=session_id, **params) for number in (0, 1))
            except RefusedError as refused:
                yield f"{method} of {session_id}: {refused}"
                continue
            if method == "get_session":
                one, other = ({**each, "expires_at": None} for each in (one, other))
            if method != "get_environment":
                one, other = shared_members(one, other), shared_members(other, one)
            if one != other:
                yield f"{method} of {session_id} differs: {one}, and {other}"


class WaitingCalls:
    """Calls of a slow function that wait while servers are replaced. Each must run once."""

    def __init__(self, fleet):
        self._fleet = fleet
        self._session = fleet.ask("create_session", toolpacks=["errands"], call_id="waiting")["session_id"]
        self._sent, self._threads, self._problems = [], [], []
        self._numbers = itertools.count()

    def send(self):
        for seconds in WAIT_SECONDS:
            text = f"waiting {next(self._numbers)}"
            self._sent.append(text)
            self._threads.append(threading.Thread(target=self._wait, args=(text, seconds), daemon=True))
            self._threads[-1].start()

    def _wait(self, text, seconds):
        connection = Connection(self._fleet.ports, random.Random(text))
        call = {"function": "note_later", "kwargs": {"text": text, "seconds": seconds}, "call_id": text}
        try:
            deadline = time.monotonic() + ANSWER_TIMEOUT_SECONDS
            connection.insist("run_function", {"session_id": self._session, **call}, deadline)
        except (UnknownError, RefusedError) as error:
            self._problems.append(f"{text}: {error}")
        connection.close()

    def find_problems(self):
        """Wait for all calls, and return the calls that failed, were lost or ran twice."""
        for thread in self._threads:
            thread.join()
        notes = self._fleet.ask("run_function", session_id=self._session, function="read_notes")["result"]
        if sorted(notes) != sorted(self._sent):
            self._problems.append(f"the calls {self._sent} waited, but the notes are {notes}")
        return self._problems


class Upgrade:
    """A run of the test through all stages.

    Attributes:
        fleet: The servers.
        problems: The failed checks.
    """

    def __init__(self, codes, folder, url, workers, seed):
        packs = folder / "packs"
        packs.mkdir()
        for path in [*CROWD_PACKS.glob("*.py"), *PACKS.glob("*.py")]:
            (packs / path.name).write_bytes(path.read_bytes())
        self.problems = []
        self.fleet = Fleet(codes, folder, url, workers, packs, random.Random(seed))
        self._seed = seed
        self._sessions = {}  # the clients' sessions
        self._unanswered_forks = 0

    def begin(self):
        """Start two servers of the older version, and create the scenarios' sessions."""
        self.fleet.replace_servers((OLD, OLD))
        self._scenarios = [kind(self.fleet.ask) for kind in SCENARIOS]
        self._waiting_calls = WaitingCalls(self.fleet)
        for scenario in self._scenarios:
            scenario.begin()

    def stage(self, stage_number, versions, seconds):
        """Change the servers to these versions under load, and continue for a while."""
        stage = "/".join(versions)
        crowd = Clients(self.fleet.ports, CLIENTS, SESSIONS, f"{self._seed}/{stage_number}")
        crowd._entries = itertools.count(stage_number * 10**6)  # entries of different stages must differ
        crowd.sessions = self._sessions = {**self._sessions, **crowd.sessions}
        began = time.monotonic()
        crowd.start()
        self._waiting_calls.send()
        self.fleet.replace_servers(versions)
        for number in range(ROUNDS):
            self.fleet.kill_workers()
            for scenario in [*self._scenarios]:
                try:
                    scenario.round(stage_number * ROUNDS + number)
                except BrokenError as broken:
                    self.problems.append(f"{stage}: {type(scenario).__name__}: {broken}")
                    self._scenarios.remove(scenario)
        time.sleep(max(0, began + seconds - time.monotonic()))
        self.fleet.wait_until_up()
        crowd.stop()
        self._unanswered_forks += crowd.counts["forks without an answer"]
        self.problems += [f"{stage}: {surprise}" for surprise in crowd.unexpected_answers]
        session_ids = [each for scenario in self._scenarios for each in scenario.sessions]
        session_ids += [*self._sessions][:MAX_COMPARED]
        self.problems += [f"{stage}: {each}" for each in differences(self.fleet, session_ids)]
        counts = f"{crowd.counts['calls']} calls, {crowd.counts['forks']} forks, {crowd.counts['resets']} resets"
        click.echo(f"{stage}: {counts}, {len(session_ids)} sessions read from both")

    def check(self):
        """Check all sessions with a replay of their traces, and check that the servers stop without an error."""
        self.problems += self._waiting_calls.find_problems()

        def send(method, params, path="/rpc"):
            return self.fleet.ask(method, at=path, **params)

        problems = check_all(send, self._sessions, self._unanswered_forks, isolated=False)
        for session_id, session_problems in problems.items():
            self.problems += [f"{session_id}: {each}" for each in session_problems]
        for server in self.fleet.servers:
            status = server.stop()
            if status:
                self.problems.append(f"a stopped server ended with status {status}")
            if "Traceback" in server.log():
                self.problems.append("a server's log has a traceback: print the logs with --logs")


@contextlib.contextmanager
def redis_url(folder):
    with start_redis(folder) as (url, _):
        yield url


@contextlib.contextmanager
def postgres_url(_folder):
    with start_postgres() as server:
        yield server.url


STORES = {"redis": redis_url, "postgres": postgres_url}


@click.command()
@click.option("--from", "source", help="The older version: a commit or tag, or a wheel.  [default: the last release]")
@click.option("--back", is_flag=True, help="Go back to the older version at the end.")
@click.option("--seconds", default=8.0, show_default=True, help="Minimum duration of each stage.")
@click.option("--workers", default=2, show_default=True, help="Number of workers of each server.")
@click.option("--store", type=click.Choice([*STORES]), default="redis", show_default=True, help="Store of the servers.")
@click.option("--seed", type=int, help="Seed of the clients' choices; their timing may differ.")
@click.option("--logs", is_flag=True, help="Print the servers' logs.")
def main(source, back, seconds, workers, store, seed, logs):
    """Upgrade a running pair of servers on one store."""
    source = source or last_release()
    if source is None:
        click.echo(
            "Nothing was upgraded, because this repository has no older release. Name a commit or a wheel with --from."
        )
        return
    seed = random.randrange(2**32) if seed is None else seed
    click.echo(f"from {source}, seed {seed}")
    with tempfile.TemporaryDirectory(prefix="toolpack-upgrade-") as name:
        folder = Path(name)
        codes = {OLD: folder / "older", NEW: ROOT}
        unpack(source, codes[OLD])
        with STORES[store](folder) as url:
            upgrade = Upgrade(codes, folder, url, workers, seed)
            try:
                upgrade.begin()
                for stage_number, versions in enumerate(UPGRADE_STAGES + (DOWNGRADE_STAGES if back else ())):
                    upgrade.stage(stage_number, versions, seconds)
                upgrade.check()
            except BrokenError as broken:
                upgrade.problems.append(str(broken))
            finally:
                upgrade.fleet.end()
        if logs:
            for path in sorted(folder.glob("*.log")):
                click.echo(f"--- {path.name}\n{path.read_text(errors='replace')}")
    for problem in upgrade.problems[:MAX_PRINTED]:
        click.echo(f"VIOLATION: {problem[:2000]}")
    click.echo(f"{len(upgrade.problems)} violations")
    sys.exit(bool(upgrade.problems))


if __name__ == "__main__":
    main()
