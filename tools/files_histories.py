"""Random histories of sessions' files, compared with real directories: results, errors and trees must be equal.

    python -m tools.files_histories --histories 500 --store sqlite --isolation process --kills 2

A history is a random sequence of calls, resets and forks. `history` plays one on a server. `Histories` plays one on the
classes that store files, without a server.
"""

import base64
import io
import itertools
import os
import random
import shutil
import sys
import tarfile
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import click
import jsonpatch
import serving
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from toolpack_server.features.volumes.files.files import Files
from toolpack_server.features.volumes.files.files_tree import FileNode, FolderNode, LinkNode, size_of, walk
from toolpack_server.packs.loading import load_catalog
from toolpack_server.volumes.volume import Limits, VolumeContext
from tools import database_histories

load_catalog((serving.PACKS,), ("papers",))
papers = sys.modules["toolpacks.papers"]

NAMES = st.sampled_from(["a", "b", "c", "d.txt", "é", ".hidden", "n" * 300])
STEPS = st.one_of(NAMES, NAMES, NAMES, NAMES, st.sampled_from(["..", ".", ""]))
PATHS = st.lists(STEPS, min_size=1, max_size=4).map("/".join)
TARGETS = st.lists(st.one_of(NAMES.filter(lambda name: len(name) < 100), st.just("..")), min_size=1, max_size=3).map(
    "/".join
)
CONTENTS = st.one_of(st.binary(max_size=6), st.sampled_from([b"", b"text\n", b"\xff", b"long" * 5000]))
# Paths without the root itself, because only the real directory lets a program delete its root.
INNER_PATHS = PATHS.filter(lambda path: path.strip("./"))
PATTERNS = st.sampled_from(["*", "*/*", "**/*", "**/*.txt", "a/*", "[ab]/?", "*/a", "a/b", ".*", "**/a/*", "*/", "é"])


def outcome(function):
    """Call a function. Return its result, or the class and the number of its error."""
    try:
        return function()
    except (OSError, ValueError) as error:
        return type(error), getattr(error, "errno", None)


def tree_on_disk(folder):
    """Return the content of a real folder: folders, links, and files with their content and permissions."""
    tree = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            tree[name] = "link", str(path.readlink())
        elif path.is_dir():
            tree[name] = "folder", ""
        else:
            tree[name] = "file", path.read_bytes(), bool(path.stat().st_mode & 0o100)
    return tree


def leads_out(folder):
    """Return whether a link in a real folder points outside it."""
    links = [path for path in folder.rglob("*") if path.is_symlink()]
    return not all(Path(os.path.realpath(link)).is_relative_to(folder) for link in links)


