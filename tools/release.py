"""Builder and tester of a release: it builds all files twice, and tests them in empty environments.

    python -m tools.release --into dist

The program builds the sdist, the wheel, the wheels of packages/, and a CycloneDX SBOM of the packages that are
installed with the server's wheel. Both builds must be equal to the last bit, although folders, times, dates and
permissions of files differ. Then it checks two installations:

- An empty environment gets only the wheel. Its server must serve, and must find a toolpack package that was created and
  installed there.
- Another environment gets the sdist and the wheels of packages/. Each of these wheels must add its commands.

With `--into` the files are stored in that folder. uv installs all packages, because pip would take most of the time.
Exit status 1 means that a check failed; the failure is printed. The program takes a minute, and needs the network.
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
# Exact versions, because an SBOM names its generator. A wheel names hatchling, whose version is in pyproject.toml.
TOOLS = ("build[uv]==1.6.1", "cyclonedx-bom==7.5.0")
PIP = (sys.executable, "-m", "pip")
IN_WHEEL = ("server/toolpack_server", "toolpacks")
TASK = "bank/save-300"
IGNORED = ("__pycache__", ".git", ".venv*", ".*_cache", ".hypothesis", ".toolpack-server", "build", "dist")


def run(*command: str | Path, **options) -> str:
    """Run a command without environment variables that refer to this project, and return its output."""
    ignored = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOOLPACK_")}
    environment = {name: value for name, value in inherited.items() if name not in ignored} | options.pop("more", {})
    process = subprocess.run(
        [*map(str, command)], env=environment, capture_output=True, text=True, check=False, timeout=600, **options
    )
    if process.returncode:
        fail(f"{' '.join(map(str, command))} failed:\n{process.stdout[-4000:]}{process.stderr[-4000:]}")
    return process.stdout


def fail(text: str) -> None:
    sys.exit(f"release: {text}")


def check(condition: object, text: str) -> None:
    if not condition:
        fail(text)


class Environment:
    """An empty virtual environment, without pip, in a folder."""

    def __init__(self, folder: Path, uv: Path) -> None:
        run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
        self.folder, self.bin, self._uv = folder, folder / "venv" / "bin", uv

    def install(self, *requirements: str | Path) -> None:
        run(self._uv, "pip", "install", "-q", "--python", self.bin / "python", *requirements, cwd=self.folder)

    def run(self, command: str, *arguments: str | Path, **options) -> str:
        return run(self.bin / command, *arguments, cwd=self.folder, **options)


def uv(folder: Path) -> Path:
    """Install uv into a folder with pip, and configure it with pip's index."""
    config = subprocess.run([*PIP, "config", "get", "global.index-url"], capture_output=True, text=True, check=False)
    if index := os.environ.get("PIP_INDEX_URL") or config.stdout.strip():
        os.environ.setdefault("UV_DEFAULT_INDEX", index)
    run(*PIP, "install", "-q", "--no-deps", "--target", folder / "uv", "uv")
    return folder / "uv" / "bin" / "uv"


def copy_project(folder: Path, *, date: int, mode: int) -> Path:
    """Copy the project to a folder. All files get this date, in seconds since the epoch, and these permissions."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*IGNORED))
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode | (path.stat().st_mode & 0o100))
            os.utime(path, (date, date))
    return folder


def build(tools: Path, source: Path, *flags: str, **more: str) -> list[Path]:
    """Build the sdist and the wheel of a copy, and return their paths. `more` has environment variables."""
    run(tools / "python", "-m", "build", "--installer", "uv", *flags, source, more=more)
    return sorted((source / "dist").iterdir())


def packages(source: Path) -> list[Path]:
    """Return the folders of the distributions besides the server's."""
    return sorted(path.parent for path in source.glob("packages/*/pyproject.toml"))


def build_packages(tools: Path, source: Path, **more: str) -> list[Path]:
    """Build the wheels of a copy's packages."""
    return [path for folder in packages(source) for path in build(tools, folder, "--wheel", **more)]


def compare(first: list[Path], second: list[Path]) -> None:
    """Check that the files of two builds have the same names and the same bytes."""
    names = [path.name for path in first]
    check(names == [path.name for path in second], "the two builds have files of different names")
    for one, other in zip(first, second, strict=True):
        check(one.read_bytes() == other.read_bytes(), f"{one.name} differs between the two builds")


