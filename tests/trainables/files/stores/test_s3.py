"""Where S3's credentials and region come from: the environment, else the user's AWS files."""

from pathlib import Path

import pytest

from trainables.files.stores import s3
from trainables.files.stores.base import StoreError, client_settings


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = one\naws_secret_access_key = first%\n"
        "[work]\naws_access_key_id = two\naws_secret_access_key = second\naws_session_token = for an hour\n"
    )
    (tmp_path / "config").write_text("[default]\nregion = eu-west-1\n[profile sso]\nsso_start_url = https://x\n")
    return tmp_path


@pytest.mark.parametrize(
    ("profile", "keys"), [(None, ("one", "first%", None)), ("work", ("two", "second", "for an hour"))]
)
def test_a_profile_has_keys(
    monkeypatch: pytest.MonkeyPatch, profile: str | None, keys: tuple[str, str, str | None]
) -> None:
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)
    provider = s3._profile_credentials()
    assert provider is not None
    found = provider()
    assert isinstance(found, dict)
    assert (found["access_key_id"], found["secret_access_key"], found["token"]) == keys


def test_the_environment_comes_first_and_a_profile_without_keys_needs_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "sso")
    monkeypatch.setitem(__import__("sys").modules, "obstore.auth.boto3", None)
    with pytest.raises(StoreError, match="'sso' has no keys") as refused:
        s3._profile_credentials()
    assert "boto3" in refused.value.remedy
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    assert s3._profile_credentials() is None


def test_a_bucket_has_the_profiles_region(files: Path) -> None:
    assert s3._bucket("images", {}, client_settings()).config["region"] == "eu-west-1"
    (files / "config").unlink()
    server = {"endpoint_override": "localhost:9000", "scheme": "http"}
    bucket = s3._bucket("images", server, client_settings())
    assert bucket.config["endpoint"] == "http://localhost:9000" and bucket.config["region"] == "us-east-1"
