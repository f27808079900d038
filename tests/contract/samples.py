"""One full example of every message of the contract, and the type that its receiver decodes.

The files in `golden/` are these examples as they go over the wire. A change that alters one is a
change of the contract: see docs/checklist-wire-message.md.
"""

from agent.contract import messages as m
from agent.contract.codes import Code, reason
from agent.contract.states import Desired, FileKind, Observed, Phase, RuntimeKind, TaskType

TASK = "task-k3m5q7aaaabbbbcc"
GB = 1024

SPEC = m.TaskSpec(
    task_id=TASK,
    attempt=3,
    task_type=TaskType.INFERENCE,
    image="ghcr.io/ggml-org/llama.cpp:server",
    engine="llamacpp",
    served_model_name="tiny",
    model_path="/data/models/tiny",
    ports=[m.PortMapping(container_port=8080, host_port=20001, movable=True)],
    health_check=m.HealthCheck(),
    gpu_uuids=["GPU-0001"],
    gpu_vendor="nvidia",
    memory_percent=40,
    env={"LLAMA_ARG_CTX_SIZE": "2048"},
    volumes=["/data/shared"],
    command=[],
    timeout_seconds=None,
    engine_key="key-of-the-engine",
    sleep_enabled=True,
    stage=m.PipelineStage(
        rank=1, stages=2, world_size=2, master_host="10.0.0.1", master_port=20009, host="10.0.0.2"
    ),
)
REPORT = m.TaskReport(
    sequence=7,
    task_id=TASK,
    attempt=3,
    phase=Phase.LEAVING,
    observed=Observed.EXITED,
    reason=reason(Code.EXITED, exit_code=137),
    exit_code=137,
    last_log_lines=["last words"],
    happened_at=1700000000.5,
    notes=[reason(Code.SLEEP_CALL_SKIPPED, engine="llamacpp")],
)
HEARTBEAT = m.HeartbeatRequest(
    incarnation="inc-0123456789abcdef",
    started_at=1700000000.0,
    sequence=12,
    desired_hash="0123456789abcdef",
    sent_at=1700000060.0,
    machine_id="00112233445566778899aabbccddeeff",
    runtime=RuntimeKind.PROCESS,
    host=m.HostReport(cpu_count=2, memory_total_mb=24 * GB, memory_available_mb=None, cpu_percent=12.5),
    dial=m.DialTarget(host="127.0.0.1"),
    cards=[m.CardReport(uuid="GPU-0001", index=0, vendor="nvidia", model="L20", vram_total_mb=48 * GB)],
    engines=[m.EngineReport(name="llamacpp", version="1.0")],
    running=[m.RunningReport(TASK, 3, Observed.READY, [20001])],
    ports_in_use=[20001],
    agent_version="0.1.0",
)

