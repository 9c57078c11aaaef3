"""Build what a release is made of, twice, and try it where nothing else is.

    python -m tools.release --into dist

It makes the sdist, the wheel, the wheels of packages/, and a CycloneDX SBOM of what is installed with the server's
wheel. Everything is made twice, in other folders, at other times, from files of other dates and rights, and must come
out the same to the last bit. Then the wheel alone is installed into an empty environment, with no repository around,
where the server has to serve, and where a toolpack package is made, installed and found. The sdist is installed, too,
and with it the wheels of packages/, of which each must bring its commands. With `--into` the files are kept in that
folder.

All but uv is installed by uv: pip would take most of the time. Exit status 1 means that something was wrong, which is
printed. It takes a minute, and the network.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Exactly these versions: an SBOM says what has made it. That of hatchling, which a wheel says, is in pyproject.toml.
TOOLS = ("build[uv]==1.6.1", "cyclonedx-bom==7.5.0")
PIP = (sys.executable, "-m", "pip")
IN_WHEEL = ("toolpack_server", "toolpacks")
TASK = "bank/save-300"
IGNORED = ("__pycache__", ".git", ".venv*", ".*_cache", ".hypothesis", ".toolpack-server", "build", "dist")


def run(*command: str | Path, **options) -> str:
    """Run a command where no variable leads to this project, and get what it prints."""
    ours = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOOLPACK_")}
    environment = {name: value for name, value in inherited.items() if name not in ours} | options.pop("more", {})
    done = subprocess.run(
        [*map(str, command)], env=environment, capture_output=True, text=True, check=False, timeout=600, **options
    )
    if done.returncode:
        fail(f"{' '.join(map(str, command))} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def fail(text: str) -> None:
    sys.exit(f"release: {text}")


def check(fact: object, text: str) -> None:
    if not fact:
        fail(text)


class Environment:
    """An empty virtual environment, without pip, in a folder."""

    def __init__(self, folder: Path, uv: Path) -> None:
        run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
        self.folder, self.bin, self._uv = folder, folder / "venv" / "bin", uv

    def install(self, *what: str | Path) -> None:
        run(self._uv, "pip", "install", "-q", "--python", self.bin / "python", *what, cwd=self.folder)

    def run(self, command: str, *arguments: str | Path, **options) -> str:
        return run(self.bin / command, *arguments, cwd=self.folder, **options)


def uv(folder: Path) -> Path:
    """Get uv into a folder by pip, and have it use the index that pip uses."""
    asked = subprocess.run([*PIP, "config", "get", "global.index-url"], capture_output=True, text=True, check=False)
    if index := os.environ.get("PIP_INDEX_URL") or asked.stdout.strip():
        os.environ.setdefault("UV_DEFAULT_INDEX", index)
    run(*PIP, "install", "-q", "--no-deps", "--target", folder / "uv", "uv")
    return folder / "uv" / "bin" / "uv"


def copied(folder: Path, *, date: int, mode: int) -> Path:
    """Copy the project to a folder; its files get a date, in seconds since the epoch, and rights."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*IGNORED))
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode | (path.stat().st_mode & 0o100))
            os.utime(path, (date, date))
    return folder


def build(tools: Path, source: Path, *flags: str, **more: str) -> list[Path]:
    """Build the sdist and the wheel of a copy."""
    run(tools / "python", "-m", "build", "--installer", "uv", *flags, source, more=more)
    return sorted((source / "dist").iterdir())


def packages(source: Path) -> list[Path]:
    """Get the folders of the distributions beside the server's."""
    return sorted(path.parent for path in source.glob("packages/*/pyproject.toml"))


def build_packages(tools: Path, source: Path, **more: str) -> list[Path]:
    """Build the wheels of a copy's packages."""
    return [path for folder in packages(source) for path in build(tools, folder, "--wheel", **more)]


def compare(first: list[Path], second: list[Path]) -> None:
    names = [path.name for path in first]
    check(names == [path.name for path in second], "two builds have made files of other names")
    for one, other in zip(first, second, strict=True):
        check(one.read_bytes() == other.read_bytes(), f"{one.name} comes out differently the second time")