class Histories(RuleBasedStateMachine):
    """A history of files, beside a real directory and the pieces in which the files are stored."""

    def __init__(self):
        super().__init__()
        self.base = Path(tempfile.mkdtemp()).resolve()
        self.real = self.base / "real"
        self.real.mkdir()
        self.number = 0
        self.bodies = [Files().build(Limits())]
        self.versions = []  # the pieces and a copy of the real directory at each version
        self.load()
        self.save()

    def teardown(self):
        shutil.rmtree(self.base)

    def new_path(self):
        self.number += 1
        return self.base / str(self.number)

    def load(self):
        """Load the stored pieces, as after the loss of a worker."""
        context = VolumeContext({}, SimpleNamespace(new_path=self.new_path), Limits())
        self.working = Files.load(self.bodies, context)
        self.begin()

    def begin(self):
        """Begin a call."""
        self.files = Files.__new__(Files)
        self.files.mount = SimpleNamespace(
            copy=lambda: self.working,
            read_only="",
            pinned=False,
            ended=False,
            context=SimpleNamespace(limits=Limits()),
        )

    def save(self):
        self.versions.append(([*self.bodies], self.new_path()))
        shutil.copytree(self.real, self.versions[-1][1], symlinks=True)

    def restore(self, folder):
        shutil.rmtree(self.real)
        shutil.copytree(folder, self.real, symlinks=True)

    def at(self, path):
        return Path(f"{self.real}/{path}")

    def check_same(self, our_outcome, real_outcome):
        """Check that an operation has the same outcome on the files and on the real directory.

        A path that leads outside is skipped, because only the files refuse it.
        """
        result = outcome(our_outcome)
        if result == (PermissionError, 13):
            return
        assert result == outcome(real_outcome)

    @rule(path=PATHS)
    def read(self, path):
        self.check_same(lambda: self.files.read_bytes(path), lambda: self.at(path).read_bytes())
        self.check_same(lambda: self.files.size(path), lambda: len(self.at(path).read_bytes()))

    @rule(path=PATHS, text=st.text("ab\r\né", max_size=5))
    def write_text(self, path, text):
        self.check_same(lambda: self.files.write_text(path, text), lambda: self.at(path).write_text(text, "utf-8"))
        self.check_same(lambda: self.files.read_text(path), lambda: self.at(path).read_text("utf-8"))

    @rule(path=PATHS, content=CONTENTS)
    def write(self, path, content):
        self.check_same(lambda: self.files.write_bytes(path, content), lambda: self.at(path).write_bytes(content))

    @rule(path=PATHS.filter(lambda path: len(path) < 100), question=st.sampled_from(["exists", "is_file", "is_dir"]))
    def ask(self, path, question):
        self.check_same(lambda: getattr(self.files, question)(path), getattr(self.at(path), question))

    @rule(path=PATHS)
    def look_into(self, path):
        self.check_same(
            lambda: [*map(os.path.basename, self.files.iterdir(path))],
            lambda: sorted(inner.name for inner in [*self.at(path).iterdir()]),
        )

    @rule(pattern=PATTERNS)
    def glob(self, pattern):
        names = sorted(str(path.relative_to(self.real)) for path in {*self.real.glob(pattern)})
        assert self.files.glob(pattern) == names

    @rule(path=PATHS, parents=st.booleans(), exist_ok=st.booleans())
    def mkdir(self, path, parents, exist_ok):
        if parents and ".." in path:
            return  # if the path points outside, only the real directory keeps some of the new folders
        arguments = {"parents": parents, "exist_ok": exist_ok}
        self.check_same(lambda: self.files.mkdir(path, **arguments), lambda: self.at(path).mkdir(**arguments))

    @rule(path=PATHS, missing_ok=st.booleans())
    def unlink(self, path, missing_ok):
        self.check_same(lambda: self.files.unlink(path, missing_ok), lambda: self.at(path).unlink(missing_ok))

    @rule(path=INNER_PATHS)
    def rmdir(self, path):
        self.check_same(lambda: self.files.rmdir(path), lambda: self.at(path).rmdir())

    @rule(path=INNER_PATHS, new_path=INNER_PATHS)
    def rename(self, path, new_path):
        self.check_same(
            lambda: bool(self.files.rename(path, new_path)), lambda: bool(self.at(path).rename(self.at(new_path)))
        )

    @rule(path=PATHS, pointed=TARGETS, what=st.sampled_from(["link", "chmod", "append", "hard link", "move", "remove"]))
    def materialize(self, path, pointed, what):
        """Run the same program in the materialised directory and in the real directory."""

        def do(folder):
            place = folder / path
            if place == folder or place.name == ".." or not Path(os.path.realpath(place.parent)).is_relative_to(folder):
                raise OSError
            if what == "link":
                place.symlink_to(pointed)
            elif what == "hard link":
                if ".." in pointed or not Path(os.path.realpath(place)).is_relative_to(folder):
                    raise OSError
                (folder / pointed).hardlink_to(place.resolve())
            elif what == "move":
                place.rename(folder / "moved")
            elif what == "remove":
                shutil.rmtree(place)
            elif Path(os.path.realpath(place)).is_relative_to(folder):
                if what == "chmod":
                    place.chmod(place.stat().st_mode ^ 0o111)
                else:
                    with place.open("ab") as file:
                        file.write(b"more")

        before, copy = tree_on_disk(self.real), self.new_path()
        shutil.copytree(self.real, copy, symlinks=True)
        real_outcome = outcome(lambda: do(self.real))
        refused = leads_out(self.real)

        def our_outcome():
            with self.files.materialize() as folder:
                assert tree_on_disk(folder) == before
                return outcome(lambda: do(folder))

        assert outcome(our_outcome) == ((OSError, 22) if refused else real_outcome)
        if refused:
            self.restore(copy)
        else:  # copy the directory twice, because a hard link becomes a separate file in the session
            shutil.rmtree(copy)
            shutil.copytree(self.real, copy, symlinks=True)
            self.restore(copy)

    @rule()
    def commit(self):
        """Return from the call: its changes are stored as one more piece."""
        changed = self.files.finish()
        if changed:
            self.bodies.append(self.files.body(changed))
        self.save()
        self.begin()

    @rule(count=st.integers(2, 5))
    def commit_and_merge(self, count):
        """Merge the newest pieces into one."""
        changed = dict(self.files.finish())
        merged = self.bodies[max(1, len(self.bodies) - count) :]
        keys = {key: size for body in merged for key, size in Files.sizes(body).items()} | changed
        self.bodies[max(1, len(self.bodies) - count) :] = [self.files.body(keys)]
        self.save()
        self.begin()

    @rule()
    def fail(self):
        """Fail the call. All its changes must be lost."""
        assert self.files.abandon()
        self.restore(self.versions[-1][1])
        self.begin()

    @rule(data=st.data())
    def reset(self, data):
        """Continue from the pieces of an earlier version, as a fork, a reset or another worker does."""
        bodies, folder = data.draw(st.sampled_from(self.versions))
        self.bodies = [*bodies]
        self.restore(folder)
        self.load()
        self.save()

    @invariant()
    def tree_equals_real_directory(self):
        root, size = self.files._state
        tree = {}
        for path, node in walk(root):
            match node:
                case FileNode():
                    tree[path] = "file", node.content, node.executable
                case LinkNode():
                    tree[path] = "link", node.target
                case FolderNode():
                    tree[path] = "folder", ""
        assert tree == tree_on_disk(self.real)
        assert size == size_of(root)