# name -> (message, type by which the receiver decodes it)
SAMPLES: dict[str, tuple[object, object]] = {
    "join": (m.JoinRequest("jt-once", "ab" * 32, "machine", "gpu-1", "0.1.0"), m.JoinRequest),
    "joined": (m.JoinReply(node_id="node-aaaabbbbccccdddd", name="gpu-1"), m.JoinReply),
    "heartbeat_direct": (HEARTBEAT, m.HeartbeatRequest),
    "heartbeat_door": (
        m.HeartbeatRequest(
            incarnation="inc-0123456789abcdef",
            started_at=1700000000.0,
            sequence=1,
            desired_hash="",
            sent_at=1700000001.0,
            machine_id="machine",
            runtime=RuntimeKind.DOCKER,
            host=m.HostReport(cpu_count=64, memory_total_mb=512 * GB),
            dial=m.DoorTarget(host="10.0.0.7", port=7443, certificate_sha256="cd" * 32),
            cards=[
                m.CardReport(
                    uuid="GPU-0002",
                    index=1,
                    vendor="nvidia",
                    model="L20",
                    quarantined=True,
                    held_by=[m.CardHolder(pid=4711, used_mb=900, task_id=TASK, attempt=3)],
                    processes=[
                        m.CardHolder(pid=4711, used_mb=900, task_id=TASK, attempt=3),
                        m.CardHolder(pid=815, used_mb=2048, name="python3"),
                    ],
                    foreign_mb=2448,
                    link_group=0,
                    pcie_root="0",
                )
            ],
            cards_unknown=True,
            volume_prefixes=["/data"],
            host_ipc=False,
            images=["vllm/vllm-openai:v0.9.1"],
            runtime_silent=True,
        ),
        m.HeartbeatRequest,
    ),
    "desired": (
        m.HeartbeatReply("0123456789abcdef", True, [m.DesiredTask(TASK, 3, Desired.RUN)]),
        m.HeartbeatAnswer,
    ),
    "desired_partial": (
        m.HeartbeatReply("0123456789abcdef", False, [m.DesiredTask(TASK, 2, Desired.STOP, 30)]),
        m.HeartbeatAnswer,
    ),
    "desired_sleep": (
        m.HeartbeatReply(
            "0123456789abcdef",
            True,
            [
                m.DesiredTask(
                    TASK, 3, Desired.STOP, 30, m.SleepOrder(drain_seconds=60, settle_seconds=3, quiet=True)
                )
            ],
        ),
        m.HeartbeatAnswer,
    ),
    "desired_files": (
        m.HeartbeatReply(
            "0123456789abcdef",
            True,
            [],
            [
                m.FileOrder(
                    request_id="fr-aaaabbbbccccdddd",
                    kind=FileKind.DOWNLOAD,
                    path="/data/shared/run/züge.csv",
                    volumes=["/data/shared:/out"],
                    model_path="/data/models/tiny",
                    chunk_bytes=64 << 20,
                    offset=64 << 20,
                    version="1.2.f",
                )
            ],
        ),
        m.HeartbeatAnswer,
    ),
    "unchanged_files": (
        m.HeartbeatUnchanged(
            "0123456789abcdef",
            [m.FileOrder("fr-aaaabbbbccccdddd", FileKind.LIST, "/data/shared", ["/data/shared:/out"], "", 1)],
        ),
        m.HeartbeatAnswer,
    ),
    "unchanged": (m.HeartbeatUnchanged("0123456789abcdef"), m.HeartbeatAnswer),
    "claim": (m.ClaimRequest("inc-0123456789abcdef", TASK, 3, [20001]), m.ClaimRequest),
    "granted": (m.ClaimGranted(SPEC), m.ClaimAnswer),
    "refused": (m.ClaimRefused(reason(Code.CLAIM_SUPERSEDED, attempt=4)), m.ClaimAnswer),
    "reports": (m.ReportRequest("inc-0123456789abcdef", [REPORT]), m.ReportRequest),
    "received": (m.ReportReply(up_to_sequence=7), m.ReportReply),
    "log": (m.LogRequest("inc-0123456789abcdef", TASK, 3, 4096, "züge\n"), m.LogRequest),
    "log_gap": (
        m.LogRequest("inc-0123456789abcdef", TASK, 3, 9216, "[lines are missing]\n", 4102),
        m.LogRequest,
    ),
    "logged": (m.LogReply(next_offset=4102), m.LogReply),
    "file": (
        m.FileAnswer(
            "inc-0123456789abcdef",
            "fr-aaaabbbbccccdddd",
            [m.FileEntry("züge.csv", "file", 4096, 1700000000.5), m.FileEntry("deep", "folder")],
            more=True,
        ),
        m.FileAnswer,
    ),
    "file_refused": (
        m.FileAnswer(
            "inc-0123456789abcdef",
            "fr-aaaabbbbccccdddd",
            reason=reason(Code.PATH_NOT_ALLOWED, path="/etc/shadow"),
        ),
        m.FileAnswer,
    ),
    "filed": (m.FileReply(next_offset=128 << 20, done=True), m.FileReply),
    "error": (m.AgentError("unknown_credential", "The node is not known."), m.AgentError),
    "look": (m.Look(), m.Look),
}
