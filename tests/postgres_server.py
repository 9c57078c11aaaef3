"""A real Postgres for the tests, on a free loopback port and in a separate folder.

With CI=true Postgres is required. Otherwise tests that need it are skipped. Postgres refuses to run as root, so root's
tests run it as another user. Its folder is then outside the folder of the tests, which only root may enter.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

try:
    from redis_server import free_port
except ModuleNotFoundError:  # so that programs find this module
    from redis_server import free_port

UNSAFE = ("-c", "fsync=off", "-c", "full_page_writes=off")  # faster; crashes of the machine aren't tested
PATIENCE = 120  # the same as `patience.PATIENCE`, which programs that import this module wouldn't find


def find() -> Path | None:
    """Return the folder of Postgres' programs. Debian doesn't link them in the PATH."""
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -int(path.parent.name))
    if on_path := shutil.which("postgres"):
        candidates.append(Path(on_path).resolve().parent)
    package = importlib.util.find_spec("pgserver")
    if package is not None and package.origin is not None:
        candidates.append(Path(package.origin).parent / "pginstall" / "bin")
    return next((path for path in candidates if (path / "initdb").exists()), None)


def _user() -> pwd.struct_passwd | None:
    """Return the user that must run Postgres, or None for this user."""
    if os.geteuid() != 0:
        return None
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


class Postgres:
    """The files of one Postgres, and its process while it runs.

    Attributes:
        port: The port that it listens on.
        process: The process, or None if it isn't running.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        programs = find()
        if programs is None:
            from ci import without  # noqa: PLC0415 - as above

            without("no Postgres here: install postgresql, or pip install pgserver")
        self._programs, self._folder, self._options = programs, folder, options
        self.port = free_port()
        self.process: subprocess.Popen | None = None

    def run(self, program: str, *arguments: str) -> None:
        """Run one of Postgres' programs to its end."""
        with self._started(program, *arguments) as process:
            assert process.wait(PATIENCE) == 0, f"{program} has failed"

    def _started(self, program: str, *arguments: str) -> subprocess.Popen:
        user = _user()
        return subprocess.Popen(
            [self._programs / program, *arguments],
            cwd="/",
            user=user and user.pw_uid,
            group=user and user.pw_gid,
            extra_groups=[] if user else None,
            env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def make(self) -> None:
        """Create an empty database."""
        flags = ("--auth=trust", "--username=tests", "--encoding=UTF8", "--locale=C", "--no-sync")
        self.run("initdb", "--pgdata", str(self._folder), *flags)

    def copy(self, port: int) -> None:
        """Create a standby of the server at a port. When the standby is started, it replicates that server."""
        shutil.rmtree(self._folder, ignore_errors=True)
        options = ("-h", "127.0.0.1", "-p", str(port), "-U", "tests", "-c", "fast", "--no-sync", "-R")
        self.run("pg_basebackup", "-D", str(self._folder), *options)

    def start(self, *options: str) -> None:
        flags = ("-D", str(self._folder), "-p", str(self.port), "-k", "", "-h", "127.0.0.1", *self._options, *options)
        self.process = self._started("postgres", *flags)
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            assert self.process.poll() is None, "postgres ended at once"
            assert time.monotonic() < deadline, "postgres doesn't answer"
            time.sleep(0.02)

    def _answers(self) -> bool:
        with self._started("pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)) as process:
            return process.wait(PATIENCE) == 0

    def processes(self) -> list[int]:
        """Return the ids of the server's first process and of all its descendants."""
        first = self.process.pid
        return [first, *map(int, Path(f"/proc/{first}/task/{first}/children").read_text(encoding="ascii").split())]

    def kill(self) -> None:
        """Kill all processes of the server, as if its machine had failed."""
        if self.process is not None:
            for process in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            self.process.wait()
            self.process = None

    @property
    def url(self) -> str:
        return f"postgresql://tests@127.0.0.1:{self.port}/postgres"


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Create a temporary folder for Postgres' user."""
    new_folder, user = Path(tempfile.mkdtemp(prefix="toolpack-postgres-", dir="/tmp")), _user()
    try:
        if user is not None:
            os.chown(new_folder, user.pw_uid, user.pw_gid)
        yield new_folder
    finally:
        shutil.rmtree(new_folder, ignore_errors=True)


@contextlib.contextmanager
def start(*options: str) -> Iterator[Postgres]:
    """Start a server with these additional options."""
    with folder() as data_folder:
        server = Postgres(data_folder / "data", *options)
        server.make()
        try:
            server.start()
            yield server
        finally:
            server.kill()


def emptied(url: str) -> str:
    """Delete all sessions in a Postgres, and return its URL."""
    ask(url, "DROP SCHEMA IF EXISTS toolpack CASCADE")
    return url


def ask(url: str, statement: str, *parameters: str) -> list[tuple]:
    """Run a statement, or several without parameters, and return the rows."""
    import psycopg  # noqa: PLC0415 - an extra

    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []
