"""Settings: environment variables and flags, and the errors for wrong values."""

from pathlib import Path

import pytest

from toolpack_server.base.errors import SettingsError
from toolpack_server.base.settings import Settings, load_settings, read_settings
from toolpack_server.features.executors.settings import ExecutorsSettings
from toolpack_server.web.auth import check_exposure
from toolpack_server.wiring.installed import load_features


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    import os  # noqa: PLC0415

    for name in [name for name in os.environ if name.upper().startswith("TOOLPACK_")]:
        monkeypatch.delenv(name)


def test_defaults_need_no_environment_variables():
    settings = load_settings()
    assert (settings.host, settings.port, settings.workers) == ("127.0.0.1", 8000, 1)
    assert settings.store_url == "sqlite:///.toolpack-server/sessions.db"
    assert (settings.timeout_seconds, settings.ttl_seconds) == (30, 86_400)
    assert (settings.pack_dir, settings.packs, settings.tokens, settings.no_auth) == ((), (), {}, False)


def test_lists_are_separated_by_commas_and_folders_by_colons(monkeypatch):
    monkeypatch.setenv("TOOLPACK_PACKS", "bank, workspace,")
    monkeypatch.setenv("TOOLPACK_PACK_DIR", "/packs:more packs")
    monkeypatch.setenv("TOOLPACK_TOKENS", "\ufeffann:one-token , bob: t:w=o-token,")
    settings = load_settings()
    assert settings.packs == ("bank", "workspace")
    assert settings.pack_dir == (Path("/packs"), Path("more packs"))
    tokens = {name: token.get_secret_value() for name, token in settings.tokens.items()}
    assert tokens == {"ann": "one-token", "bob": "t:w=o-token"}


def test_a_flag_overrides_the_environment_unless_it_is_none(monkeypatch):
    monkeypatch.setenv("TOOLPACK_PORT", "9000")
    monkeypatch.setenv("TOOLPACK_HOST", "::1")
    settings = load_settings(port=9001, host=None, pack_dir=(Path("x"),))
    assert (settings.port, settings.host, settings.pack_dir) == (9001, "::1", (Path("x"),))


def test_the_service_variables_of_kubernetes_are_ignored(monkeypatch):
    monkeypatch.setenv("TOOLPACK_PORT", "tcp://10.0.0.1:8000")
    monkeypatch.setenv("TOOLPACK_PORT_8000_TCP", "tcp://10.0.0.1:8000")
    monkeypatch.setenv("TOOLPACK_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("TOOLPACK_WORKERS", "2")
    settings = load_settings()
    assert (settings.port, settings.workers) == (8000, 2)
    assert load_settings(port=1).port == 1


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("PORT", "many", "Input should be a valid integer, unable to parse string as an integer"),
        ("PORT", "70000", "Input should be less than or equal to 65535"),
        ("WORKERS", "0", "Input should be greater than or equal to 1"),
        ("TIMEOUT_SECONDS", "0", "Input should be greater than 0"),
        ("TTL_SECONDS", "inf", "Input should be less than or equal to 315360000"),
        ("SECRET_KEY", "short", "should have at least 16"),
        ("TOKENS", ",", "it has no token: give name:token pairs, or unset it"),
        ("TOKENS", " ", "it has no token"),
        ("TOKENS", "\ufeff", "it has no token"),
        ("TOKENS", "ann:x", "the token of 'ann' must have 8 or more visible ASCII characters"),
        ("TOKENS", "ann:one two token", "the token of 'ann' must have 8 or more visible ASCII characters"),
        ("TOKENS", "ann:pässword-token", "the token of 'ann' must have 8 or more visible ASCII characters"),
        ("TOKENS", "ann: ", "entry 1 is not of the form name:token"),
        ("SECRET_KEY", " " * 40, "should have at least 16"),
        ("TOKENS", "one", "entry 1 is not of the form name:token"),
        ("TOKENS", "ann:one-token,two", "entry 2 is not of the form name:token"),
        ("TOKENS", "ann:one-token,ann:two-token", "the name 'ann' is given twice"),
        ("TOKENS", "ann:one-token,bob:one-token", "the token of 'bob' belongs to another owner, too"),
    ],
)
def test_a_wrong_value_is_reported_by_setting_without_secrets(monkeypatch, name, value, says):
    monkeypatch.setenv(f"TOOLPACK_{name}", value)
    with pytest.raises(SettingsError) as wrong:
        load_settings()
    assert f"TOOLPACK_{name}: " in str(wrong.value)
    assert says in str(wrong.value)
    assert "short" not in str(wrong.value)
    assert "two" not in str(wrong.value)


NUMBERS = [
    (kind, variable)
    for kind in (Settings, *(feature.settings for feature in load_features(()) if feature.settings))
    for variable, name in kind.variables().items()
    if kind.model_fields[name].annotation in {int, float}
]


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "-1", "1e300", "ten"])
@pytest.mark.parametrize(("kind", "variable"), NUMBERS)
def test_a_number_that_cannot_be_stored_is_refused(monkeypatch, kind, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(
        SettingsError, match=f"^A setting is wrong. {variable}: Input should be .* Correct the variable"
    ):
        read_settings(kind)


def test_a_memory_limit_beyond_the_systems_range_is_refused(monkeypatch):
    monkeypatch.setenv("TOOLPACK_EXECUTORS_MEMORY_BYTES", "9" * 30)
    with pytest.raises(SettingsError, match="TOOLPACK_EXECUTORS_MEMORY_BYTES: Input should be less than or equal to"):
        read_settings(ExecutorsSettings)


def test_blanks_and_byte_order_mark_around_the_key_are_ignored(monkeypatch):
    monkeypatch.setenv("TOOLPACK_SECRET_KEY", f"\ufeff{'ab' * 16}\n")
    assert load_settings().secret_key.get_secret_value() == "ab" * 16


def test_an_empty_variable_means_no_tokens(monkeypatch):
    monkeypatch.setenv("TOOLPACK_TOKENS", "")
    assert load_settings().tokens == {}


def test_settings_are_shown_without_secrets():
    settings = Settings(tokens={"ann": "very-secret"}, secret_key="also very secret")
    assert "secret" not in repr(settings).replace("secret_key", "")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "tools.example"])
def test_a_public_address_needs_tokens_or_no_auth(host):
    with pytest.raises(SettingsError) as refused:
        check_exposure(Settings(host=host))
    assert "docker run -p 8000:8000 " in str(refused.value)
    assert "TOOLPACK_TOKENS=me:" in str(refused.value)
    assert "--no-auth" in str(refused.value)
    check_exposure(Settings(host=host, no_auth=True))
    check_exposure(Settings(host=host, tokens={"ann": "one"}))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
def test_loopback_needs_no_tokens(host):
    check_exposure(Settings(host=host))


def test_a_share_is_half_of_a_limit_if_there_are_several_owners(monkeypatch):
    assert load_settings().share(8) == 8
    assert load_settings(tokens_file=Path("tokens")).share(8) == 4
    monkeypatch.setenv("TOOLPACK_TOKENS", "ann:one-token")
    assert load_settings().share(8) == 8
    monkeypatch.setenv("TOOLPACK_TOKENS", "ann:one-token,bob:two-token")
    assert (load_settings().share(8), load_settings().share(1)) == (4, 1)


@pytest.mark.parametrize(
    ("url", "output"),
    [
        ("sqlite:///a@b/sessions.db", "sqlite:///a@b/sessions.db"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:s3cr@et@host", "redis://…@host"),
        ("redis://first,redis://u:s3cret@second", "redis://first,redis://…@second"),
        ("redis://u:s3/cr,et@first:1,rediss://:s3cret@second:2", "redis://…@first:1,rediss://…@second:2"),
        ("redis://host?password=s3cret&db=1,redis://other", "redis://host?password=…&db=1,redis://other"),
        ("postgresql://u:s3cret@first,second/db?sslpassword=s3cret", "postgresql://…@first,second/db?sslpassword=…"),
    ],
)
def test_a_store_is_shown_without_passwords(url, output):
    assert Settings(store=url).store_url.shown == output