def check_wheel(wheel: Path, source: Path, packages: Iterable[str] = IN_WHEEL) -> None:
    """Check that a wheel contains the project's import packages, each file once, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names_in_wheel = archive.namelist()
    check(len(names_in_wheel) == len(set(names_in_wheel)), f"{wheel.name} has some files twice")
    roots = [source / name for name in packages]
    files = {
        str(path.relative_to(root.parent)) for root in roots for path in [root, *root.rglob("*")] if path.is_file()
    }
    metadata_folder = re.match(r"[^-]+-[^-]+", wheel.name)[0] + ".dist-info/"
    files_in_wheel = {name for name in names_in_wheel if not name.startswith(metadata_folder)}
    differing = files ^ files_in_wheel
    check(not differing, f"{wheel.name} lacks these files, or has them in addition: {', '.join(sorted(differing))}")


def extras_of_image() -> str:
    """Return the extras that the Dockerfile installs."""
    extras = re.search(r"\.whl\)\[([\w,]+)\]", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    check(extras, "the Dockerfile has no command of the form `….whl)[EXTRAS]` that installs the wheel")
    return extras[1]


def write_sbom(tools: Path, source: Path, environment: Environment, file: Path) -> Path:
    """Write the SBOM of an environment's packages, and validate it."""
    flags = ["--validate", "--output-reproducible", "--of", "JSON", "--mc-type", "application"]
    run(
        tools / "cyclonedx-py",
        *("environment", *flags, "--pyproject", source / "pyproject.toml", "-o", file, environment.bin / "python"),
    )
    return file


def check_sbom(file: Path, environment: Environment) -> None:
    """Check that an SBOM lists the installed distributions and no others, and has no path of this machine."""
    text = file.read_text()
    document = json.loads(text)
    own = document["metadata"]["component"]
    listed = {(each["name"], each["version"]) for each in [own, *document["components"]]}
    code = "import importlib.metadata as m, json; print(json.dumps([(d.name, d.version) for d in m.distributions()]))"
    installed = {(name, version) for name, version in json.loads(environment.run("python", "-c", code))}
    check(
        listed == installed,
        (f"the SBOM lacks these distributions, or has them in addition: {sorted(listed ^ installed)}"),
    )
    check("file:" not in text and str(environment.folder) not in text, "the SBOM has a path of this machine")


@contextlib.contextmanager
def run_server(environment: Environment, *arguments: str) -> Iterator[str]:
    """Run a server, and yield its URL."""
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
    """Check that an environment's server serves the bundled toolpacks, a task, the console and the OpenRPC document."""
    with run_server(environment) as url:
        listed = {each["name"]: each for each in rpc(url, "list_toolpacks")}
        del listed["world"]  # a part of the server, without the version of a toolpack
        check(
            listed.keys() == {"bank", "errands", "office", "workspace"},
            f"the server doesn't serve exactly the bundled toolpacks: {[*listed]}",
        )
        check({each["version"] for each in listed.values()} == {version}, "the toolpacks have another version")
        session = rpc(url, "create_session", task=TASK)
        session_id = session["session_id"]
        check(session["toolpack_versions"] == {"bank": version}, "a session doesn't store the version")
        solution = rpc(url, "get_solution", session_id=session_id)
        for call in solution["calls"]:
            params = {"function": call["function"], "kwargs": call["kwargs"]}
            envelope = rpc(url, "run_function", session["agent_path"], **params)
            check(envelope["error"] is None, f"{call['function']}: {envelope['error']}")
        rpc(url, "submit_answer", session_id=session_id, answer=solution["answer"] or "")
        check(rpc(url, "evaluate_session", session_id=session_id)["passed"], f"the solution of {TASK} doesn't pass")
        console = source / "server" / "toolpack_server" / "console"
        for path in console.rglob("*.[chjs]*"):  # CSS, HTML, JavaScript and SVG, but no licences of vendored code
            name = "" if path.name == "index.html" else path.relative_to(console).as_posix()
            with urllib.request.urlopen(f"{url}/console/{name}", timeout=60) as reply:
                body = re.sub(rb"\b[0-9a-f]{24}/", b"", reply.read())  # the page's paths have a folder with a hash
            check(body == path.read_bytes(), f"the console's {path.name} differs from the source")
        with urllib.request.urlopen(f"{url}/openrpc.json", timeout=60) as reply:
            expected = json.loads((source / "schemas" / "openrpc.json").read_text(encoding="utf-8"))
            check(json.load(reply) == expected, "the OpenRPC document differs from the source")
        try:
            urllib.request.urlopen(f"{url}/list_environments", timeout=60)
        except urllib.error.HTTPError as error:
            check(b"toolpack-trainers" in error.read(), "the error doesn't name the package with the trainers' paths")
        else:
            fail("the wheel alone has the trainers' paths")


