"""Measurement files, whole or not at all."""

import subprocess

import pytest
from tests.conftest import refused

from pipeline import records
from swiftkv.io import atomic_path, read_json, write_json


def test_others_may_read_what_was_written(tmp_path):
    """safetensors makes files that only their owner can read."""
    with atomic_path(tmp_path / "folder") as scratch:
        scratch.mkdir()
        (scratch / "plain").touch()
        (scratch / "closed").touch(mode=0o600)
    assert (tmp_path / "folder/closed").stat().st_mode == (tmp_path / "folder/plain").stat().st_mode


def test_provenance_says_whether_the_checkout_was_changed(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x", *words], cwd=tmp_path, check=True)

    def state():
        found = records.provenance(0)
        return len(found["git_commit"] or ""), found["git_dirty"]

    monkeypatch.setattr(records, "__file__", str(tmp_path / "records.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert state() == (0, None)
    git("init", "-q")
    (tmp_path / "tracked").write_text("a")
    git("add", "tracked")
    git("commit", "-q", "-m", "x")
    (tmp_path / "untracked").write_text("a")
    assert state() == (40, False)
    (tmp_path / "tracked").write_text("b")
    assert state() == (40, True)


def test_a_failed_write_leaves_what_was_there_and_a_damaged_file_is_named(tmp_path):
    write_json(tmp_path / "record.json", {"a": 1})
    with refused("record.json is not written: one of its numbers is NaN"):
        write_json(tmp_path / "record.json", {"a": float("nan")})
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "folder") as scratch:
        scratch.mkdir()
        raise RuntimeError
    assert read_json(tmp_path / "record.json") == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]
    for content in ("{", "\xff"):
        (tmp_path / "record.json").write_text(content, encoding="latin-1")
        with refused("record.json is not valid JSON"):
            read_json(tmp_path / "record.json")
