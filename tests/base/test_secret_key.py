"""The key of the hash on stored snapshots: configured, or generated once and readable only by the server's user."""

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from patience import PATIENCE

from toolpack_server.base.errors import SettingsError
from toolpack_server.base.secret_key import secret_key
from toolpack_server.base.settings import Settings


def server_key(folder, **settings):
    return secret_key(Settings(data_dir=folder, **settings))


def key(folder):
    return secret_key(Settings(data_dir=folder))


def write(folder, content, mode=0o600):
    path = folder / "secret.key"
    path.write_bytes(content)
    path.chmod(mode)


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_only_the_servers_user_may_read_a_generated_key(tmp_path):
    server_key(tmp_path / "data")
    (file,) = (tmp_path / "data").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_key_is_generated_once_and_is_long(tmp_path):
    key = server_key(tmp_path / "a" / "b")
    assert len(key) == 64
    assert server_key(tmp_path / "a" / "b") == key == (tmp_path / "a" / "b" / "secret.key").read_bytes()
    assert server_key(tmp_path / "c") != key


def test_concurrent_servers_create_one_key_and_leave_no_files(tmp_path):
    start = threading.Barrier(8)

    def make(_number):
        start.wait(PATIENCE)
        return server_key(tmp_path)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(make, range(8)))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["secret.key"]


def test_a_configured_key_is_used_and_none_is_generated(tmp_path):
    assert server_key(tmp_path / "none", secret_key="one of sixteen or more") == b"one of sixteen or more"
    assert not (tmp_path / "none").exists()


def test_in_memory_each_server_has_its_own_unwritten_key(tmp_path):
    keys = {server_key(tmp_path / "none", store="memory:") for _ in range(3)}
    assert [len(key) for key in keys] == [32] * 3
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("store", ["redis://localhost/0", "rediss://localhost/0"])
def test_servers_that_share_a_redis_need_a_configured_key(tmp_path, store):
    with pytest.raises(SettingsError, match="set TOOLPACK_SECRET_KEY"):
        server_key(tmp_path / "none", store=store)
    assert not (tmp_path / "none").exists()


def test_a_key_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SettingsError, match=r"(The key .* can't be (read|created): |is not a folder: )") as wrong:
            server_key(folder)
        assert "TOOLPACK_SECRET_KEY" not in str(wrong.value)  # a server with another key couldn't read stored sessions


@pytest.mark.parametrize("content", [b"", b"\n", b"ab" * 15 + b"a", b"not hexadecimal digits, but many", b"\xff" * 64])
def test_a_file_that_holds_no_key_is_refused(tmp_path, content):
    write(tmp_path, content)
    with pytest.raises(SettingsError, match="must have 32 or more hexadecimal digits: restore it"):
        key(tmp_path)
    assert (tmp_path / "secret.key").read_bytes() == content


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o666])
def test_a_file_that_others_can_read_or_write_is_refused(tmp_path, mode):
    write(tmp_path, b"ab" * 32, mode)
    with pytest.raises(SettingsError, match=r"can read or replace the key .*`chmod 600 secret\.key`"):
        key(tmp_path)


@pytest.mark.parametrize("content", [b"ab" * 32 + b"\n", b"\xef\xbb\xbf" + b"ab" * 32, b" " + b"ab" * 32 + b"\r\n"])
def test_blanks_and_byte_order_mark_around_key_file_are_ignored(tmp_path, content):
    write(tmp_path, content)
    assert key(tmp_path) == b"ab" * 32
