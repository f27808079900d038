"""The file of a backup: a tar with the database, the stored files, the usage journals and a manifest.

Owns the order in which parts are taken, so that together they are whole while the server works:
- journals are linked first and read last: a line that is no row yet at the database's moment is in
  its journal, and a line that is both is known by its request id and counts once;
- stored files are read after the database: a file is written before its row. Files that people fetched from
  nodes are left out: they are copies, may be very large, and go after a day anyway.
A restore changes the database first, in one step and with removals held (apps/core/holds.py), then the
folders. The keys are not in it. Never starts or stops a server.
"""

import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from apps.core import holds
from apps.files.store import FOLDER as FETCHED
from apps.ops.backup import databases, places
from apps.ops.preflight import NotReady

FORMAT = 1
MANIFEST, FILES, JOURNALS = "manifest.json", "files", "usage"
END = "end"  # the last member: tarfile takes a cut or damaged header for the end of the file


@dataclass(frozen=True)
class Sources:
    """What a server consists of, beside its keys."""

    database: Mapping[str, Any]
    files: Path
    journals: Path


def write(target: Path, sources: Sources, *, version: str, now: datetime) -> int:
    """Make the backup file, whole or not at all and readable by its owner only; its size in bytes.

    Raises NotReady, and OSError where the disk refuses.
    """
    kind = databases.kind_of(sources.database)
    client = databases.require_programs(sources.database)
    _require_apart(target, sources)
    sources.journals.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="backup-", dir=target.parent) as scratch,
        tempfile.TemporaryDirectory(prefix=".backup-", dir=sources.journals) as links,
    ):
        part = Path(scratch) / "whole"  # nobody else's: another backup may be under way to the same file
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                _link_all(sources.journals, Path(links))
                copy = Path(scratch) / databases.MEMBERS[kind]
                databases.dump(sources.database, copy)
                _link_all(sources.journals, Path(links))  # those begun meanwhile
                manifest = {
                    "format": FORMAT,
                    "database": kind,
                    "postgresql": client,
                    "version": version,
                    "made_at": now.isoformat(),
                }
                (Path(scratch) / MANIFEST).write_text(json.dumps(manifest))
                archive.add(Path(scratch) / MANIFEST, MANIFEST)
                archive.add(copy, copy.name)
                _add_tree(archive, Path(links), JOURNALS)
                _add_tree(archive, sources.files, FILES, without=FETCHED)
                archive.addfile(tarfile.TarInfo(END))
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    return target.stat().st_size


def read_manifest(source: Path) -> dict[str, Any]:
    """Raises NotReady where the file is no backup that this version reads."""
    try:
        with tarfile.open(source) as archive:
            member = archive.extractfile(MANIFEST)
            manifest: dict[str, Any] = json.loads(member.read()) if member else {}
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise NotReady(f"{source} cannot be read ({why}); name a file that `backup` made.") from None
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise NotReady(f"{source} is no backup of HeteroFlow ({type(error).__name__}).") from None
    if manifest.get("format") != FORMAT:
        raise NotReady(f"{source} has format {manifest.get('format')}; this version reads format {FORMAT}.")
    return manifest


def restore(source: Path, sources: Sources) -> None:
    """Put everything of the backup in its place; what was there is gone. Raises NotReady or OSError.

    Before the database has changed, a failure or a death leaves all as it was. From that moment on
    removals are held, and `is_unfinished` until the caller says `finish`.
    """
    manifest, kind = read_manifest(source), databases.kind_of(sources.database)
    if manifest["database"] != kind:
        raise NotReady(
            f"{source} holds a database of {manifest['database']}, and this server runs on {kind}."
        )
    _require_apart(source, sources)
    client, made_by = databases.require_programs(sources.database), manifest.get("postgresql")
    if client and made_by and made_by > client:
        raise NotReady(
            f"{source} was made by pg_dump {made_by}, and pg_restore here is of version {client}, which can "
            f"not read it; install the newer one: apt-get install postgresql-client-{made_by}"
        )
    cut_off_before = is_unfinished(sources)
    try:
        journals = _lay_beside(source, sources)
        room = sources.files / places.CORNER
        databases.check(kind, room / databases.MEMBERS[kind])
        settling = holds.settling(f"restore of the backup of {manifest['made_at']}")
        databases.load(sources.database, room / databases.MEMBERS[kind], settling)
    except (NotReady, OSError):
        if not cut_off_before:
            finish(sources)
        raise
    places.swap(sources.files, room / FILES)
    places.swap(sources.journals, journals)


def is_unfinished(sources: Sources) -> bool:
    """Whether a restore began and did not come to its end."""
    return (sources.files / places.CORNER).exists()


def finish(sources: Sources) -> None:
    """The end of a restore: what was there before is gone. Raises OSError."""
    places.clear_corner(sources.journals)
    places.clear_corner(sources.files)


def _extract(archive: tarfile.TarFile, room: Path) -> None:
    """Plain files and folders below `room`, nothing else. Raises tarfile.TarError for a member that is more,
    or where the last one is missing.

    Not tarfile's own filters: the Python of Debian 12 is 3.11.2, and they came with 3.11.4.
    """
    last = ""
    for member in archive:
        last = member.name
        target = (room / member.name).resolve()
        if not (member.isreg() or member.isdir()) or not target.is_relative_to(room.resolve()):
            raise tarfile.TarError
        archive.extract(member, room, set_attrs=False)
    if last != END:
        raise tarfile.TarError


def _lay_beside(source: Path, sources: Sources) -> Path:
    """The backup's content in the corner of the stored files, its journals in their folder's."""
    room = places.make_corner(sources.files)
    journals = places.make_corner(sources.journals) / JOURNALS
    try:
        with tarfile.open(source) as archive:
            _extract(archive, room)
    except tarfile.TarError as error:
        raise NotReady(f"{source} is damaged ({type(error).__name__}); take another backup.") from None
    for name in (FILES, JOURNALS):
        (room / name).mkdir(exist_ok=True)
    shutil.copytree(room / JOURNALS, journals)  # maybe on another disk than the stored files
    return journals


def _require_apart(file: Path, sources: Sources) -> None:
    for folder in (sources.files, sources.journals):
        if file.is_relative_to(folder.resolve()):
            raise NotReady(f"{file} lies in {folder}, which is part of a backup; use another folder.")


def _link_all(folder: Path, links: Path) -> None:
    """A second name for each journal: it stays readable to its end when the flusher removes the first."""
    for path in folder.glob("*.jsonl"):
        try:
            os.link(path, links / path.name)
        except (FileExistsError, FileNotFoundError):  # linked before, or finished and gone just now
            continue


def _add_tree(archive: tarfile.TarFile, folder: Path, name: str, *, without: str = "") -> None:
    """`without` names what is left out of the folder itself."""
    archive.addfile(_folder(name))
    try:
        there = places.contents(folder)
    except FileNotFoundError:  # not made yet, or tidied just now
        return
    for path in there:
        inside = f"{name}/{path.name}"
        if path.name == without:
            continue
        if path.is_dir():
            _add_tree(archive, path, inside)
            continue
        try:
            with path.open("rb") as content:
                member = archive.gettarinfo(arcname=inside, fileobj=content)
                member.type, member.linkname = tarfile.REGTYPE, ""  # a journal has a second name
                member.size = os.fstat(content.fileno()).st_size
                archive.addfile(member, content)
        except FileNotFoundError:  # an old log that was tidied just now
            continue


def _folder(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode = tarfile.DIRTYPE, 0o700
    return member
