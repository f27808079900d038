"""Vendored browser files are what their checksum list says, and the check notices a change."""

from pathlib import Path

import pytest

from tools import vendor


def test_committed_files_match_their_checksums() -> None:
    assert vendor.checksums() == vendor.recorded()
    assert vendor.main(["--check"]) == 0


def test_a_changed_an_added_and_a_missing_file_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vendor, "VENDOR", tmp_path)
    monkeypatch.setattr(vendor, "PACKAGES", tmp_path / "packages.json")
    monkeypatch.setattr(vendor, "SUMS", tmp_path / "SHA256SUMS")
    for name in ("kept.js", "changed.js", "missing.js"):
        (tmp_path / name).write_text("one")
    vendor.SUMS.write_text("".join(f"{digest}  {name}\n" for name, digest in vendor.checksums().items()))
    assert vendor.main(["--check"]) == 0
    (tmp_path / "changed.js").write_text("two")
    (tmp_path / "missing.js").unlink()
    (tmp_path / "added.js").write_text("three")
    assert vendor.main(["--check"]) == 1
    said = capsys.readouterr().out
    assert [name for name in ("added", "changed", "missing", "kept") if name in said] == [
        "added",
        "changed",
        "missing",
    ]
