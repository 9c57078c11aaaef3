"""A test of the container image and of compose.yaml without a container engine: Debian's `buildah` needs no daemon.

    python -m tools.container

A small Debian with Python, unpacked by `mmdebstrap`, replaces the base image of the Dockerfile. Everything else is as
in production: the Dockerfile's steps, user, command and health check, volumes that outlive a container, and the
commands of compose.yaml with a real Redis.

Exit status 1 means that something failed; the failure is printed. Without root, buildah or mmdebstrap the program
prints the reason and exits with status 0.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import redis
import yaml
from redis_server import find, free_port

ROOT = Path(__file__).parents[1]
IMAGE = "toolpack-server"
# Packages are only unpacked: to configure them would take most of the time. So the list must name all packages that a
# shell needs.
PACKAGES = "python3,python3-venv,python3-pip,base-files,base-passwd,coreutils,dash,libc-bin,passwd"
CERTIFICATES = "/etc/ssl/certs"  # this machine's, because its network may have its own certificate authorities
TIMEOUT_SECONDS = 60.0
STOP_SECONDS = 10.0  # time that container engines allow between SIGTERM and SIGKILL

PACK = '''"""A counter."""

from typing import Annotated

from toolpack_server import Depends, TaskEnvironment, Toolpack


class CounterEnvironment(TaskEnvironment):
    count: int = 0


toolpack = Toolpack("counter", CounterEnvironment)


@toolpack.function
def increase(environment: Annotated[CounterEnvironment, Depends(lambda environment: environment)]) -> int:
    """Add one."""
    environment.count += 1
    return environment.count
'''


def mirror() -> tuple[str, str]:
    """Return the name of this machine's Debian release, and apt's mirror."""
    release = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)[1]
    targets = [
        "apt-get",
        "indextargets",
        "--format",
        "$(RELEASE) $(REPO_URI)",
        "Component: main",
        "Identifier: Packages",
    ]
    output = subprocess.run(targets, capture_output=True, text=True, check=True).stdout
    return next((release, line.split()[1]) for line in output.splitlines() if line.split()[0] == release)


class Engine:
    """Buildah, with its images in a separate folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"BUILDAH_ISOLATION": "chroot"}

    def command(self, *arguments: str) -> list[str]:
        return ["buildah", "--root", f"{self.folder}/root", "--runroot", f"{self.folder}/run", *arguments]

    def buildah(self, *arguments: str, **options) -> str:
        """Run a command of buildah, and return its output."""
        process = subprocess.run(
            self.command(*arguments), env=self.environment, capture_output=True, text=True, check=False, **options
        )
        if process.returncode:
            sys.exit(f"buildah {arguments[0]} failed:\n{process.stdout[-4000:]}{process.stderr[-4000:]}")
        return process.stdout.strip()

    def make_base(self, name: str) -> None:
        """Create an image with Debian's Python, under the name of the base image."""
        base = self.folder / "base"
        release, source = mirror()
        command = ["mmdebstrap", "--variant=extract", f"--include={PACKAGES}", release, str(base), source]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            sys.exit(f"mmdebstrap failed:\n{process.stderr[-4000:]}")
        for file in ("passwd", "group"):  # the configuration of base-passwd does the same
            shutil.copy(base / f"usr/share/base-passwd/{file}.master", base / "etc" / file)
        (base / "usr/bin/python").symlink_to("python3")
        for mark in base.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
            mark.unlink()
        container = self.buildah("from", "scratch")
        self.buildah("add", container, f"{base}/", "/")
        self.buildah("commit", "--format", "docker", container, f"localhost/{name}")
        self.buildah("rm", container)
        shutil.rmtree(base)

    def build(self, context: Path, tag: str) -> None:
        """Build an image from the Dockerfile in a folder."""
        options = [
            "--pull-never",
            "--network",
            "host",
            "--format",
            "docker",
            "--volume",
            f"{CERTIFICATES}:{CERTIFICATES}:ro",
        ]
        for name in {"PIP_CERT", "PIP_INDEX_URL"} & os.environ.keys():
            options += ["--env", f"{name}={os.environ[name]}"]
        self.buildah("build-using-dockerfile", *options, "--tag", tag, str(context))

    def image(self, tag: str) -> dict:
        """Return the run configuration of an image."""
        return json.loads(self.buildah("inspect", "--type", "image", tag))["Docker"]["config"]

    @contextlib.contextmanager
    def container(self, tag: str) -> Iterator[str]:
        """Create a container of an image, yield its name, and remove it at the end."""
        name = self.buildah("from", "--pull-never", f"localhost/{tag}")
        try:
            yield name
        finally:
            self.buildah("rm", name)

    def run(
        self, container: str, command: list[str], volumes: dict[Path, str], environment: dict[str, str]
    ) -> list[str]:
        """Return the command that runs another command in a container."""
        options = ["--network", "host"]
        for folder, path in volumes.items():
            options += ["--volume", f"{folder}:{path}"]
        for name, value in environment.items():
            options += ["--env", f"{name}={value}"]
        return self.command("run", *options, container, "--", *command)

    def start(self, command: list[str], log: Path) -> subprocess.Popen:
        """Start a command in a process group of its own, and write its output to a log."""
        with log.open("ab") as output:
            return subprocess.Popen(command, env=self.environment, stdout=output, stderr=output, start_new_session=True)


