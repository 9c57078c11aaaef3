"""Toolpacks of installed distributions: how they are loaded, their problems, and their versions in sessions."""

import contextlib
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import command_line
import pytest
import server_process
import serving
from hatchling.builders.wheel import WheelBuilder
from serving import Bench, refused

from toolpack_server.base.errors import RegistrationError
from toolpack_server.packs.loading import load_catalog
from toolpack_server.packs.sources import GROUP, package_folders

KIOSK = '''"""A kiosk."""

from typing import Annotated

from toolpack_server import Depends, TaskEnvironment, Toolpack


class Kiosk(TaskEnvironment):
    coins: int = 0


toolpack = Toolpack("{name}", Kiosk)


@toolpack.function
def pay(kiosk: Annotated[Kiosk, Depends(lambda kiosk: kiosk)]) -> int:
    """Pay a coin."""
    kiosk.coins += {coin}
    return kiosk.coins
'''


def kiosk(name="kiosk", coin=1, field=""):
    return KIOSK.format(name=name, coin=coin).replace("    coins: int = 0\n", f"    coins: int = 0\n{field}")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a distribution as pip does, replaces an older version, and returns its folder."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    before = set(sys.modules)

    def forget():
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
                del sys.modules[name]

    def install(distribution, version, entry_points, **modules):
        for old in site.glob(f"{distribution.replace('-', '_')}-*.dist-info"):
            shutil.rmtree(old)
        forget()
        about = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (about / "entry_points.txt").write_text(f"[{GROUP}]\n{entry_points}\n")
        for name, code in modules.items():
            (site / name).mkdir(exist_ok=True)
            (site / name / "__init__.py").write_text(code)
        shutil.rmtree(site / "__pycache__", ignore_errors=True)
        importlib.invalidate_caches()
        return site

    yield install
    forget()


def problem(*arguments):
    with pytest.raises(RegistrationError) as stopped:
        load_catalog(*arguments)
    return str(stopped.value)


def test_installed_toolpacks_load_like_bundled_ones(install, tmp_path):
    install("kiosk-toolpack", "1.2.0", "kiosk = kiosk_toolpack", kiosk_toolpack=kiosk())
    folder = tmp_path / "packs"
    folder.mkdir()
    (folder / "stall_of_mine.py").write_text(kiosk("stall"))
    assert {"bank", "kiosk"} <= set(load_catalog().toolpacks)
    assert list(load_catalog([folder]).toolpacks) == ["stall"]
    assert list(load_catalog([], ["kiosk"]).toolpacks) == ["kiosk"]
    catalog = load_catalog([folder], ["stall", "kiosk", "bank"])
    assert list(catalog.toolpacks) == ["stall", "kiosk", "bank"]
    own = importlib.metadata.version("toolpack-server")
    assert catalog.versions(["bank", "kiosk", "stall"]) == {"bank": own, "kiosk": "1.2.0"}
    assert [str(catalog.sources[name]) for name in catalog.toolpacks] == [
        f"{folder}/stall_of_mine.py",
        "kiosk-toolpack 1.2.0",
        f"toolpack-server {own}",
    ]


def test_entry_point_may_select_one_toolpack_of_a_module(install):
    source = kiosk() + '\nother = Toolpack("other")\n'
    install("two-toolpacks", "1", "kiosk = two_toolpacks", two_toolpacks=source)
    assert {"kiosk", "other"} <= set(load_catalog().toolpacks)
    install("two-toolpacks", "2", "other = two_toolpacks:other", two_toolpacks=source)
    assert "kiosk" not in load_catalog().toolpacks
    assert load_catalog([], ["other"]).versions(["other"]) == {"other": "2"}


def test_only_selected_toolpacks_are_imported(install):
    site = install("ready", "1", "kiosk = ready", ready=kiosk())
    marker = site / "imported"
    code = f"from pathlib import Path\nPath({str(marker)!r}).touch()\n"
    install("unwanted", "1", "unwanted = unwanted", unwanted=code + kiosk("unwanted"))
    load_catalog([], ["kiosk"])
    load_catalog([serving.PACKS], ["ledger"])
    assert not marker.exists()
    load_catalog()
    assert marker.exists()


@pytest.mark.parametrize(
    ("code", "entry_point", "says"),
    [
        ("import nowhere_at_all\n", "broken", "{file}:1: ModuleNotFoundError: No module named 'nowhere_at_all': "),
        ("\n1 / 0\n", "broken", "{file}:2: ZeroDivisionError: division by zero: correct it, or uninstall the "),
        ("raise SystemExit(3)\n", "broken", "{file}:1: SystemExit: the module ends the program when it is imported: "),
        ("", "broken_elsewhere", "broken_elsewhere: ModuleNotFoundError: No module named 'broken_elsewhere': install "),
        ("", "broken.elsewhere", "broken.elsewhere: ModuleNotFoundError: No module named 'broken.elsewhere': "),
        ("1 / 0\n", "broken.elsewhere", "broken.elsewhere: ZeroDivisionError: division by zero: correct it, or "),
        (kiosk("no name!"), "broken", "{file}:12: Toolpack('no name!'): 'no name!' isn't a valid toolpack name"),
    ],
    ids=["import", "error", "exit", "no module", "no submodule", "error above", "registration"],
)
def test_failed_import_stops_the_start_with_the_distribution(install, code, entry_point, says):
    site = install("broken-toolpack", "0.3", f"broken = {entry_point}", broken=code)
    message = problem()
    assert message.startswith(f"broken-toolpack 0.3: {says.format(file=site / 'broken' / '__init__.py')}")
    assert "Traceback" not in message
    assert list(load_catalog([], ["bank"]).toolpacks) == ["bank"]
    assert list(load_catalog([serving.PACKS], ["ledger"]).toolpacks) == ["ledger"]


