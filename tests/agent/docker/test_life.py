"""What the Docker runtime does with real containers."""

import json
import socket
import urllib.error
import urllib.request
from pathlib import Path

import docker
import pytest

from agent.config import PullPolicy
from agent.contract.codes import Code
from agent.contract.messages import PortMapping
from agent.contract.states import Phase
from agent.runtime import docker_runtime
from agent.runtime.base import PortBusy, Starting, StartRefused
from tests.agent.docker.conftest import PYTHON, Bench, free_port, wait_for
from tests.agent.fakes import make_spec
from tests.fakes.tiny_model import ANSWER
from tools.engine_image import TAG

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]


def ask(port: int, key: str) -> tuple[int, str]:
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        body,
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


@pytest.mark.req("AGENT-03", "AGENT-09", "AGENT-15", "AGENT-16", "AGENT-17", "AGENT-18")
def test_whole_life_of_an_engine(bench: Bench) -> None:
    spec = bench.engine()
    instance = bench.start(spec)
    port = spec.ports[0].host_port
    wait_for(lambda: ask(port, spec.engine_key)[0] == 200, "it answers")
    assert ANSWER in ask(port, spec.engine_key)[1]
    assert ask(port, "another-key")[0] == 401
    assert ask(port, "")[0] == 401

    there = bench.api.inspect_container(spec.task_id)
    host = there["HostConfig"]
    assert there["Id"] == instance.name
    assert host["PortBindings"] == {"8080/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port)}]}
    assert (host["Privileged"], host["CapAdd"], host["CapDrop"]) == (False, None, ["ALL"])
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["Memory"] == host["MemorySwap"] == 256 << 20
    assert (host["PidsLimit"], host["IpcMode"]) == (4096, "private")
    assert host["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "3"}}
    assert [m["Destination"] for m in there["Mounts"]] == [str(bench.models / "tiny")]
    assert not any(m["RW"] for m in there["Mounts"])
    assert spec.engine_key not in json.dumps([there["Config"]["Cmd"], there["Config"]["Labels"]])
    (network,) = bench.networks()
    assert list(there["NetworkSettings"]["Networks"]) == [spec.task_id]
    assert network["Name"] == spec.task_id

    bench.runtime.terminate(instance)
    ended = bench.end(instance)
    # by itself, at the first word: a kill would be 137
    assert (ended.exit_code, ended.out_of_memory, ended.vanished) == (0, False, False)
    assert "listening on" in bench.log(instance)
    bench.runtime.forget(instance)
    wait_for(lambda: not bench.mine() and not bench.networks(), "container and network are removed")


@pytest.mark.req("AGENT-09")
def test_next_run_takes_over_the_same_container(bench: Bench) -> None:
    spec = bench.engine()
    instance = bench.start(spec)
    wait_for(lambda: ask(spec.ports[0].host_port, spec.engine_key)[0] == 200, "it answers")
    bench.runtime.close(0)

    bench.again()
    (found,) = bench.adopted()
    assert found.instance == instance
    assert found.spec.engine_key == spec.engine_key
    assert (found.spec.ports, found.spec.health_check) == (spec.ports, spec.health_check)
    assert 0 < found.age_s < 60
    assert bench.runtime.adoptable() == []
    # what is claimed anew is taken over too, and nothing is started twice
    assert bench.start(spec).name == instance.name
    assert len(bench.mine()) == 1
    assert ask(spec.ports[0].host_port, spec.engine_key)[0] == 200


@pytest.mark.req("AGENT-09")
def test_another_agents_container_is_neither_adopted_nor_removed(bench: Bench) -> None:
    spec = bench.script("import time; time.sleep(600)")
    bench.start(spec)
    other, bench.label = bench.label, "another-agent"
    bench.runtime.close(0)
    bench.again()
    bench.runtime._watch.observe()
    assert bench.runtime.adoptable() == []
    with pytest.raises(StartRefused, match="not this agent's"):
        bench.start(spec)
    bench.label = other
    assert [row["State"] for row in bench.mine()] == ["running"]


@pytest.mark.req("AGENT-09")
def test_exit_code_and_last_words(bench: Bench) -> None:
    instance = bench.start(bench.script("print('words'); raise SystemExit(7)"))
    ended = bench.end(instance)
    assert (ended.exit_code, ended.out_of_memory, ended.vanished) == (7, False, False)
    assert bench.log(instance) == "words\n"


@pytest.mark.req("AGENT-09")
def test_container_that_ended_while_the_agent_was_away(bench: Bench) -> None:
    instance = bench.start(bench.script("import time; time.sleep(1.5); print('late'); raise SystemExit(9)"))
    bench.runtime.close(0)
    wait_for(lambda: bench.mine()[0]["State"] == "exited", "it has ended")
    bench.again()
    (found,) = bench.adopted()
    assert found.instance == instance
    assert bench.end(found.instance).exit_code == 9
    assert bench.log(instance) == "late\n"


@pytest.mark.req("AGENT-09")
def test_container_removed_by_hand_has_vanished(bench: Bench) -> None:
    instance = bench.start(bench.script("import time; time.sleep(600)"))
    bench.api.remove_container(instance.name, force=True)
    ended = bench.end(instance)
    assert (ended.exit_code, ended.vanished) == (None, True)


@pytest.mark.req("AGENT-03")
def test_out_of_memory_is_told_as_such(bench: Bench) -> None:
    bench.again(memory_limit_mb=64)
    instance = bench.start(bench.script("held = []\nwhile True: held.append(bytearray(b'x' * (8 << 20)))"))
    ended = bench.end(instance)
    assert (ended.exit_code, ended.out_of_memory) == (137, True)


@pytest.mark.req("AGENT-03")
def test_term_is_ignored_and_kill_is_not(bench: Bench) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(600)"
    instance = bench.start(bench.script(code))
    wait_for(lambda: "up" in bench.log(instance), "it runs")
    bench.runtime.terminate(instance)
    wait_for(bench.runtime._ending.idle, "TERM was delivered")
    bench.runtime._watch.observe()
    assert bench.runtime.poll(instance) is None
    bench.runtime.kill(instance)
    ended = bench.end(instance)
    assert (ended.exit_code, ended.out_of_memory) == (137, False)


@pytest.mark.req("AGENT-07")
def test_port_held_by_a_process_leaves_nothing_behind(bench: Bench) -> None:
    spec = bench.script("import time; time.sleep(600)")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        spec.ports = [PortMapping(8080, holder.getsockname()[1])]
        with pytest.raises(PortBusy) as caught:
            bench.start(spec)
        assert caught.value.port == spec.ports[0].host_port
    assert bench.mine() == [] and bench.networks() == []
    bench.start(spec)  # the port is free now


@pytest.mark.req("AGENT-07")
def test_port_held_by_another_container(bench: Bench) -> None:
    port = [PortMapping(8080, free_port())]
    bench.start(bench.script("import time; time.sleep(600)", ports=port))
    with pytest.raises(PortBusy):
        bench.start(bench.script("import time; time.sleep(600)", ports=port))
    assert len(bench.mine()) == 1


@pytest.mark.req("AGENT-09")
def test_left_over_of_a_failed_start_is_removed(bench: Bench) -> None:
    spec = bench.script("import time; time.sleep(600)")
    bench.runtime.close(0)
    labels = {"heteroflow.agent": bench.label, "heteroflow.task": spec.task_id, "heteroflow.attempt": "1"}
    bench.api.create_network(spec.task_id, labels=labels)
    bench.api.create_container(TAG, name=spec.task_id, labels=labels)
    bench.api.create_network("task-of-nobody", labels={**labels, "heteroflow.task": "task-of-nobody"})
    bench.again()
    wait_for(lambda: not bench.mine(), "the left-over is removed")
    wait_for(lambda: not bench.networks(), "and its network, and the stray one")


@pytest.mark.req("AGENT-09", "AGENT-18")
def test_networks_left_behind_while_it_runs_are_removed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_runtime, "SWEEP_EACH_S", 0.0)
    bench.start(bench.script("import time; time.sleep(600)"))
    labels = {"heteroflow.agent": bench.label, "heteroflow.task": "task-of-nobody"}
    bench.api.create_network("task-of-nobody", labels=labels)
    for _ in range(3):  # a start under way loses its network to no sweep
        bench.start(bench.script("import time; time.sleep(600)"))
    wait_for(lambda: len(bench.networks()) == 4, "the stray one is removed, and no other")
    assert len(bench.mine()) == 4


@pytest.mark.req("AGENT-09")
def test_start_that_begins_while_networks_are_listed_keeps_its_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: set[str] = set()
    labels = {"heteroflow.agent": bench.label, "heteroflow.task": "task-new"}
    bench.api.create_network("task-new", labels=labels)
    own = docker.APIClient.networks

    def listed(*args: object, **kwargs: object) -> object:
        answer = own(*args, **kwargs)
        begun.add("task-new")
        return answer

    monkeypatch.setattr(docker.APIClient, "networks", listed)
    bench.runtime._ending.remove_stray_networks(lambda: set(begun))
    monkeypatch.undo()
    assert len(bench.networks()) == 1


@pytest.mark.req("AGENT-07", "AGENT-19")
def test_tenants_words_start_no_endless_tries(bench: Bench) -> None:
    for command in ("context canceled", "/containerd.sock: refused", "has active endpoints"):
        with pytest.raises(StartRefused) as caught:
            bench.start(bench.script("pass", command=[command]))
        assert caught.value.reason.code is Code.START_FAILED


@pytest.mark.req("AGENT-19")
def test_silent_docker_makes_the_deadline_of_a_pull_no_longer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.again(pull_policy=PullPolicy.IF_ABSENT, pull_deadline_s=1.2)

    def away(*_: object, **__: object) -> None:
        raise ConnectionResetError("away")

    monkeypatch.setattr(docker.APIClient, "pull", away)
    with pytest.raises(StartRefused) as caught:
        bench.start(bench.script("pass", image="example/none:1"))
    assert caught.value.reason.code is Code.PULL_FAILED


@pytest.mark.req("AGENT-19", "AGENT-07")
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"image": "example/none:1"}, Code.IMAGE_MISSING),
        ({"command": ["/nope"]}, Code.START_FAILED),
        ({"volumes": ["/etc:/data"]}, Code.PATH_NOT_ALLOWED),
        ({"gpu_uuids": ["GPU-1"], "gpu_vendor": "nvidia"}, Code.CARDS_UNREACHABLE),
        ({"gpu_uuids": ["x"], "gpu_vendor": "amd"}, Code.CARDS_UNREACHABLE),
    ],
)
def test_refused_starts_name_the_reason_and_leave_nothing(
    bench: Bench, changes: dict[str, object], code: Code
) -> None:
    with pytest.raises(StartRefused) as caught:
        bench.start(bench.script("pass", **changes))
    assert caught.value.reason.code is code
    assert bench.mine() == [] and bench.networks() == []


