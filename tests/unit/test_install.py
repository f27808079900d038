"""docs/install.md and the small programs it uses: what can be pasted is whole, names what exists, and
makes an environment that the server accepts. A whole installation is not made here."""

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from agent.config import load_settings
from heteroflow.refusals import refusals
from tests.architecture.tree import ROOT

pytestmark = pytest.mark.req("OPS-03")

DEPLOY = ROOT / "deploy"
BLOCK = re.compile(r"^```sh[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "docs" / name for name in ("install.md", "operating.md")]
BLOCKS = [block for page in PAGES for block in BLOCK.findall(page.read_text())]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("\n", 1)[0][:40])
def test_what_can_be_pasted_is_whole_and_names_what_exists(block: str) -> None:
    parsed = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
    assert parsed.returncode == 0, parsed.stderr
    for name in re.findall(r"/opt/heteroflow/((?:deploy|requirements)[\w./-]*)", block):
        assert (ROOT / name).exists() or name == "deploy/systemd/heteroflow", name
    assert "manage.py shell" not in block


def environment(*words: str) -> dict[str, str]:
    done = subprocess.run([DEPLOY / "new-environment", *words], capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith("#")]
    return dict(line.partition("=")[::2] for line in lines)


@pytest.mark.parametrize("words", [["gpu.lab.test"], ["gpu.lab.test", "compose"]], ids=["here", "compose"])
def test_a_new_environment_is_accepted_and_never_the_same(words: list[str]) -> None:
    values, others = environment(*words), environment(*words)
    said = refusals(
        secret_key=values["SECRET_KEY"],
        encryption_keys=values["ENCRYPTION_KEYS"].split(","),
        debug=False,
        allowed_hosts=values["ALLOWED_HOSTS"].split(","),
        public_url=values["PUBLIC_URL"],
        database_url=values["DATABASE_URL"],
        redis_url=values["REDIS_URL"],
    )
    assert list(said) == []
    assert values["PUBLIC_URL"] == "https://gpu.lab.test"
    for name in ("SECRET_KEY", "ENCRYPTION_KEYS", "DATABASE_URL", "REDIS_URL"):
        assert values[name] != others[name]
        assert "PASSWORD" not in values[name]
    host = "127.0.0.1" if len(words) == 1 else "postgres"
    assert f"@{host}:5432/" in values["DATABASE_URL"]


@pytest.mark.parametrize("words", [[], ["https://flow.example.com"], ["a.example", "elsewhere"], ["a|b"]])
def test_a_wrong_word_makes_no_environment(words: list[str]) -> None:
    done = subprocess.run([DEPLOY / "new-environment", *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("new-environment: ")


def test_the_programs_can_be_run() -> None:
    for name in ("heteroflow-manage", "new-environment"):
        assert (DEPLOY / name).stat().st_mode & stat.S_IXUSR


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A source folder whose Python shows what it is started with."""
    binaries = tmp_path / "home" / ".venv" / "bin"
    binaries.mkdir(parents=True)
    python = binaries / "python"
    python.write_text('#!/bin/sh\necho "$@"\nenv\n')
    python.chmod(0o755)
    # As root the wrapper changes to the services' account, which a test machine has not.
    steps = tmp_path / "bin"
    steps.mkdir()
    (steps / "setpriv").write_text(
        '#!/bin/sh\necho "as $1"\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n'
    )
    (steps / "setpriv").chmod(0o755)
    return tmp_path


def manage(home: Path, file: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [DEPLOY / "heteroflow-manage", *words],
        env={
            "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
            "HETEROFLOW_HOME": str(home / "home"),
            "HETEROFLOW_ENV": str(file),
            "DB_STATEMENT_TIMEOUT_S": "0",
        },
        capture_output=True,
        text=True,
    )


def test_the_wrapper_reads_the_environment_as_systemd_does(home: Path) -> None:
    file = home / "heteroflow.env"
    file.write_text(
        '# note\n\nA=p$HOME;&`id`=x\nB="in quotes"\nDATA_DIR=/var/lib/heteroflow\nLAST=no newline'
    )
    done = manage(home, file, "backup", "two words")
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert f"{home / 'home'}/manage.py backup two words" in said
    assert {"A=p$HOME;&`id`=x", "B=in quotes", "LAST=no newline", "DB_STATEMENT_TIMEOUT_S=0"} <= set(said)
    if os.geteuid() == 0:
        assert "as --reuid=heteroflow" in said


def test_the_wrapper_says_what_it_can_not_read(home: Path) -> None:
    done = manage(home, home / "missing.env", "migrate")
    assert done.returncode == 1
    assert "missing.env can not be read" in done.stderr


def test_the_agent_takes_the_example(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    shutil.copy(DEPLOY / "agent.toml.example", file)
    settings = load_settings(file, {})
    assert settings.runtime == "docker"
    assert not settings.port_range[0] <= settings.door_port <= settings.port_range[1]


def test_no_unit_gives_up_while_a_server_is_away() -> None:
    for path in DEPLOY.glob("systemd/*.service"):
        assert "\nStartLimitIntervalSec=0\n" in path.read_text().partition("[Service]")[0], path.name