@pytest.mark.parametrize(
    ("code", "entry_point", "says"),
    [
        ("", "empty", "the module has no Toolpack in a global variable: add one, or remove its entry point."),
        (
            "toolpack = 5\n",
            "empty:toolpack",
            "the entry point 'empty' names `toolpack`, which isn't a Toolpack: correct one of the two.",
        ),
    ],
)
def test_distribution_without_a_toolpack_is_a_notice(install, code, entry_point, says):
    site = install("empty-toolpack", "1", f"empty = {entry_point}", empty=code)
    assert f"empty-toolpack 1: {site / 'empty' / '__init__.py'}: {says}" in load_catalog().notices


def test_name_clash_names_both_sources(install, tmp_path):
    site = install("first-kiosk", "1.0", "kiosk = first", first=kiosk())
    folder = tmp_path / "packs"
    folder.mkdir()
    (folder / "kiosk.py").write_text(kiosk())
    first, own = f"{site}/first/__init__.py:12: Toolpack('kiosk')", f"{folder}/kiosk.py:12: Toolpack('kiosk')"
    remedy = "rename one, or uninstall"
    assert problem([folder], ["kiosk"]) == (
        f"first-kiosk 1.0: {first}: the name 'kiosk' is taken by {own}: {remedy} first-kiosk."
    )
    # The author of a toolpack may also have it installed, so a toolpack in a folder takes precedence.
    assert list(load_catalog([folder]).toolpacks) == ["kiosk"]
    second = f"{site}/second/__init__.py:12: Toolpack('kiosk')"
    install("second-kiosk", "2.0", "kiosk = second", second=kiosk())
    for names in ([], ["kiosk"]):
        assert problem([], names) == (
            f"second-kiosk 2.0: {second}: the name 'kiosk' is taken by first-kiosk 1.0: {first}: "
            f"{remedy} first-kiosk or second-kiosk."
        )
    install("second-kiosk", "2.1", "bank = second", second=kiosk("bank"))
    bundled = f"toolpack-server {importlib.metadata.version('toolpack-server')}: "
    for names in ([], ["bank"]):
        problem_text = problem([], names)
        assert problem_text.startswith(
            f"second-kiosk 2.1: {second.replace('kiosk', 'bank')}: the name 'bank' is taken by "
        )
        assert f"taken by {bundled}" in problem_text
        assert problem_text.endswith(f"toolpacks/bank.py:{problem_text.rpartition('bank.py:')[2]}")
        assert problem_text.endswith(f"Toolpack('bank'): {remedy} second-kiosk.")


# Versions


@pytest.fixture(params=["sqlite", "redis"])
def pair(request, install, store_url):
    """Return a function that installs a version of the toolpack and starts a server. All servers share one store."""
    url = store_url(request.param)
    with contextlib.ExitStack() as stack:
        newest = [None]

        def upgraded(version, **changes):
            install("kiosk-toolpack", version, "kiosk = kiosk_toolpack", kiosk_toolpack=kiosk(**changes))
            if request.param == "sqlite" and newest[0] is not None:
                newest[0].close()  # an SQLite file belongs to one server at a time
            newest[0] = Bench(load_catalog([], ["kiosk", "bank"]), url)
            stack.callback(newest[0].close)
            return newest[0]

        yield upgraded


def versions(bench, session_id):
    return bench.rpc("get_session", session_id=session_id)["toolpack_versions"]


def test_session_keeps_the_toolpack_version_of_its_creation(pair):
    old = pair("1.0")
    session = old.rpc("create_session", toolpacks=["kiosk"])
    assert session["toolpack_versions"] == {"kiosk": "1.0"}
    assert old.result(session["session_id"], "pay") == 1
    new = pair("1.1", coin=10)
    assert new.result(session["session_id"], "pay") == 11
    assert versions(new, session["session_id"]) == {"kiosk": "1.0"}
    (fork,) = new.rpc("fork_session", session_id=session["session_id"])
    later = new.rpc("create_session", toolpacks=["kiosk", "bank"])["toolpack_versions"]
    own = importlib.metadata.version("toolpack-server")
    assert (fork["toolpack_versions"], later) == ({"kiosk": "1.0"}, {"kiosk": "1.1", "bank": own})
    versions_listed = {each["name"]: (each.get("distribution"), each["version"]) for each in new.rpc("list_toolpacks")}
    assert versions_listed == {"kiosk": ("kiosk-toolpack", "1.1"), "bank": ("toolpack-server", own)}
    assert [each["toolpack_versions"] for each in new.rpc("list_sessions", parent=session["session_id"])] == [
        {"kiosk": "1.0"}
    ]