class ContainerServer:
    """A server in a container, and its processes."""

    def __init__(self, engine: Engine, container: str, command: list[str], volumes: dict, environment: dict) -> None:
        self.engine, self.container, self.volumes, self.environment = engine, container, volumes, environment
        self.port = environment["TOOLPACK_PORT"]
        self.log = engine.folder / "server.log"
        self.process = engine.start(engine.run(container, command, volumes, environment), self.log)
        token = environment["TOOLPACK_TOKENS"].partition(":")[2]
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"Bearer {token}"},
            timeout=TIMEOUT_SECONDS,
        )
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"The server isn't ready:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return self.http.get("/readyz").status_code == httpx.codes.OK
        return False

    def rpc(self, method: str, /, **params):
        answer = self.http.post("/rpc", json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).json()
        if "error" in answer:
            sys.exit(f"{method} answered {answer['error']}")
        return answer["result"]

    def processes(self) -> list[int]:
        """Return the process ids of the server: the descendants of buildah that run Python. The first is the parent."""
        pids, level = [], [self.process.pid]
        while level:
            level = [child for parent in level for child in _children(parent)]
            pids += [pid for pid in level if b"toolpack-server" in _read(f"/proc/{pid}/cmdline") and _is_python(pid)]
        return pids

    def check_health(self, command: list[str]) -> None:
        """Run the image's health check in the container."""
        kind, *check = command
        assert kind == "CMD", command
        running = self.engine.run(self.container, check, self.volumes, self.environment)
        assert subprocess.run(running, env=self.engine.environment, check=False).returncode == 0, "not healthy"

    def kill(self) -> None:
        """Kill all processes at once, as a loss of power does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(TIMEOUT_SECONDS)
        self._wait_until_gone()

    def stop(self) -> float:
        """Send SIGTERM to the first process, as an engine does, and return the seconds until all have ended."""
        began = time.monotonic()
        os.kill(self.processes()[0], signal.SIGTERM)
        status = self.process.wait(TIMEOUT_SECONDS)
        assert status == 0, f"exited with status {status}:\n{self.log.read_text()[-4000:]}"
        self._wait_until_gone()
        return time.monotonic() - began

    def _wait_until_gone(self) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self._is_ready():
            assert time.monotonic() < deadline, "the port is still open"
            time.sleep(0.05)


def _read(path: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(path).read_bytes()
    return b""


def _children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*") for child in _read(f"{task}/children").split()]


def _is_python(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "python" in Path(f"/proc/{pid}/exe").readlink().name
    return False


@contextlib.contextmanager
def serving(
    engine: Engine, container: str, command: list[str], volumes: dict, environment: dict
) -> Iterator[ContainerServer]:
    server = ContainerServer(engine, container, command, volumes, environment)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()


def create_volume(engine: Engine, image: dict) -> Path:
    """Create a volume for the data, with the owner of the folder in the image."""
    data = engine.folder / secrets.token_hex(4)
    data.mkdir()
    os.chown(data, int(image["User"]), int(image["User"]))
    return data


def create_packs(engine: Engine) -> Path:
    packs = engine.folder / "packs"
    packs.mkdir(exist_ok=True)
    (packs / "counter.py").write_text(PACK)
    return packs


def environment_variables(**more: str) -> dict[str, str]:
    return {"TOOLPACK_PORT": str(free_port()), "TOOLPACK_TOKENS": f"me:{secrets.token_hex(16)}", **more}


def check_defaults(engine: Engine, image: dict) -> None:
    """Serve with the image's defaults, and check the user and the health. Then kill the server.

    A second server on the same volume must continue the session, and stop within `STOP_SECONDS`.
    """
    volumes = {create_volume(engine, image): "/data", create_packs(engine): "/packs:ro"}
    command, environment = [*image["Entrypoint"], *image["Cmd"]], environment_variables()
    with engine.container(IMAGE) as container:
        with serving(engine, container, command, volumes, environment) as server:
            owners = {Path(f"/proc/{pid}").stat().st_uid for pid in server.processes()}
            assert owners == {int(image["User"])}, f"the server runs as {owners}"
            server.check_health(image["Healthcheck"]["Test"])
            session = server.rpc("create_session", toolpacks=["counter"])["session_id"]
            call = {"session_id": session, "function": "increase", "call_id": "one"}
            assert server.rpc("run_function", **call) == {"result": 1, "error": None}
            server.kill()
        with serving(engine, container, command, volumes, environment) as server:
            assert server.rpc("run_function", **call) == {"result": 1, "error": None}, "the call ran twice"
            assert server.rpc("run_function", **{**call, "call_id": "two"})["result"] == 2, "the session was lost"
            seconds = server.stop()
            assert seconds <= STOP_SECONDS, f"SIGTERM took {seconds:.1f} s"
    print(f"image: served, healthy, killed, continued, stopped in {seconds:.1f} s")


def check_seed_and_clock(engine: Engine, image: dict) -> None:
    """Use a session with a seed and a clock, to check that the image has the packages that these need."""
    volumes = {create_volume(engine, image): "/data", create_packs(engine): "/packs:ro"}
    command, environment = [*image["Entrypoint"], *image["Cmd"]], environment_variables(TOOLPACK_ISOLATION="process")
    with (
        engine.container(IMAGE) as container,
        serving(engine, container, command, volumes, environment) as server,
    ):
        options = {"seed": "1", "clock": "2026-01-01T00:00:00Z"}
        session = server.rpc("create_session", toolpacks=["counter"], **options)["session_id"]
        assert server.rpc("run_function", session_id=session, function="increase")["result"] == 1
        server.stop()
    print("image: a session with a seed and a clock")


def check_author_commands(engine: Engine, image: dict) -> None:
    """Check that the image has the commands of authors: `check` with function calls, `audit` and `conform`."""
    volumes = {create_packs(engine): "/packs:ro"}
    with engine.container(IMAGE) as container:
        for words, output in (
            ("check --pack-dir /packs --packs counter --calls", "no problems."),
            ("audit --help", "Try to pass tasks"),
            ("conform --toolpack", "toolpack"),
        ):
            command = engine.run(container, [*image["Entrypoint"], *words.split()], volumes, {})
            process = subprocess.run(command, env=engine.environment, capture_output=True, text=True, check=False)
            assert process.returncode == 0, f"{words}: {process.stderr[-2000:]}"
            assert output in process.stdout, f"{words}: {process.stdout[-2000:]}"
    print("image: `check` calls functions, and has `audit` and `conform`")


def check_derived_image(engine: Engine) -> None:
    """Build the image that docs/operate/deploy.md shows for toolpacks with further packages, and use a toolpack."""
    page = (ROOT / "docs" / "operate" / "deploy.md").read_text()
    context, tag = engine.folder / "own", "own"
    (context / "packs").mkdir(parents=True)
    (context / "Dockerfile").write_text(re.search(r"^```text\n(FROM .*?)^```$", page, re.MULTILINE | re.DOTALL)[1])
    uses = PACK.replace("environment.count +=", "environment.count += polars.Series([0]).sum() +")
    (context / "packs" / "counter.py").write_text(uses.replace("from typing", "import polars\nfrom typing"))
    engine.build(context, tag)
    image = engine.image(tag)
    volumes, environment = {create_volume(engine, image): "/data"}, environment_variables()
    command = [*image["Entrypoint"], *image["Cmd"]]
    with engine.container(tag) as container, serving(engine, container, command, volumes, environment) as server:
        session = server.rpc("create_session")["session_id"]
        assert server.rpc("run_function", session_id=session, function="increase")["result"] == 1
        server.stop()
    print("image for toolpacks with further packages: a call that uses one")


def start_redis(command: list[str], port: int) -> subprocess.Popen:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    with redis.Redis(port=port) as client:
        while True:
            with contextlib.suppress(redis.ConnectionError, redis.BusyLoadingError):
                client.ping()
                return process
            assert time.monotonic() < deadline, "redis-server doesn't answer"
            time.sleep(0.05)


def check_compose(engine: Engine, image: dict) -> None:
    """Run the two services of compose.yaml as two processes with its settings, and kill Redis between two calls.

    The answered call must not be lost.
    """
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    data, port = engine.folder / "redis-data", free_port()
    data.mkdir()
    program, *settings = services["redis"]["command"]
    assert program == "redis-server", program
    local_settings = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(data)]
    redis_command = [find() or sys.exit("redis-server isn't installed"), *settings, *local_settings]
    store = f"redis://127.0.0.1:{port}"
    command = [part.replace("redis://redis:6379", store) for part in services["server"]["command"]]
    volumes = {create_volume(engine, image): "/data", create_packs(engine): "/packs:ro"}
    environment = environment_variables(TOOLPACK_SECRET_KEY=secrets.token_hex(32))
    process = start_redis(redis_command, port)
    try:
        with (
            engine.container(IMAGE) as container,
            serving(engine, container, [*image["Entrypoint"], *command], volumes, environment) as server,
        ):
            session = server.rpc("create_session", toolpacks=["counter"])["session_id"]
            assert server.rpc("run_function", session_id=session, function="increase")["result"] == 1
            process.kill()
            process.wait()
            process = start_redis(redis_command, port)
            server.wait_until_ready()
            assert server.rpc("run_function", session_id=session, function="increase")["result"] == 2
            server.stop()
    finally:
        process.kill()
        process.wait()
    print("compose.yaml: two services, Redis killed and started again, nothing lost")


def missing_requirement() -> str | None:
    """Return the reason why this machine can't run the test, or None."""
    if os.getuid() != 0:
        return "it needs root"
    tools = [tool for tool in ("buildah", "mmdebstrap", "apt-get") if shutil.which(tool) is None]
    return f"{', '.join(tools)} not installed" if tools else None


def main() -> None:
    reason = missing_requirement()
    if reason is not None:
        print(f"The container wasn't tested: {reason}.")
        return
    base = re.search(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[1]
    with tempfile.TemporaryDirectory(prefix="toolpack-container-") as folder:
        Path(folder).chmod(0o755)  # the image's user must be able to read the toolpacks in it
        engine = Engine(Path(folder))
        engine.make_base(base)
        engine.build(ROOT, IMAGE)
        image = engine.image(IMAGE)
        check_defaults(engine, image)
        check_seed_and_clock(engine, image)
        check_author_commands(engine, image)
        check_derived_image(engine)
        check_compose(engine, image)


if __name__ == "__main__":
    main()
