"""`Files` without a server, as an author uses them in tests of a toolpack."""

import copy
import errno
import io
import json
import os
import re
import subprocess
import tarfile
import threading
import time
from types import SimpleNamespace

import jsonpatch
import pytest
from patience import PATIENCE

from toolpack_server.base.errors import InvalidParamsError, RegistrationError
from toolpack_server.features.volumes.files import files_glob
from toolpack_server.features.volumes.files.files import Files
from toolpack_server.features.volumes.files.files_directory import Directory
from toolpack_server.features.volumes.files.files_text import unified_diff
from toolpack_server.features.volumes.files.files_tree import FileNode, FolderNode, LinkNode
from toolpack_server.volumes.volume import Limits

SENTENCES = {
    "outside": (lambda files: files.read_text("../x"), "[Errno 13] the path leads out of the session's files: '../x'"),
    "outside, from below": (
        lambda files: files.write_text("/d/../../x", ""),
        "[Errno 13] the path leads out of the session's files: 'd/../../x'",
    ),
    "missing": (lambda files: files.read_text("no.txt"), "[Errno 2] No such file or directory: 'no.txt'"),
    "no folder": (lambda files: files.write_text("no/x", ""), "[Errno 2] No such file or directory: 'no/x'"),
    "folder": (lambda files: files.read_text("/d"), "[Errno 21] Is a directory: 'd'"),
    "file": (lambda files: files.iterdir("a.txt"), "[Errno 20] Not a directory: 'a.txt'"),
    "full": (lambda files: files.rmdir("d"), "[Errno 39] Directory not empty: 'd'"),
    "there": (lambda files: files.mkdir("d"), "[Errno 17] File exists: 'd'"),
    "root": (lambda files: files.rmdir("/"), "[Errno 16] Device or resource busy: ''"),
    "into itself": (lambda files: files.rename("d", "d/e"), "[Errno 22] Invalid argument: 'd' -> 'd/e'"),
    "long name": (lambda files: files.write_text("n" * 256, ""), f"[Errno 36] File name too long: '{'n' * 200}…'"),
    "long path": (lambda files: files.exists("n/" * 600) or files.mkdir("n/" * 600), "[Errno 36] File name too long"),
    "null": (lambda files: files.write_text("a\0", ""), "embedded null byte"),
    "no path": (lambda files: files.read_text(3), "expected str, bytes or os.PathLike object, not int"),
    "bytes": (lambda files: files.read_text(b"a"), "a path must be a str or an os.PathLike of str, not bytes"),
    "no text": (lambda files: files.write_text("a.txt", b""), "data must be str, not bytes"),
    "pattern": (lambda files: files.glob(""), "Unacceptable pattern: ''"),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_invalid_operation_is_an_error_and_changes_nothing(name):
    files = Files({"a.txt": "a", "d/b": "b"})
    act, sentence = SENTENCES[name]
    with pytest.raises((OSError, ValueError, TypeError)) as raised:
        act(files)
    assert str(raised.value).startswith(sentence)
    assert files == Files({"a.txt": "a", "d/b": "b"})


def test_cost_of_a_pattern_is_bounded_by_steps_and_paths(monkeypatch):
    looks, joined = [], files_glob._join

    def count(path, name):
        looks.append(path)
        assert len(looks) < 20_000
        return joined(path, name)

    monkeypatch.setattr(files_glob, "_join", count)
    folders = [" ".join("d" * number).replace(" ", "/") for number in range(1, 101)]
    files = Files({f"{folder}/x.txt": "" for folder in folders})
    assert files.glob("**/*/" * 30 + "*.txt") == [f"{folder}/x.txt" for folder in reversed(folders[29:])]
    assert files.glob("/".join(["**"] * 30)) == files.glob("**")


def test_pattern_with_too_many_states_is_rejected(monkeypatch):
    monkeypatch.setattr(files_glob, "MAX_STATES", 1000)
    root = FolderNode({"a.txt": FileNode(b""), "one": LinkNode("."), "two": LinkNode(".")})
    paths = ["one/one/a.txt", "one/two/a.txt", "two/one/a.txt", "two/two/a.txt"]
    assert files_glob.matching(root, "*/*/a.txt") == paths
    with pytest.raises(OSError, match="the pattern matches over 1000 paths") as raised:
        files_glob.matching(root, "*/" * 30 + "*.txt")
    assert raised.value.errno == errno.E2BIG


def test_returned_paths_are_texts_relative_to_the_root():
    files = Files({"/d/b": "", "d/a/c.txt": ""})
    assert files.iterdir() == ["d"]
    assert files.iterdir("/d/") == ["d/a", "d/b"]
    assert files.glob("**/*.txt") == ["d/a/c.txt"]
    assert files.glob("**") == [".", "d", "d/a", "d/a/c.txt", "d/b"]
    assert files.rename("/d/a", "e") == "e"


@pytest.mark.parametrize("arguments", [{}, {"encoding": "utf-16"}, {"encoding": "ascii", "errors": "replace"}])
def test_text_is_read_as_pathlib_reads_it(arguments, tmp_path):
    content = b"\xff\xfea\x00\r\x00\n\x00"
    (tmp_path / "t").write_bytes(content)
    ours, theirs = Files({"t": content}), tmp_path / "t"
    if not arguments:  # pathlib uses the encoding of the locale
        with pytest.raises(UnicodeDecodeError):
            ours.read_text("t")
    else:
        assert ours.read_text("t", **arguments) == theirs.read_text(**arguments)
    ours.write_text("t", "a\n", newline="\r\n")
    assert ours.read_bytes("t") == b"a\r\n"
    assert ours.read_text("t") == "a\n"
    assert ours.read_text("t", newline="") == "a\r\n"


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        ("missing", "Files can't start with 'missing': the folder '"),
        ({"a": 3}, "Files can't start with {'a': 3}: the content of 'a' must be str or bytes, not int"),
        ({"../a": ""}, "no file can be at '../a': use a path from the root, without `..`"),
        ({"": ""}, "no file can be at '': use a path from the root, without `..`"),
        ({"a": "", "a/b": ""}, "no file can be at 'a/b': a file or a link is at the path of a parent folder"),
        ({"a/b": "", "a": ""}, "no file can be at 'a': the path is used twice"),
        ({"a": "", "/a": ""}, "no file can be at '/a': the path is used twice"),
        ({"n" * 256: ""}, "File name too long"),
        (3, "Files can't start with 3: "),
    ],
)
def test_invalid_initial_content_is_rejected(start, sentence):
    with pytest.raises(RegistrationError) as raised:
        Files(start)
    assert sentence in str(raised.value)


