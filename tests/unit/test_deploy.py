"""deploy/: every file parses, names what exists, and starts what `make run-production` starts.

The chart is checked as YAML after a plain substitution of its values (its templates use nothing but
{{ .Values.x }} and {{ .Release.Name }}), and by `helm lint`, too, where a helm binary is at hand.
"""

import configparser
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from apps.ops.production import parts
from heteroflow.refusals import refusals
from tests.architecture.tree import ROOT

pytestmark = pytest.mark.req("OPS-03")

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "heteroflow"
PLACE = re.compile(r"\{\{\s*\.(Values\.(\w+)|Release\.Name)\s*\}\}")
SERVICES = ("wsgi", "asgi", "worker", "scheduler", "beat")


def rendered(template: Path) -> list[dict[str, Any]]:
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def fill(found: "re.Match[str]") -> str:
        return "release" if found[2] is None else str(values[found[2]])

    text = PLACE.sub(fill, template.read_text())
    assert "{{" not in text, f"{template.name}: more than a plain value"
    return [document for document in yaml.safe_load_all(text) if document]


TEMPLATES = sorted((CHART / "templates").glob("*.yaml"))
OBJECTS = [document for template in TEMPLATES for document in rendered(template)]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_templates_become_objects(template: Path) -> None:
    for document in rendered(template):
        assert {"apiVersion", "kind", "metadata"} <= set(document)
        assert document["metadata"]["name"].startswith("release")


def test_no_value_is_unused() -> None:
    used = {found[2] for template in TEMPLATES for found in PLACE.finditer(template.read_text())}
    assert set(yaml.safe_load((CHART / "values.yaml").read_text())) == used - {None}


def test_the_ingress_leads_to_services_that_exist() -> None:
    services = {one["metadata"]["name"]: one for one in OBJECTS if one["kind"] == "Service"}
    labels = {
        one["spec"]["template"]["metadata"]["labels"]["app"] for one in OBJECTS if one["kind"] == "Deployment"
    }
    (ingress,) = [one for one in OBJECTS if one["kind"] == "Ingress"]
    for rule in ingress["spec"]["rules"][0]["http"]["paths"]:
        assert services[rule["backend"]["service"]["name"]]["spec"]["selector"]["app"] in labels