def check_wheel(wheel: Path, source: Path, packages: Iterable[str] = IN_WHEEL) -> None:
    """Check that a wheel holds what a project has of its import packages, once, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        held = archive.namelist()
    check(len(held) == len(set(held)), f"{wheel.name} holds files twice")
    files = [path for name in packages for path in [source / name, *(source / name).rglob("*")] if path.is_file()]
    about = re.match(r"[^-]+-[^-]+", wheel.name)[0] + ".dist-info/"
    named = {name for name in held if not name.startswith(about)}
    differing = {str(path.relative_to(source)) for path in files} ^ named
    check(not differing, f"{wheel.name} lacks, or has besides: {', '.join(sorted(differing))}")


def extras_of_image() -> str:
    """Get the extras that the Dockerfile installs."""
    found = re.search(r"\.whl\)\[([\w,]+)\]", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    check(found, "the Dockerfile installs the wheel in another way than is looked for here")
    return found[1]


def bill(tools: Path, source: Path, environment: Environment, file: Path) -> Path:
    """Make the SBOM of what is installed in an environment, which is validated on the way."""
    flags = ["--validate", "--output-reproducible", "--of", "JSON", "--mc-type", "application"]
    run(
        tools / "cyclonedx-py",
        *("environment", *flags, "--pyproject", source / "pyproject.toml", "-o", file, environment.bin / "python"),
    )
    return file


def check_bill(file: Path, environment: Environment) -> None:
    """Check that an SBOM has every installed distribution, and no path of this machine."""
    text = file.read_text()
    found = json.loads(text)
    own = found["metadata"]["component"]
    listed = {(each["name"], each["version"]) for each in [own, *found["components"]]}
    code = "import importlib.metadata as m, json; print(json.dumps([(d.name, d.version) for d in m.distributions()]))"
    installed = {(name, version) for name, version in json.loads(environment.run("python", "-c", code))}
    check(listed == installed, f"the SBOM lacks, or has besides: {sorted(listed ^ installed)}")
    check("file:" not in text and str(environment.folder) not in text, "the SBOM has a path of this machine")


@contextlib.contextmanager
def served(environment: Environment, *arguments: str) -> Iterator[str]:
    """Run a server, and get its URL."""
    log = environment.folder / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [environment.bin / "toolpack-server", "serve", "--port", "0", *arguments],
            cwd=environment.folder,
            env={"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        )
    try:
        for line in process.stdout:
            if url := re.search(r"http://\S+:\d+", line):
                break
        else:
            fail(f"the server doesn't start:\n{log.read_text()}")
        yield url[0]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def rpc(url: str, method: str, path: str = "/rpc", **params):
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    request = urllib.request.Request(url + path, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        answer = json.load(reply)
    check("result" in answer, f"{method} was refused: {answer}")
    return answer["result"]


def check_serving(environment: Environment, version: str, source: Path) -> None:
    """Check that a server serves the bundled toolpacks there, lets a task be done, and shows the console."""
    with served(environment) as url:
        listed = {each["name"]: each for each in rpc(url, "list_toolpacks")}
        check(listed.keys() == {"bank", "office", "workspace"}, f"other toolpacks are served: {[*listed]}")
        check({each["version"] for each in listed.values()} == {version}, "their version is another")
        session = rpc(url, "create_session", task=TASK)
        session_id = session["session_id"]
        check(session["toolpack_versions"] == {"bank": version}, "a session doesn't keep their version")
        solution = rpc(url, "get_solution", session_id=session_id)
        for call in solution["calls"]:
            asked = {"function": call["function"], "kwargs": call["kwargs"]}
            envelope = rpc(url, "run_function", session["agent_path"], **asked)
            check(envelope["error"] is None, f"{call['function']}: {envelope['error']}")
        rpc(url, "submit_answer", session_id=session_id, answer=solution["answer"] or "")
        check(rpc(url, "evaluate_session", session_id=session_id)["passed"], f"the solution of {TASK} doesn't pass")
        console = source / "server" / "toolpack_server" / "console"
        for path in console.rglob("*.[chjs]*"):  # not the licence of what is vendored
            name = "" if path.name == "index.html" else path.relative_to(console).as_posix()
            with urllib.request.urlopen(f"{url}/console/{name}", timeout=60) as reply:
                shown = re.sub(rb"\b[0-9a-f]{24}/", b"", reply.read())  # the folder in which the page names its files
            check(shown == path.read_bytes(), f"the console's {path.name} is another")
        with urllib.request.urlopen(f"{url}/openrpc.json", timeout=60) as reply:
            described = json.loads((source / "schemas" / "openrpc.json").read_text(encoding="utf-8"))
            check(json.load(reply) == described, "the OpenRPC document is another")
        try:
            urllib.request.urlopen(f"{url}/list_environments", timeout=60)
        except urllib.error.HTTPError as error:
            check(b"toolpack-trainers" in error.read(), "nothing says which package has the trainers' paths")
        else:
            fail("the wheel alone has the trainers' paths")


def check_packages(environment: Environment, source: Path) -> None:
    """Check that the commands of packages/, and no others, came with their wheels."""
    listed = environment.run("toolpack-server", "--help").partition("Commands:")[2]
    for folder in packages(source):
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for name in project["entry-points"]["toolpack_server.commands"]:
            check(re.search(rf"^  {name}  ", listed, re.MULTILINE), f"{project['name']} brings no command {name}")
            environment.run("toolpack-server", name, "--help")
    written = environment.folder / "conform.py"
    written.write_text(environment.run("toolpack-server", "conform", "--toolpack"), encoding="utf-8")
    with served(environment, "--pack-dir", ".", "--packs", "conform") as url:
        asked = environment.run("toolpack-server", "conform", "--url", url, "--guarantee", "atomic")
    check("all passed" in asked, f"the server doesn't conform:\n{asked}")


def check_package(environment: Environment) -> None:
    """Check that a toolpack package can be written there, tested and found."""
    environment.run("toolpack-server", "new", "--package", "errands")
    environment.install("-e", "errands-toolpack[test]")
    check("3 passed" in environment.run("python", "-m", "pytest", "errands-toolpack"), "not all tests were run")
    listed = environment.run("toolpack-server", "list", "--packs", "errands")
    check(listed.startswith("errands (errands-toolpack 0.1.0)\n"), f"the package isn't listed: {listed}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, help="Folder that gets the files.")
    into = parser.parse_args().into
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        tools = folder / "tools" / "venv" / "bin"
        Environment(folder / "tools", uv(folder)).install(*TOOLS)
        source = copied(folder / "one", date=1_700_000_000, mode=0o644)
        again = copied(folder / "elsewhere" / "two", date=1_000_000_000, mode=0o600)
        files = build(tools, source)  # the wheel is built from the sdist
        compare(files, build(tools, again, "--sdist", "--wheel", TZ="Asia/Tokyo", PYTHONHASHSEED="1", LC_ALL="C"))
        sdist, wheel = sorted(files, key=lambda path: path.suffix)
        version = wheel.name.split("-")[1]
        check_wheel(wheel, again)
        more = build_packages(tools, source)
        compare(more, build_packages(tools, again, TZ="Asia/Tokyo", PYTHONHASHSEED="1", LC_ALL="C"))
        for path, of in zip(more, packages(again), strict=True):
            check_wheel(path, of, [of.name.replace("-", "_")])
            check(path.name.split("-")[1] == version, f"{path.name} isn't of version {version}")
        print("The sdist and the wheels came out the same twice.")

        alone, of_sdist = (Environment(folder / name, tools / "uv") for name in ("alone", "of-sdist"))
        alone.install(wheel)
        of_sdist.install(sdist)
        files.append(bill(tools, source, alone, folder / f"toolpack_server-{version}.cdx.json"))
        check_bill(files[-1], alone)
        compare(files[-1:], [bill(tools, again, of_sdist, folder / "elsewhere" / files[-1].name)])
        in_image = Environment(folder / "in-image", tools / "uv")
        in_image.install(f"{wheel}[{extras_of_image()}]", *more)
        for path in more:  # by their names, as an SBOM says from which folder a file was installed
            known = ["--no-index", "--no-deps", "--force-reinstall", "--find-links", path.parent]
            in_image.install(*known, f"{path.name.split('-')[0]}=={version}")
        files.append(bill(tools, source, in_image, folder / f"toolpack_server-{version}.image.cdx.json"))
        check_bill(files[-1], in_image)
        print("The SBOM is valid, and came out the same twice; that of the image, with its extras, is valid, too.")

        check_serving(alone, version, source)
        check_package(alone)
        of_sdist.install(*more)
        check_packages(of_sdist, source)
        check("bank" in of_sdist.run("toolpack-server", "list"), "what the sdist has installed doesn't work")
        print("Installed alone, the wheel serves, and takes a toolpack package; the sdist can be installed, too.")
        for file in [*files, *more]:
            print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}")
            if into is not None:
                into.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, into)


if __name__ == "__main__":
    main()