def test_initial_folder_is_relative_to_the_module(tmp_path, monkeypatch):
    seed = tmp_path / "seed"
    (seed / "empty").mkdir(parents=True)
    (seed / "empty").chmod(0o750)
    (seed / "run").write_text("#!/bin/sh\n")
    (seed / "run").chmod(0o755)
    (seed / "link").symlink_to("run")
    (tmp_path / "module_with_files.py").write_text(
        "from toolpack_server.features.volumes.files.files import Files\nfiles = Files('seed/')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import module_with_files  # noqa: PLC0415

    assert module_with_files.files.view() == {"empty": {"$dir": True}, "link": {"$link": "run"}, "run": "#!/bin/sh\n"}
    assert (seed / "empty").stat().st_mode & 0o777 == 0o750
    (seed / "link").unlink()
    (seed / "link").symlink_to("/etc/passwd")
    with pytest.raises(
        RegistrationError, match="a symbolic link that leads out of the session's files can't be stored"
    ):
        Files(seed)


def test_limits_apply_to_bytes_and_to_numbers_of_entries():
    files = Files({"a": "12345678"})
    files.mount = SimpleNamespace(
        read_only="", pinned=False, ended=False, context=SimpleNamespace(limits=Limits(max_bytes=10, max_entries=3))
    )
    with pytest.raises(
        OSError, match=r"^\[Errno 28\] the files may have at most 10 bytes in total \(TOOLPACK_MAX_VOLUME_BYTES\)$"
    ):
        files.write_text("b", "123")
    files.write_text("b", "12")
    files.mkdir("c")
    with pytest.raises(
        OSError, match=r"^\[Errno 28\] there may be at most 3 files, folders and links \(TOOLPACK_MAX_VOLUME_BYTES\)$"
    ):
        files.mkdir("d")
    files.unlink("a")
    files.write_text("d", "12345678")
    assert files.view() == {"b": "12", "c": {"$dir": True}, "d": "12345678"}
    with pytest.raises(InvalidParamsError, match="the files may have at most 9 bytes in total"):
        files.build(Limits(max_bytes=9))


def test_read_only_function_can_read_but_not_write():
    files = Files({"a": "1"})
    read_only = "the function is registered with read_only=True"
    files.mount = SimpleNamespace(
        read_only=read_only, pinned=False, ended=False, context=SimpleNamespace(limits=Limits())
    )
    files.mount.copy = lambda: pytest.fail("it has its tree")
    assert files.read_text("a") == "1"
    for write in (
        lambda: files.write_text("a", "2"),
        lambda: files.mkdir("b"),
        lambda: files.unlink("a"),
        lambda: files.rename("a", "b"),
    ):
        with pytest.raises(PermissionError) as raised:
            write()
        assert str(raised.value).startswith(f"[Errno 13] attempt to write readonly files: {read_only}: ")
    assert files.read_text("a") == "1"


# In a real directory


def test_changes_in_a_materialized_directory_are_stored():
    files = Files({"a.txt": "1", "d/b": "2", "gone": "3"})
    with files.materialize() as folder:
        assert (folder / "d" / "b").read_text() == "2"
        script = "echo 4 > new; rm gone; ln -s a.txt link; ln a.txt hard; mkdir empty; chmod +x d/b; mv d moved"
        subprocess.run(script, shell=True, check=True, cwd=folder)
        (folder / "inside").symlink_to(folder / "moved" / "b")
    assert not folder.exists()
    assert files.view() == {
        "a.txt": "1",
        "empty": {"$dir": True},
        "hard": "1",
        "inside": {"$link": "moved/b"},
        "link": {"$link": "a.txt"},
        "moved/b": "2",
        "new": "4\n",
    }
    assert files.read_text("link") == "1"
    with files.materialize() as folder:
        assert os.access(folder / "moved" / "b", os.X_OK)
        assert (folder / "hard").stat().st_nlink == 1


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (
            "ln -s /etc/passwd p",
            "[Errno 22] a symbolic link that leads out of the session's files can't be stored: 'p'",
        ),
        ("ln -s ../.. p", "[Errno 22] a symbolic link that leads out of the session's files can't be stored: 'p'"),
        (
            "mkdir d; ln -s . d/e; ln -s d/e/../.. p",
            "[Errno 22] a symbolic link that leads out of the session's files can't be stored: 'p'",
        ),
        ("mkfifo p", "[Errno 22] only files, folders and symbolic links can be stored: 'p'"),
        (f"mkdir -p {'n/' * 520}", "[Errno 36] File name too long: 'n/n/"),
    ],
)
def test_unstorable_entries_are_rejected_at_the_end_of_the_block(script, sentence):
    files = Files({"a": "1"})
    with pytest.raises(OSError, match="Errno") as raised, files.materialize() as folder:
        subprocess.run(script, shell=True, check=True, cwd=folder)
    assert str(raised.value).startswith(sentence)
    assert files == Files({"a": "1"})


