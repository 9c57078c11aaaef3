"""The key in the data directory: made once, for its owner only, and refused if it is damaged or others can read it."""

import stat

import pytest

from server.errors import SettingsError
from server.secret_key import secret_key
from server.settings import Settings


def key(folder):
    return secret_key(Settings(data_dir=folder))


def write(folder, content, mode=0o600):
    path = folder / "secret.key"
    path.write_bytes(content)
    path.chmod(mode)


def test_it_is_made_once_and_only_its_owner_can_read_it(tmp_path):
    folder = tmp_path / "above" / "data"
    made = key(folder)
    assert len(made) == 64
    assert key(folder) == made
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "secret.key").stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == ["secret.key"]


@pytest.mark.parametrize("content", [b"", b"\n", b"ab" * 15 + b"a", b"not hexadecimal digits, but many", b"\xff" * 64])
def test_a_file_that_holds_no_key_is_refused(tmp_path, content):
    write(tmp_path, content)
    with pytest.raises(SettingsError, match="doesn't hold 32 or more hexadecimal digits: restore it"):
        key(tmp_path)
    assert (tmp_path / "secret.key").read_bytes() == content


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o666])
def test_a_file_that_others_can_read_or_write_is_refused(tmp_path, mode):
    write(tmp_path, b"ab" * 32, mode)
    with pytest.raises(SettingsError, match=r"Other users of this machine can read the key .*`chmod 600 secret\.key`"):
        key(tmp_path)


@pytest.mark.parametrize("content", [b"ab" * 32 + b"\n", b"\xef\xbb\xbf" + b"ab" * 32, b" " + b"ab" * 32 + b"\r\n"])
def test_blanks_and_a_byte_order_mark_around_it_are_not_part_of_it(tmp_path, content):
    write(tmp_path, content)
    assert key(tmp_path) == b"ab" * 32
