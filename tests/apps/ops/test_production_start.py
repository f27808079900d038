"""What `make run-production` needs and writes, without starting it."""

import os
import ssl
from pathlib import Path

import pytest

from apps.core.clock import utc_now
from apps.ops.preflight import NotReady, write_private
from apps.ops.production import cluster, front, kept, prelaunch
from apps.ops.production.packages import find_programs

pytestmark = pytest.mark.req("OPS-03")


def test_all_missing_packages_are_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.ops.production.packages.ADMIN_PATH", str(tmp_path))
    with pytest.raises(
        NotReady, match="apt-get install --no-install-recommends postgresql redis-server nginx"
    ):
        find_programs({"PATH": str(tmp_path)}, homes=tmp_path)


def test_the_newest_version_of_postgresql_is_taken(tmp_path: Path) -> None:
    for version in ("9", "15", "17"):
        folder = tmp_path / version / "bin"
        folder.mkdir(parents=True)
        for name in ("postgres", "initdb"):
            (folder / name).touch(mode=0o755)
    for name in ("redis-server", "nginx"):
        (tmp_path / name).touch(mode=0o755)
    found = find_programs({"PATH": str(tmp_path)}, homes=tmp_path)
    assert found.postgresql == tmp_path / "17" / "bin"


def test_the_certificate_is_made_once_and_loads(tmp_path: Path) -> None:
    pair = front.ensure_certificate(tmp_path, ["127.0.0.1", "::1", "localhost"], utc_now())
    print_of_it = front.fingerprint(pair[0])
    assert front.ensure_certificate(tmp_path, ["other"], utc_now()) == pair
    assert front.fingerprint(pair[0]) == print_of_it
    assert len(print_of_it) == 64
    assert pair[1].stat().st_mode & 0o777 == 0o600
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*pair)


def test_the_site_has_no_name_left_and_keeps_nginx_own(tmp_path: Path) -> None:
    pair = front.ensure_certificate(tmp_path, ["localhost"], utc_now())
    main = front.write_configuration(
        tmp_path / "nginx",
        listen="127.0.0.1:1",
        wsgi_ports=[2, 3],
        asgi_ports=[4],
        gateway_ports=[5],
        certificate=pair,
    )
    site = (main.parent / "site.conf").read_text()
    configured = [line for line in site.splitlines() if not line.startswith("#")]
    assert not [line for line in configured if "${" in line or "HETEROFLOW_" in line]
    assert "server 127.0.0.1:2 fail_timeout=1s; server 127.0.0.1:3 fail_timeout=1s;" in site
    assert "$http_host" in site


@pytest.mark.parametrize("name", ["my data", "a;b", "$HOME", 'a"b', "a{b}", "a#b", "a\\b"])
def test_a_folder_that_configuration_files_can_not_name_is_refused(name: str) -> None:
    with pytest.raises(NotReady, match="DATA_DIR"):
        prelaunch.require_plain(Path("/srv") / name)
    prelaunch.require_plain(Path("/srv/Daten_für-1.x"))


def test_a_cluster_whose_making_was_killed_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """initdb writes PG_VERSION first of all, and a killed one clears nothing away."""
    monkeypatch.setattr(cluster, "account", lambda: None)
    initdb, killed = tmp_path / "bin" / "initdb", tmp_path / "killed"
    initdb.parent.mkdir()
    initdb.write_text(
        f'#!/bin/sh\necho 15 > "$2/PG_VERSION"\n[ -e {killed} ] || {{ touch {killed}; kill -9 $$; }}\n'
        'echo whole > "$2/postgresql.conf"\n'
    )
    initdb.chmod(0o755)

    def make() -> str:
        return cluster.ensure_cluster(initdb.parent, tmp_path / "postgresql", tmp_path / "password")

    with pytest.raises(NotReady):
        make()
    password = make()
    assert (tmp_path / "postgresql" / "postgresql.conf").exists()
    assert make() == password == (tmp_path / "password").read_text()


def test_a_private_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    write_private(tmp_path / "file", "old")
    with pytest.raises(UnicodeEncodeError):  # stands for any end in the middle
        write_private(tmp_path / "file", "new" + chr(0xD800))
    assert (tmp_path / "file").read_text() == "old"
    write_private(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_kept_values_are_laid_under_the_environment(tmp_path: Path) -> None:
    values = {"DJANGO_SETTINGS_MODULE": "some.settings", "SECRET_KEY": "with 'quotes' and $signs"}
    kept.keep(tmp_path, values)
    assert (tmp_path / kept.FILE).stat().st_mode & 0o777 == 0o600
    environ = {"DATA_DIR": str(tmp_path)}
    kept.take(environ)
    assert environ == {"DATA_DIR": str(tmp_path), **values}
    chosen = {"DATA_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "mine"}
    kept.take(chosen)
    assert chosen["DJANGO_SETTINGS_MODULE"] == "mine"
    assert "SECRET_KEY" not in chosen
    assert "SECRET_KEY" not in os.environ