def test_changes_before_an_error_in_the_block_are_stored():
    files = Files()
    with pytest.raises(subprocess.CalledProcessError), files.materialize() as folder:
        subprocess.run("echo 1 > a; exit 3", shell=True, check=True, cwd=folder)
    assert files.read_text("a") == "1\n"


def test_materialized_files_can_be_used_only_in_the_directory():
    files = Files({"a": "1"})
    with files.materialize():
        for use in (
            lambda: files.read_text("a"),
            lambda: files.write_text("a", ""),
            lambda: files.materialize().__enter__(),
        ):
            with pytest.raises(
                OSError, match=r"^\[Errno 16\] until the block of materialize\(\) ends, the files can only"
            ):
                use()
    assert files.read_text("a") == "1"


def test_large_file_in_the_directory_is_rejected_without_a_read():
    files = Files()
    with pytest.raises(OSError, match="TOOLPACK_MAX_VOLUME_BYTES"), files.materialize() as folder:
        os.truncate(os.open(folder / "sparse", os.O_CREAT | os.O_RDWR), 2**40)


def directory_of(tmp_path, **tree):
    directory = Directory(tmp_path, Limits())
    root = Files(tree)._root
    directory.lay_out(root)
    return directory, root


def test_unchanged_directory_gives_the_same_tree(tmp_path):
    directory, root = directory_of(tmp_path, a="1", b="2")
    assert directory.read() is root


