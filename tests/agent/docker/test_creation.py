"""What containers are made of: whole parameters, by vendor and by wish."""

from pathlib import Path

import pytest

from agent.config import Settings, TpIpc
from agent.contract.messages import PipelineStage, PortMapping, TaskSpec
from agent.contract.states import TaskType
from agent.engines.catalog import get_engine
from agent.gpu.container_cards import CardsUnplaceable, ContainerCards, cards_for_container
from agent.models.mounts import HostMount
from agent.runtime.docker_creation import Creation, bind_mounts, build_command, build_creation, host_config
from tests.agent.fakes import make_settings, make_spec

INDEXES = {"u0": 0, "u5": 5}


@pytest.mark.req("AGENT-06")
@pytest.mark.parametrize(
    ("vendor", "uuids", "cards"),
    [
        ("", [], ContainerCards(env={"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""})),
        (
            "nvidia",
            ["GPU-a", "GPU-b"],
            ContainerCards(device_ids=["GPU-a", "GPU-b"], env={"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}),
        ),
        (
            "amd",
            ["u5"],
            ContainerCards(
                devices=["/dev/kfd", "/dev/dri"], groups=["video"], env={"HIP_VISIBLE_DEVICES": "5"}
            ),
        ),
        (
            "hygon",
            ["u0", "u5"],
            ContainerCards(
                devices=["/dev/kfd", "/dev/mkfd", "/dev/dri"],
                groups=["video"],
                env={"HIP_VISIBLE_DEVICES": "0,5"},
                read_only_files=["/opt/hyhal"],
            ),
        ),
        (
            "ascend",
            ["u0", "u5"],
            ContainerCards(
                devices=[
                    "/dev/davinci0",
                    "/dev/davinci5",
                    "/dev/davinci_manager",
                    "/dev/devmm_svm",
                    "/dev/hisi_hdc",
                ],
                env={"ASCEND_RT_VISIBLE_DEVICES": "0,1"},
                read_only_files=[
                    "/usr/local/dcmi",
                    "/usr/local/bin/npu-smi",
                    "/usr/local/Ascend/driver/lib64",
                    "/usr/local/Ascend/driver/version.info",
                    "/etc/ascend_install.info",
                ],
            ),
        ),
        (
            "musa",
            ["u5"],
            ContainerCards(
                runtime="mthreads", env={"MTHREADS_VISIBLE_DEVICES": "5", "MUSA_VISIBLE_DEVICES": "0"}
            ),
        ),
    ],
)
def test_cards_of_each_vendor(vendor: str, uuids: list[str], cards: ContainerCards) -> None:
    assert cards_for_container(vendor, uuids, INDEXES) == cards


@pytest.mark.req("AGENT-06")
def test_cards_that_cannot_be_handed_on_are_named() -> None:
    with pytest.raises(CardsUnplaceable, match="u9"):
        cards_for_container("ascend", ["u9"], INDEXES)
    with pytest.raises(CardsUnplaceable, match="unheard"):
        cards_for_container("unheard", ["u0"], INDEXES)


def made(spec: TaskSpec, **settings: object) -> Creation:
    engine = get_engine(spec.engine)
    chosen: Settings = make_settings(Path("/state"), **settings)
    return build_creation(
        spec,
        engine,
        chosen,
        command=build_command(
            spec, engine, model="/data/models/m", threads=2, engine_host=chosen.engine_host
        ),
        mounts=[HostMount("/real/m", "/data/models/m")],
        cards=cards_for_container(spec.gpu_vendor, spec.gpu_uuids, INDEXES),
        labels={"heteroflow.task": spec.task_id},
        host_memory_mb=1000,
        interface="eth0",
    )


@pytest.mark.req("AGENT-03", "AGENT-06", "AGENT-15", "AGENT-16", "AGENT-18")
def test_whole_host_config_of_two_nvidia_cards() -> None:
    spec = make_spec(engine="vllm", gpu_vendor="nvidia", gpu_uuids=["GPU-a", "GPU-b"], tensor_parallel=2)
    assert host_config(made(spec, cpu_limit=1.5)) == {
        "port_bindings": {"8080/tcp": [("127.0.0.1", 20001)]},
        "network_mode": "task-a",
        "ipc_mode": "private",
        "privileged": False,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "mem_limit": 900 << 20,
        "memswap_limit": 900 << 20,
        "pids_limit": 4096,
        "restart_policy": {"Name": "no"},
        "log_config": {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "3"}},
        "nano_cpus": 1_500_000_000,
        "shm_size": 16 << 30,
        "device_requests": [
            {"Driver": "", "Count": 0, "DeviceIDs": ["GPU-a", "GPU-b"], "Capabilities": [["gpu"]]}
        ],
    }
    assert "device_requests" not in host_config(made(spec), pass_cards=False)


@pytest.mark.req("AGENT-06")
@pytest.mark.parametrize(
    ("cards", "task_type", "ipc", "shm"),
    [
        (2, TaskType.INFERENCE, "host", None),  # Docker ignores a size of its own there
        (1, TaskType.INFERENCE, "private", None),
        (2, TaskType.TRAINING, "private", 16 << 30),
    ],
)
def test_hosts_shared_memory_is_for_inference_on_several_cards_where_the_node_says_so(
    cards: int, task_type: TaskType, ipc: str, shm: int | None
) -> None:
    uuids = ["GPU-a", "GPU-b"][:cards]
    spec = make_spec(engine="vllm", gpu_vendor="nvidia", gpu_uuids=uuids, task_type=task_type)
    config = host_config(made(spec, tp_ipc=TpIpc.HOST))
    assert (config["ipc_mode"], config.get("shm_size"), config["privileged"]) == (ipc, shm, False)


@pytest.mark.req("AGENT-06")
def test_host_config_of_other_cards() -> None:
    amd = host_config(made(make_spec(gpu_vendor="amd", gpu_uuids=["u0"])))
    assert amd["devices"] == ["/dev/kfd:/dev/kfd:rwm", "/dev/dri:/dev/dri:rwm"]
    assert amd["group_add"] == ["video"]
    assert "shm_size" not in amd and "device_requests" not in amd
    assert (amd["privileged"], amd["cap_drop"], amd["security_opt"]) == (
        False,
        ["ALL"],
        ["no-new-privileges"],
    )
    assert host_config(made(make_spec(gpu_vendor="musa", gpu_uuids=["u0"])))["runtime"] == "mthreads"
    hygon = made(make_spec(gpu_vendor="hygon", gpu_uuids=["u0"]))
    assert HostMount("/opt/hyhal", "/opt/hyhal", read_only=True) in hygon.mounts


@pytest.mark.req("AGENT-05")
def test_mounts_are_binds_that_need_their_source() -> None:
    (mount,) = bind_mounts(made(make_spec()))
    assert (mount["Type"], mount["Source"], mount["Target"], mount["ReadOnly"]) == (
        "bind",
        "/real/m",
        "/data/models/m",
        True,
    )
    assert mount["BindOptions"] == {"Propagation": "rprivate"}


@pytest.mark.req("AGENT-03")
def test_commands() -> None:
    engine = made(make_spec(env={"LLAMA_ARG_CTX_SIZE": "512"}))
    assert engine.image == "ghcr.io/ggml-org/llama.cpp:server"
    assert engine.entrypoint is None
    line = engine.command or []
    assert line[:6] == ["--model", "/data/models/m", "--alias", "tiny", "--host", "0.0.0.0"]
    assert line[line.index("--ctx-size") + 1] == "512" and line[line.index("--threads") + 1] == "2"
    assert made(make_spec(engine="vllm", gpu_vendor="nvidia", gpu_uuids=["G"])).entrypoint == [
        "vllm",
        "serve",
    ]
    plain = made(make_spec(engine="", image="me/it:1", task_type=TaskType.CONTAINER, ports=[]))
    assert (plain.image, plain.entrypoint, plain.command, plain.ports) == ("me/it:1", None, None, [])
    own = made(make_spec(image="me/it:1", command=["sh", "-c", "true"]))
    assert (own.image, own.command) == ("me/it:1", ["sh", "-c", "true"])


@pytest.mark.req("AGENT-04", "AGENT-17")
def test_environment_is_the_users_below_the_agents() -> None:
    spec = make_spec(
        engine_key="the-key",
        env={"A": "1", "cuda_visible_devices": "0", "LLAMA_API_KEY": "theirs", "HETEROFLOW_TASK_ID": "x"},
    )
    assert made(spec).env == {
        "A": "1",
        "LLAMA_API_KEY": "the-key",
        "HETEROFLOW_TASK_ID": "task-a",
        "HETEROFLOW_ATTEMPT": "1",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "CUDA_VISIBLE_DEVICES": "",
    }
    for engine, enabled, mode in (("llamacpp", True, None), ("vllm", False, None), ("vllm", True, "1")):
        spec = make_spec(
            engine=engine, image="x:1", sleep_enabled=enabled, env={"VLLM_SERVER_DEV_MODE": "user's"}
        )
        assert made(spec).env.get("VLLM_SERVER_DEV_MODE") == mode


@pytest.mark.req("AGENT-16")
def test_every_port_is_published_on_loopback() -> None:
    spec = make_spec(ports=[PortMapping(8080, 20001), PortMapping(9000, 20002)])
    assert host_config(made(spec, engine_host="127.0.0.12"))["port_bindings"] == {
        "8080/tcp": [("127.0.0.12", 20001)],
        "9000/tcp": [("127.0.0.12", 20002)],
    }


HEAD = PipelineStage(
    rank=0, stages=2, world_size=4, master_host="10.0.0.1", master_port=20009, host="10.0.0.1"
)
LAST = PipelineStage(
    rank=1, stages=2, world_size=4, master_host="10.0.0.1", master_port=20009, host="10.0.0.2"
)


def stage_of(stage: PipelineStage, **changes: object) -> TaskSpec:
    ports = [PortMapping(8000, 20001)] if stage.rank == 0 else []
    values = {"engine": "vllm", "gpu_vendor": "nvidia", "gpu_uuids": ["GPU-a", "GPU-b"], "tensor_parallel": 2}
    return make_spec(stage=stage, ports=ports, **{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.req("PAR-03", "AGENT-06", "AGENT-15")
def test_a_stage_alone_has_the_hosts_network_and_ipc_and_is_no_more_privileged() -> None:
    config = host_config(made(stage_of(HEAD)))
    assert (config["network_mode"], config["ipc_mode"], config["port_bindings"]) == ("host", "host", {})
    assert "shm_size" not in config  # Docker ignores it under the host's IPC
    assert (config["privileged"], config["cap_drop"]) == (False, ["ALL"])
    other = host_config(made(make_spec(engine="vllm", gpu_vendor="nvidia", gpu_uuids=["GPU-a", "GPU-b"])))
    assert (other["network_mode"], other["ipc_mode"]) == ("task-a", "private")


@pytest.mark.req("PAR-03", "AGENT-16")
def test_the_head_serves_on_loopback_at_its_host_port_and_the_others_are_without_an_api() -> None:
    head, last = made(stage_of(HEAD)).command or [], made(stage_of(LAST)).command or []
    line = " ".join(head)
    assert "--host 127.0.0.1 --port 20001" in line
    for words in (head, last):
        line = " ".join(words)
        assert "--pipeline-parallel-size 2 --distributed-executor-backend mp --nnodes 2" in line
        assert "--master-addr 10.0.0.1 --master-port 20009" in line
        assert "--tensor-parallel-size 2" in line
    assert head[head.index("--node-rank") + 1] == "0" and "--headless" not in head
    assert last[last.index("--node-rank") + 1] == "1" and "--headless" in last


@pytest.mark.req("PAR-03", "AGENT-04")
def test_a_stage_is_told_rank_world_and_master_whatever_its_user_says() -> None:
    env = made(stage_of(LAST, env={"RANK": "0", "MASTER_ADDR": "elsewhere", "NCCL_SOCKET_IFNAME": "ib0"})).env
    told = {
        "RANK": "1",
        "WORLD_SIZE": "4",
        "NODE_RANK": "1",
        "NNODES": "2",
        "NPROC_PER_NODE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "20009",
        "VLLM_HOST_IP": "10.0.0.2",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "ib0",  # which of its ways is the fast one they may know better
    }
    assert {name: env.get(name) for name in told} == told and "PORT" not in env
    assert made(stage_of(HEAD)).env["PORT"] == "20001"
    assert "RANK" not in made(make_spec()).env
    assert made(make_spec(env={"RANK": "7"})).env["RANK"] == "7"  # of no pipeline: the user's own