def check_packages(environment: Environment, source: Path) -> None:
    """Check that the wheels of packages/ added their commands, and that the server passes a check of `conform`."""
    listed = environment.run("toolpack-server", "--help").partition("Commands:")[2]
    for folder in packages(source):
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for name in project["entry-points"]["toolpack_server.commands"]:
            check(re.search(rf"^  {name}  ", listed, re.MULTILINE), f"{project['name']} doesn't add the command {name}")
            environment.run("toolpack-server", name, "--help")
    toolpack_file = environment.folder / "conform.py"
    toolpack_file.write_text(environment.run("toolpack-server", "conform", "--toolpack"), encoding="utf-8")
    with run_server(environment, "--pack-dir", ".", "--packs", "conform") as url:
        output = environment.run("toolpack-server", "conform", "--url", url, "--guarantee", "atomic")
    check("all passed" in output, f"the server doesn't conform:\n{output}")


def check_package(environment: Environment) -> None:
    """Check that a toolpack package can be created, tested and found in an environment."""
    environment.run("toolpack-server", "new", "--package", "groceries")
    environment.install("-e", "groceries-toolpack[test]")
    check("3 passed" in environment.run("python", "-m", "pytest", "groceries-toolpack"), "not all tests ran")
    listed = environment.run("toolpack-server", "list", "--packs", "groceries")
    check(listed.startswith("groceries (groceries-toolpack 0.1.0)\n"), f"the package isn't listed: {listed}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, help="Folder for the files.")
    into = parser.parse_args().into
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tools = folder / "tools" / "venv" / "bin"
        Environment(folder / "tools", uv(folder)).install(*TOOLS)
        source = copy_project(folder / "one", date=1_700_000_000, mode=0o644)
        second_source = copy_project(folder / "elsewhere" / "two", date=1_000_000_000, mode=0o600)
        files = build(tools, source)  # the wheel is built from the sdist
        compare(
            files, build(tools, second_source, "--sdist", "--wheel", TZ="Asia/Tokyo", PYTHONHASHSEED="1", LC_ALL="C")
        )
        sdist, wheel = sorted(files, key=lambda path: path.suffix)
        version = wheel.name.split("-")[1]
        check_wheel(wheel, second_source)
        package_wheels = build_packages(tools, source)
        compare(package_wheels, build_packages(tools, second_source, TZ="Asia/Tokyo", PYTHONHASHSEED="1", LC_ALL="C"))
        for path, package in zip(package_wheels, packages(second_source), strict=True):
            check_wheel(path, package, [package.name.replace("-", "_")])
            check(path.name.split("-")[1] == version, f"{path.name} isn't of version {version}")
        print("Both builds of the sdist and of the wheels are equal.")

        from_wheel, from_sdist = (Environment(folder / name, tools / "uv") for name in ("alone", "of-sdist"))
        from_wheel.install(wheel)
        from_sdist.install(sdist)
        files.append(write_sbom(tools, source, from_wheel, folder / f"toolpack_server-{version}.cdx.json"))
        check_sbom(files[-1], from_wheel)
        compare(files[-1:], [write_sbom(tools, second_source, from_sdist, folder / "elsewhere" / files[-1].name)])
        in_image = Environment(folder / "in-image", tools / "uv")
        in_image.install(f"{wheel}[{extras_of_image()}]", *package_wheels)
        for path in package_wheels:  # by name, because an SBOM names the folder that a file was installed from
            offline = ["--no-index", "--no-deps", "--force-reinstall", "--find-links", path.parent]
            in_image.install(*offline, f"{path.name.split('-')[0]}=={version}")
        files.append(write_sbom(tools, source, in_image, folder / f"toolpack_server-{version}.image.cdx.json"))
        check_sbom(files[-1], in_image)
        print(
            "The SBOM is valid, and both builds of it are equal. The SBOM of the image, with its extras, is valid too."
        )

        check_serving(from_wheel, version, source)
        check_package(from_wheel)
        from_sdist.install(*package_wheels)
        check_packages(from_sdist, source)
        check("bank" in from_sdist.run("toolpack-server", "list"), "the installation from the sdist doesn't work")
        print("Installed alone, the wheel serves and accepts a toolpack package. The sdist can be installed too.")
        for file in [*files, *package_wheels]:
            print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}")
            if into is not None:
                into.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, into)


if __name__ == "__main__":
    main()