# Files in sessions

IN_FOLDERS = ["a", "b", "c", "d.txt", "é", "a/a", "a/b", "b/a", "b/c", "a/b/c", "b/d.txt/a", "..", "../x", "a/../b"]


def steps_of(rng):
    """Return random steps of one call: operations on the files, then steps of a program in the materialised folder."""
    paths, texts = partial(rng.choice, IN_FOLDERS), partial(rng.choice, ["", "text\n", "é" * 3000])
    makers = {
        "write_text": lambda: [paths(), texts()],
        "write_bytes": lambda: [paths(), texts()],
        "mkdir": lambda: [paths()],
        "unlink": lambda: [paths()],
        "rmdir": lambda: [paths()],
        "rename": lambda: [paths(), paths()],
        "read_bytes": lambda: [paths()],
        "exists": lambda: [paths()],
        "is_dir": lambda: [paths()],
        "iterdir": lambda: [paths()],
        "glob": lambda: [rng.choice(["*", "**/*", "a/*", "*/*.txt"])],
    }
    kinds = rng.choices([*makers], [5, 3, 4, 1, 1, 2, 1, 1, 1, 1, 1], k=rng.randrange(1, 6))
    steps = [[kind, *makers[kind]()] for kind in kinds]
    inner = [path for path in IN_FOLDERS if ".." not in path]
    program_steps = [
        [rng.choice(["link", "chmod", "append", "remove"]), rng.choice(inner), rng.choice(inner)]
        for _ in range(rng.choice([0, 0, 1, 3]))
    ]
    return steps, program_steps


def history(bench, seed, steps=20):
    """Run random calls in a session and its forks, and the same steps in real directories. Return the sessions."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary).resolve()
        copies = (base / str(number) for number in itertools.count())
        first = next(copies)
        first.mkdir()
        sessions = {bench.create("papers", environment={"papers": {"files": {}, "notes": []}}): [first]}
        for step in range(steps):
            context = f"seed {seed}, step {step}"
            session = rng.choice([*sessions])
            versions = sessions[session]
            draw = rng.random()
            if draw < 0.2:
                version = rng.randrange(len(versions))
                if draw < 0.08 and len(sessions) < 4:
                    (fork,) = bench.rpc("fork_session", session_id=session, version=version)
                    sessions[fork["session_id"]] = [versions[version]]
                else:
                    bench.rpc("reset_session", session_id=session, version=version)
                    versions.append(versions[version])
                continue
            steps_of_call, program_steps = steps_of(rng)
            fails = rng.random() < 0.15
            envelope = bench.call(session, "do", steps=steps_of_call, inside=program_steps, fails=fails)
            assert envelope["error"] == ("ValueError: on purpose" if fails else None), (context, envelope)
            if fails:
                continue
            after = next(copies)
            shutil.copytree(versions[-1], after, symlinks=True)
            # Only the session refuses a path that points outside, so this step is skipped in the real directory.
            outcomes = [
                our_outcome if our_outcome == ["PermissionError", 13] else papers.act(after, each)
                for each, our_outcome in zip(steps_of_call, envelope["result"], strict=False)
            ]
            outcomes += [papers.act_inside(after, each) for each in program_steps]
            assert envelope["result"] == outcomes, (context, steps_of_call, program_steps)
            versions.append(after)
        for session, versions in sessions.items():
            check_files(bench, session, versions[-1], f"seed {seed}")
    return sessions


def check_files(bench, session, folder, context):
    """Compare a session's files with a real directory, once as JSON and once as a snapshot's archive."""
    exported = bench.rpc("get_environment", format="snapshot", session_id=session)["contents"]["papers/files"]
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(exported))) as tar:
        tree = {}
        for member in tar:
            if member.issym():
                tree[member.name] = "link", member.linkname
            elif member.isdir():
                tree[member.name] = "folder", ""
            else:
                tree[member.name] = "file", tar.extractfile(member).read(), bool(member.mode & 0o100)
    assert tree == tree_on_disk(folder), context
    files_json = bench.rpc("get_environment", session_id=session)["papers"]["files"]
    assert files_json.keys() == {
        name for name, (kind, *_) in tree.items() if kind != "folder" or not any((folder / name).iterdir())
    }, context
    before = bench.rpc("get_environment", session_id=session, version=0)
    patch = bench.rpc("diff_environment", session_id=session, from_version=0)
    assert jsonpatch.apply_patch(before, patch)["papers"]["files"] == files_json, context


@click.command()
@database_histories.options
def main(**options):
    """Compare random histories of files with real directories."""
    database_histories.run(history, "papers", **options)


if __name__ == "__main__":
    main()