@pytest.mark.req("AGENT-19")
def test_registry_that_is_not_there_is_told_with_dockers_words(bench: Bench) -> None:
    bench.again(pull_policy=PullPolicy.IF_ABSENT)
    spec = bench.script("pass", image="registry.invalid/some/engine:1")
    with pytest.raises(StartRefused) as caught:
        bench.start(spec)
    assert caught.value.reason.code is Code.PULL_FAILED
    assert "registry.invalid" in str(caught.value.reason.params["why"])


@pytest.mark.req("AGENT-07", "AGENT-19")
def test_image_name_that_is_none_is_told_with_dockers_words(bench: Bench) -> None:
    bench.again(pull_policy=PullPolicy.IF_ABSENT)
    with pytest.raises(StartRefused) as caught:
        bench.start(bench.script("pass", image="Not-A/Reference:1"))
    assert caught.value.reason.code is Code.START_FAILED
    assert "lowercase" in str(caught.value.reason.params["why"])


@pytest.mark.req("AGENT-19")
def test_disk_below_its_floor_pulls_nothing(bench: Bench) -> None:
    bench.again(pull_policy=PullPolicy.ALWAYS, disk_floor_mb=1 << 40)
    with pytest.raises(StartRefused) as caught:
        bench.start(bench.script("pass"))
    assert caught.value.reason.code is Code.DISK_SHORT