def test_change_of_equal_size_within_a_clock_step_is_detected(tmp_path):
    directory, _ = directory_of(tmp_path, a="0")
    for number in range(300):
        (directory.folder / "a").write_text(str(number % 10))
        assert directory.read().entries["a"].content == b"%d" % (number % 10)


def test_directory_is_restored_before_its_next_use(tmp_path):
    directory, root = directory_of(tmp_path, a="1", b="2", c="3")
    (directory.folder / "a").write_text("x")
    (directory.folder / "b").unlink()
    (directory.folder / "b").symlink_to("/")
    (directory.folder / "c").chmod(0o600)
    os.link(directory.folder / "c", directory.folder / "d")
    directory.lay_out(root)
    assert directory.read() is root
    assert {path.name for path in directory.folder.iterdir()} == {"a", "b", "c"}
    assert (directory.folder / "c").stat().st_mode == (directory.folder / "a").stat().st_mode
    assert (directory.folder / "c").stat().st_nlink == 1
    os.mkfifo(directory.folder / "d")
    directory.lay_out(root)
    assert directory.read() is root


def test_times_of_files_can_be_set(tmp_path):
    directory, root = directory_of(tmp_path, a="1")
    directory.lay_out(root, 10**18)
    assert (directory.folder / "a").stat().st_mtime_ns == directory.folder.stat().st_mtime_ns == 10**18
    assert directory.read() is root


def test_name_that_is_not_utf_8_is_kept():
    files = Files()
    with files.materialize() as folder:
        (folder / os.fsdecode(b"caf\xe9")).write_text("1")
    assert files.view() == {"caf//e9": "1"}
    assert files.read_text(os.fsdecode(b"caf\xe9")) == "1"
    assert Files.parse(files.view()) == files
    assert files.at(["caf//e9"], None, None) == "1"
    assert Files.load([files.build(Limits())], None).root.entries.keys() == files._root.entries.keys()


# JSON

SHOWN = {
    "d/logo.png": {"$base64": "/w=="},
    "empty": {"$dir": True},
    "l": {"$link": "d/logo.png"},
    "orders/17.txt": "2 of 1\n",
}