def commands() -> dict[str, dict[str, list[str]]]:
    """What each way of running starts, by service."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    pods = [one["spec"]["template"]["spec"] for one in OBJECTS if one["kind"] == "Deployment"]
    chart = {pod["containers"][0]["name"]: pod["containers"][0] for pod in pods}
    units = {
        name: unit(path)["Service"]["ExecStart"].replace("%%", "%").split()
        for name in SERVICES
        for path in DEPLOY.glob(f"systemd/heteroflow-{name}*.service")
    }
    return {
        "compose": {name: compose[name]["command"] for name in SERVICES},
        "chart": {name: chart[name]["command"] for name in SERVICES},
        "systemd": units,
    }


def unit(path: Path) -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None, strict=False)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(path)
    return found


TRIAL = {
    "wsgi": parts.wsgi(8000),
    "asgi": parts.asgi(8000, 30),
    "worker": parts.worker("worker", ["ticks", "work"], 4),
    "scheduler": parts.worker("scheduler", ["scheduling"], 1),
    "beat": parts.beat(),
}
# What depends on the place: ports, names, addresses, how long ending may take.
OWN = {
    "--host",
    "--port",
    "-n",
    "--forwarded-allow-ips",
    "--workers-kill-timeout",
    "--timeout-graceful-shutdown",
}


def options(command: list[str]) -> list[str]:
    words = command[command.index("-m") :]
    kept, skip = [], False
    for word in words:
        if not skip and word not in OWN:
            kept.append(word)
        skip = word in OWN
    return kept


@pytest.mark.parametrize("way", ["compose", "chart", "systemd"])
@pytest.mark.parametrize("service", SERVICES)
def test_every_way_starts_the_same_processes(way: str, service: str) -> None:
    assert options(commands()[way][service]) == options(TRIAL[service])


def test_units_belong_to_the_target_and_restart() -> None:
    target = (DEPLOY / "systemd" / "heteroflow.target").read_text()
    for path in DEPLOY.glob("systemd/*.service"):
        found = unit(path)
        assert found["Service"]["Restart"] == "always"
        assert found["Service"]["NoNewPrivileges"] == "yes"
        if "agent" not in path.name:
            assert path.stem.split("@")[0] in target


def test_the_example_environment_is_refused_until_it_is_filled_in() -> None:
    lines = (DEPLOY / "heteroflow.env.example").read_text().splitlines()
    values = dict(line.partition("=")[::2] for line in lines if line and not line.startswith("#"))
    assert values["SECRET_KEY"] == values["ENCRYPTION_KEYS"] == ""
    assert {"PUBLIC_URL", "ALLOWED_HOSTS", "TRUSTED_PROXIES", "METRICS_TOKEN"} <= set(values)
    refused = " ".join(
        refusals(
            secret_key=values["SECRET_KEY"],
            encryption_keys=[],
            debug=False,
            allowed_hosts=["flow.example.com"],
            public_url=values["PUBLIC_URL"],
            database_url=values["DATABASE_URL"],
            redis_url=values["REDIS_URL"],
        )
    )
    for name in ("SECRET_KEY", "ENCRYPTION_KEYS", "DATABASE_URL", "REDIS_URL"):
        assert f"{name} " in refused


def test_a_backup_has_a_declared_place_that_outlives_its_container() -> None:
    """The root is read-only: whatever backup and restore write lies in a mount."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    ops = compose["services"]["ops"]
    named = dict(volume.split(":") for volume in ops["volumes"] if ":" in volume)
    assert set(named) <= set(compose["volumes"])
    data_dir = "/var/lib/heteroflow"
    assert {f"{data_dir}/files", f"{data_dir}/backups"} <= set(named.values())
    assert f"{data_dir}/usage" in ops["volumes"]
    assert ops["read_only"] and ops["profiles"] == ["ops"]
    (pod,) = [one for one in OBJECTS if one["metadata"]["name"] == "release-ops"]
    spec = pod["spec"]["template"]["spec"]
    mounts = {mount["mountPath"]: mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
    claims = {volume["name"] for volume in spec["volumes"] if "persistentVolumeClaim" in volume}
    assert {mounts[f"{data_dir}/files"], mounts[f"{data_dir}/backups"]} == claims
    assert f"{data_dir}/usage" in mounts
    assert pod["spec"]["replicas"] == 0
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    for folder in ("files", "backups", "usage"):  # a new volume takes its owner from the image
        assert f"{data_dir}/{folder}" in dockerfile


def test_the_image_has_every_folder_of_the_server() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    for folder in ("heteroflow", "apps", "agent", "templates", "static", "locale"):
        assert f"COPY {folder} {folder}" in dockerfile
        assert (ROOT / folder).is_dir()


def test_the_chart_is_one() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["apiVersion"], chart["name"], chart["type"]) == ("v2", "heteroflow", "application")
    helm = shutil.which("helm")
    if helm is not None:
        done = subprocess.run([helm, "lint", "--strict", str(CHART)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.req("OPS-04")
def test_all_containers_of_a_host_share_the_values_of_metrics() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    folder = "/var/lib/heteroflow/metrics"
    for name in SERVICES:
        service = compose["services"][name]
        assert service["environment"]["PROMETHEUS_MULTIPROC_DIR"] == folder
        assert f"metrics:{folder}" in service["volumes"]
    assert "metrics" in compose["volumes"]
    assert folder in (DEPLOY / "Dockerfile").read_text()  # made there for the user of the processes


def test_the_network_of_compose_is_the_same_wherever_it_is_believed() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    (network,) = compose["networks"].values()
    (one,) = network["ipam"]["config"]
    command = compose["services"]["asgi"]["command"]
    assert command[command.index("--forwarded-allow-ips") + 1] == one["subnet"]
    (proxies,) = re.findall(r"^ *compose\).* proxies=(\S+)", (DEPLOY / "new-environment").read_text(), re.M)
    assert proxies == one["subnet"]