@pytest.mark.req("AGENT-18", "AGENT-17")
def test_engine_is_not_reached_from_another_tasks_network(bench: Bench) -> None:
    forwarding = Path("/proc/sys/net/ipv4/ip_forward").read_text().strip()
    assert forwarding == "0", "without Docker's own rules for isolation, forwarding has to be off here"
    spec = bench.engine()
    bench.start(spec)
    wait_for(lambda: ask(spec.ports[0].host_port, spec.engine_key)[0] == 200, "it answers")
    networks = bench.api.inspect_container(spec.task_id)["NetworkSettings"]["Networks"]
    own = networks[spec.task_id]
    tries = [(own["IPAddress"], 8080), (own["Gateway"], spec.ports[0].host_port)]
    code = f"""
import socket
for place in {tries!r}:
    try:
        socket.create_connection(place, 2).close(); print("reached", place)
    except OSError as error:
        print("not reached", type(error).__name__)
"""
    # with a port of its own it has a network with a way in, as an engine has
    other = bench.start(bench.script(code, ports=[PortMapping(8080, free_port())]))
    bench.end(other)
    assert bench.log(other).count("not reached") == 2, bench.log(other)


@pytest.mark.req("AGENT-03", "LIFE-08")
def test_start_that_is_given_up_leaves_nothing(bench: Bench) -> None:
    spec = bench.engine()
    begun = bench.runtime.start(spec)
    assert isinstance(begun, Starting)
    assert begun.phase in (Phase.NONE, Phase.CREATING)
    wait_for(lambda: bench.runtime.abandon(spec.task_id, spec.attempt), "given up")
    assert bench.mine() == [] and bench.networks() == []
    assert make_spec().attempt == 1 and PYTHON


@pytest.mark.req("AGENT-11")
def test_engines_are_told_by_their_exact_image(bench: Bench) -> None:
    (engine,) = bench.runtime.probe_engines([])
    assert (engine.name, engine.image) == ("llamacpp", TAG)