def test_json_of_files_can_be_read_again():
    files = Files.parse(SHOWN)
    assert files.view() == SHOWN
    assert files.at(["orders/17.txt"], None, None) == "2 of 1\n"
    assert files.at(["d/logo.png", "$base64"], None, None) == "/w=="
    assert [*files.at([], "d/logo.png", 2)] == ["empty", "l"]
    for missing in (["orders"], ["x"], ["orders/17.txt", "x"], ["orders/17.txt/x"], [""]):
        with pytest.raises(LookupError):
            files.at(missing, None, None)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([], "files must be an object with a value for each path"),
        ({"a": {"$size": 3}}, "'a' has a size but no content: use a text or {\"$base64\": …}"),
        ({"a": 3}, 'the value of \'a\' must be a text, {"$base64": …}, {"$link": …} or {"$dir": true}'),
        ({"a": {"$base64": "?"}}, "'a' isn't valid base64"),
        ({"a": {"$link": "../x"}}, "a symbolic link that leads out of the session's files can't be stored: 'a'"),
        ({"a": {"$link": "/x"}}, "a symbolic link that leads out of the session's files can't be stored: 'a'"),
        ({"a": {"$link": "b\0"}}, "the target of the link 'a' isn't a path: embedded null byte"),
        ({"a": {"$dir": True, "x": 1}}, "the value of 'a' must be"),
    ],
)
def test_invalid_json_of_files_is_rejected(content, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        Files.parse(content)


def test_contents_are_shown_up_to_1_mib_in_total():
    files = Files({"a": "a" * 700_000, "b": "b" * 700_000, "c": "c"})
    assert files.view() == {"a": "a" * 700_000, "b": {"$size": 700_000}, "c": "c"}
    assert files.at(["b"], None, None) == "b" * 700_000
    after = copy.deepcopy(files)
    after.unlink("a")
    patched = jsonpatch.apply_patch({"f": files.view()}, files.patch(after, "/f", text_diffs=False))
    assert patched == {"f": {"b": "b" * 700_000, "c": "c"}}
    after.write_text("b", "x" * 700_000)
    assert copy.deepcopy(files).patch(after, "", text_diffs=False)[-1]["path"] == "/b"


def test_patch_names_only_changed_paths():
    before = Files.parse(SHOWN)
    after = copy.deepcopy(before)
    after.write_text("orders/~18.txt", "3\n")
    after.unlink("l")
    after.write_text("empty/x", "")
    after.write_bytes("d/logo.png", b"\xfe")
    operations = before.patch(after, "/shop/files", text_diffs=False)
    assert operations == [
        {"op": "replace", "path": "/shop/files/d~1logo.png", "value": {"$base64": "/g=="}},
        {"op": "remove", "path": "/shop/files/empty"},
        {"op": "add", "path": "/shop/files/empty~1x", "value": ""},
        {"op": "remove", "path": "/shop/files/l"},
        {"op": "add", "path": "/shop/files/orders~1~018.txt", "value": "3\n"},
    ]
    before_json = {"shop": {"files": before.view()}}
    assert jsonpatch.apply_patch(before_json, operations) == {"shop": {"files": after.view()}}
    assert before.patch(copy.deepcopy(before), "", text_diffs=False) == []


def test_changed_text_is_shown_as_a_diff():
    before = Files({"a": "1\n2\n3\n4\n5\n6\n7\n8\n9\n", "b": b"\xff", "c": "old"})
    after = Files({"a": "1\n2\n3\n4\nfive\n6\n7\n8\n9\n", "b": "text", "c": "new"})
    assert before.patch(after, "", text_diffs=True) == [
        {
            "op": "replace",
            "path": "/a",
            "value": {"$diff": "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n"},
        },
        {"op": "replace", "path": "/b", "value": "text"},
        {
            "op": "replace",
            "path": "/c",
            "value": {"$diff": "@@ -1 +1 @@\n-old\n\\ No newline at end of file\n+new\n\\ No newline at end of file\n"},
        },
    ]


@pytest.mark.parametrize("seed", range(20))
def test_diff_transforms_one_text_into_the_other(seed, tmp_path):
    random = __import__("random").Random(seed)
    old = [f"{random.randrange(6)}\n" for _ in range(random.randrange(30))]
    new = [line for line in old if random.random() > 0.2] + [f"{random.randrange(6)}\n"] * random.randrange(3)
    random.random() > 0.5 and new and new.__setitem__(-1, "no newline")
    (tmp_path / "t").write_text("".join(old))
    difference = unified_diff("".join(old), "".join(new))
    if difference:
        subprocess.run(["patch", "-s", "t"], input=f"--- t\n+++ t\n{difference}", text=True, check=True, cwd=tmp_path)
    assert not new or (tmp_path / "t").read_text() == "".join(new)


def test_texts_with_many_different_lines_are_compared_in_time():
    old, new = "\n".join(map(str, range(3000))), "\n".join(map(str, range(5000, 8000)))
    assert unified_diff(f"same\n{old}", f"same\n{new}").startswith("@@ -1,3001 +1,3001 @@\n same\n-0\n-1\n")


def test_files_are_exported_as_a_tar_file():
    files = Files.parse(SHOWN)
    with tarfile.open(fileobj=io.BytesIO(files.export())) as tar:
        assert tar.getnames() == ["d", "d/logo.png", "empty", "l", "orders", "orders/17.txt"]
        assert tar.extractfile("orders/17.txt").read() == b"2 of 1\n"
        assert tar.getmember("l").linkname == "d/logo.png"
    assert files.export() == Files.parse(json.loads(json.dumps(SHOWN))).export()


# Pieces


def test_piece_contains_only_the_changes():
    files = Files({"a": "1" * 1000, "d/b": "2", "d/c": "3"})
    first = files.build(Limits())
    files.mount = SimpleNamespace(
        copy=lambda: working, read_only="", pinned=False, ended=False, context=SimpleNamespace(limits=Limits())
    )
    working = Files.load([first], None)
    files._tree = None
    files.write_text("d/b", "22")
    files.unlink("d/c")
    changed = files.finish()
    assert changed.keys() == {"d/b", "d/c"}
    assert Files.sizes(files.body(changed)) == changed
    assert files.body(changed).data == b"22"
    assert working.root is files._root
    assert Files.load([first, files.body(changed)], None).root.entries["d"].entries.keys() == {"b"}


def test_write_of_the_same_content_is_no_change():
    files = Files({"a": "1"})
    files.mount = SimpleNamespace(
        copy=lambda: working, read_only="", pinned=False, ended=False, context=SimpleNamespace(limits=Limits())
    )
    working = Files.load([files.build(Limits())], None)
    files._tree = None
    files.write_text("a", "1")
    assert files.finish() == {}


@pytest.mark.parametrize("damage", ["cut", "unknown", "misplaced", "form"])
def test_damaged_piece_is_rejected(damage):
    body = Files({"a/b": "12345"}).build(Limits())
    entries = [list(entry) for entry in body.head["entries"]]
    data = body.data
    if damage == "cut":
        data = data[:-1]
    elif damage == "unknown":
        entries[1][1] = "?"
    elif damage == "misplaced":
        entries[1][0] = "x/b"
    else:
        entries = 3
    with pytest.raises(ValueError, match="tree of files"):
        Files.load([body._replace(head={"entries": entries}, data=data)], None)


def test_concurrent_threads_lose_no_write():
    files = Files()

    def write(name):
        for number in range(200):
            files.write_text(f"{name}{number}", "")

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(files.iterdir()) == 800


def test_copies_are_independent():
    files = Files({"a": "1"})
    other = copy.deepcopy(files)
    other.write_text("a", "2")
    assert (files.read_text("a"), other.read_text("a")) == ("1", "2")
    assert files != other
    assert files == Files({"a": "1"})
    assert files != 3


def test_program_that_fills_the_folder_is_stopped_at_the_limit(monkeypatch):
    files = Files({"kept": "x"})
    monkeypatch.setattr(Files, "_limits", Limits(max_bytes=2**20))

    def fill():
        with files.materialize() as folder, (folder / "big").open("ab", buffering=0) as file:
            deadline, largest = time.monotonic() + PATIENCE, 0
            while (size := (folder / "big").stat().st_size) >= largest and time.monotonic() < deadline:
                largest = size
                file.write(b"x" * 2**16)
                time.sleep(0.001)

    with pytest.raises(OSError, match="the files may have at most 1048576 bytes in total"):
        fill()
    assert files.read_text("kept") == "x"
    assert not files.exists("big")
