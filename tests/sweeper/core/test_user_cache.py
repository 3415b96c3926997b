"""What a user has allowed is remembered in the cache, by a digest."""

from __future__ import annotations

from sweeper.core.ids import allow, is_allowed


def test_what_was_allowed_is_remembered_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEPER_CACHE", str(tmp_path / "cache"))
    assert not is_allowed("../../x")
    allow("../../x")
    assert is_allowed("../../x") and not is_allowed("x")
    [mark] = (tmp_path / "cache" / "allowed").iterdir()
    assert mark.stat().st_mode & 0o077 == 0


def test_a_cache_that_cannot_be_written_asks_again(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SWEEPER_CACHE", str(tmp_path / "file" / "cache"))
    allow("x")
    assert not is_allowed("x")