def test_changed_classes_are_rejected_with_both_versions(pair):
    old = pair("1.0")
    session = old.create("kiosk")
    old.result(session, "pay")
    bundle = old.rpc("export_bundle", session_id=session)["bundle"]
    new = pair("2.0", field="    notes: int = 0\n")
    refused(-32008, new.call, session, "pay")
    assert versions(new, session) == {"kiosk": "1.0"}
    message = refused(-32008, new.rpc, "import_bundle", bundle=bundle)
    assert "classes of the toolpack 'kiosk' (1.0) than the loaded ones (2.0): load" in str(message)
    new.rpc("reset_session", session_id=session)
    assert new.result(session, "pay") == 1


def test_replay_reports_another_toolpack_version(pair):
    old = pair("1.0")
    session = old.create("kiosk", "bank")
    old.result(session, "pay")
    assert old.rpc("replay_session", session_id=session)["other_versions"] == {}
    bundle = old.rpc("export_bundle", session_id=session)["bundle"]
    new = pair("1.1", coin=10)
    replay = new.rpc("replay_session", session_id=session)
    assert replay.get("diverged")["index"] == 0
    assert replay["other_versions"] == {"kiosk": {"recorded": "1.0", "replayed": "1.1"}}
    repeated = new.rpc("import_bundle", bundle=bundle, mode="replay")
    assert repeated["other_versions"] == replay["other_versions"]
    assert repeated["session"]["toolpack_versions"]["kiosk"] == "1.1"
    exact = new.rpc("import_bundle", bundle=bundle)
    assert exact["toolpack_versions"]["kiosk"] == "1.0"
    exported_again = new.rpc("export_bundle", session_id=exact["session_id"])["bundle"]
    assert new.rpc("import_bundle", bundle=exported_again)["toolpack_versions"]["kiosk"] == "1.0"


def test_toolpack_of_a_folder_has_no_version(make_bench):
    bench = make_bench()
    assert bench.rpc("create_session", toolpacks=["ledger"])["toolpack_versions"] == {}
    (ledger,) = [each for each in bench.rpc("list_toolpacks") if each["name"] == "ledger"]
    assert {"distribution", "version"} & ledger.keys() == set()


# A wheel that pip installs


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return the wheel of a package that `toolpack-server new` wrote, and the folder of the package."""
    folder = tmp_path_factory.mktemp("wheel")
    result = command_line.invoke("new", "--package", "groceries", "--dir", folder)
    assert result.exit_code == 0, result.output
    project = folder / "groceries-toolpack"
    (built,) = WheelBuilder(str(project)).build(directory=str(folder))
    return Path(built), project


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """Return a folder into which pip has installed the wheel."""
    folder = tmp_path_factory.mktemp("site")
    flags = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", *flags, str(wheel[0])], check=True)
    return folder


def with_site(site):
    return {"PYTHONPATH": os.pathsep.join([str(site), *sys.path[:1], os.environ.get("PYTHONPATH", "")]).rstrip(":")}


@pytest.mark.heavy
def test_tests_of_a_new_package_pass(wheel, site):
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(wheel[1])],
        env=os.environ | with_site(site),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert "3 passed" in ended.stdout


@pytest.mark.heavy
def test_installed_wheel_is_listed_with_its_version(site):
    result = command_line.run("list", "--packs", "groceries", **with_site(site))
    assert result.stdout.startswith("groceries (groceries-toolpack 0.1.0)\n  list_items() [read-only]: "), result.stderr
    checked = command_line.run("check", "--packs", "groceries", **with_site(site))
    assert checked.stdout == "1 toolpack with 3 functions: no problems.\n"


@pytest.mark.heavy
@pytest.mark.parametrize("variables", [{}, {"TOOLPACK_ISOLATION": "process"}], ids=["threads", "executors"])
def test_installed_wheel_is_served(site, tmp_path, variables):
    with server_process.served(tmp_path, "--packs", "groceries", **variables, **with_site(site)) as server:
        session = server.rpc("create_session")
        assert session["toolpack_versions"] == {"groceries": "0.1.0"}
        assert server.call(session["session_id"], "add_item", text="post a letter")["result"] == 2
        result = command_line.run("list", "--url", server.url)
        assert result.stdout.startswith("groceries (groceries-toolpack 0.1.0)\n"), result.stderr


def test_folders_of_installed_packages_are_watched(install):
    folder = install("kiosk-toolpack", "1", "kiosk = kiosk_toolpack", kiosk_toolpack=kiosk())
    install("lone", "1", "lone = lone_module")
    (folder / "lone_module.py").write_text(kiosk("lone"))
    assert package_folders() == [folder / "kiosk_toolpack"]
