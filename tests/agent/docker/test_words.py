"""Docker's words, as they were seen (and as newer versions put them), and what they mean."""

import pytest

from agent.contract.codes import Code
from agent.runtime.docker_words import Trouble, read_error, reason_for

SEEN = [
    (
        "APIError",
        500,
        "driver failed programming external connectivity on endpoint task-a (3f2a): Bind for "
        "127.0.0.1:18200 failed: port is already allocated",
        Trouble.PORT_BUSY,
        "18200",
    ),
    (
        "APIError",
        500,
        "driver failed programming external connectivity on endpoint task-a (3f2a): Error starting "
        "userland proxy: listen tcp4 127.0.0.1:18201: bind: address already in use",
        Trouble.PORT_BUSY,
        "18201",
    ),
    (
        "APIError",
        500,
        "failed to set up container networking: driver failed programming external connectivity on "
        "endpoint task-a (3f2a): failed to bind host port for 127.0.0.1:18202:172.18.0.2:8080/tcp: "
        "address already in use",
        Trouble.PORT_BUSY,
        "18202",
    ),
    (
        "APIError",
        500,
        "driver failed programming: failed to bind host port 127.0.0.1:18203/tcp: address already in use",
        Trouble.PORT_BUSY,
        "18203",
    ),
    (
        "APIError",
        409,
        'Conflict. The container name "/task-a" is already in use by container "3f2a". You have to remove',
        Trouble.NAME_TAKEN,
        "task-a",
    ),
    (
        "ImageNotFound",
        404,
        "No such image: vllm/vllm-openai:v9",
        Trouble.IMAGE_MISSING,
        "vllm/vllm-openai:v9",
    ),
    (
        "APIError",
        500,
        "manifest for busybox:nope not found: manifest unknown",
        Trouble.IMAGE_MISSING,
        "busybox:nope",
    ),
    (
        "APIError",
        500,
        'Get "https://registry.invalid/v2/": dial tcp: lookup registry.invalid: no such host',
        Trouble.REGISTRY_SILENT,
        "https://registry.invalid",
    ),
    (
        "ImageNotFound",
        404,
        "pull access denied for me/private, repository does not exist or may require 'docker login'",
        Trouble.REGISTRY_REFUSES,
        "me/private",
    ),
    ("APIError", 500, "unauthorized: authentication required", Trouble.REGISTRY_REFUSES, ""),
    (
        "APIError",
        400,
        "invalid reference format: repository name must be lowercase",
        Trouble.BAD_REFERENCE,
        "",
    ),
    (
        "APIError",
        500,
        'could not select device driver "" with capabilities: [[gpu]]',
        Trouble.GPU_DRIVER_MISSING,
        "",
    ),
    ("APIError", 400, "Unknown runtime specified nvidia", Trouble.RUNTIME_UNKNOWN, "nvidia"),
    ("APIError", 400, "unknown or invalid runtime name: mthreads", Trouble.RUNTIME_UNKNOWN, "mthreads"),
    (
        "APIError",
        500,
        'error gathering device information while adding custom device "/dev/kfd": no such file or directory',
        Trouble.DEVICE_ABSENT,
        "/dev/kfd",
    ),
    (
        "APIError",
        400,
        'invalid mount config for type "bind": bind source path does not exist: /data/models/x',
        Trouble.MOUNT_SOURCE_ABSENT,
        "/data/models/x",
    ),
    (
        "APIError",
        400,
        "failed to create shim task: OCI runtime create failed: runc create failed: unable to start "
        'container process: exec: "/nope": stat /nope: no such file or directory: unknown',
        Trouble.ENTRY_POINT_ABSENT,
        "/nope",
    ),
    (
        "APIError",
        500,
        "could not find an available, non-overlapping IPv4 address pool among the defaults",
        Trouble.NETWORKS_SPENT,
        "",
    ),
    ("APIError", 500, "write /var/lib/docker/tmp/x: no space left on device", Trouble.NO_SPACE, ""),
    ("NotFound", 404, "No such container: task-a", Trouble.GONE, "task-a"),
    ("NotFound", 404, "network task-a not found", Trouble.GONE, "task-a"),
    ("APIError", 409, "removal of container 3f2a is already in progress", Trouble.NO_ANSWER, ""),
    (
        "APIError",
        500,
        'connection error: desc = "transport: dial unix:///run/containerd/containerd.sock: connect: '
        'connection refused": unavailable',
        Trouble.NO_ANSWER,
        "",
    ),
    (
        "APIError",
        500,
        'failed to create shim task: connection error: desc = "transport: error while dialing: dial unix '
        '/run/containerd/containerd.sock: connect: connection refused": unavailable',
        Trouble.NO_ANSWER,
        "",
    ),
    ("APIError", 500, "transport is closing: unavailable", Trouble.NO_ANSWER, ""),
    ("APIError", 500, "Cannot kill container: 3f2a: context canceled", Trouble.NO_ANSWER, ""),
    (
        "APIError",
        403,
        "error while removing network: network task-a id 3f2a has active endpoints",
        Trouble.NO_ANSWER,
        "",
    ),
    ("APIError", 503, "whatever", Trouble.NO_ANSWER, ""),
    ("APIError", 500, "something new", Trouble.OTHER, ""),
    ("NotFound", 404, "something new", Trouble.GONE, ""),
    ("DockerException", None, "Error while fetching server API version", Trouble.NO_ANSWER, ""),
]


@pytest.mark.req("AGENT-07")
@pytest.mark.parametrize(("kind", "status", "text", "trouble", "subject"), SEEN)
def test_words_are_read(kind: str, status: int | None, text: str, trouble: Trouble, subject: str) -> None:
    words = read_error(kind, status, text)
    assert (words.trouble, words.subject) == (trouble, subject)


SILENCE = [text for _, _, text, trouble, _ in SEEN if trouble is Trouble.NO_ANSWER] + [
    "context canceled",
    'Conflict. The container name "/task-a" is already in use by container "3f2a"',
]


@pytest.mark.req("AGENT-07")
@pytest.mark.parametrize("text", SILENCE)
@pytest.mark.parametrize("status", [400, 403, 404, 409, 500])
def test_no_text_of_a_tenants_is_silence(text: str, status: int) -> None:
    for written in (
        f'failed to create shim task: OCI runtime create failed: runc: exec: "{text}": not found: unknown',
        f"OCI runtime create failed: chdir to cwd ({text!r}) set in config.json failed: unknown",
        f"No such image: example/{text}",
    ):
        assert read_error("APIError", status, written).trouble not in (
            Trouble.NO_ANSWER,
            Trouble.NAME_TAKEN,
        )


@pytest.mark.req("AGENT-07")
@pytest.mark.parametrize("text", [text for _, _, text, trouble, _ in SEEN if trouble is Trouble.PORT_BUSY])
def test_no_text_of_a_tenants_is_a_busy_port(text: str) -> None:
    """The agent would wait for that port, and people would look for who holds it."""
    written = (
        "failed to create task for container: failed to create shim task: OCI runtime create failed: runc "
        f'create failed: unable to start container process: exec: "{text}": no such file or directory'
    )
    assert read_error("APIError", 400, written).trouble is Trouble.ENTRY_POINT_ABSENT
    assert read_error("APIError", 500, text, by_registry=True).trouble is Trouble.OTHER


@pytest.mark.req("AGENT-07", "AGENT-19")
@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_no_text_of_a_registrys_is_silence(status: int) -> None:
    for text in SILENCE:
        assert read_error("APIError", status, text, by_registry=True).trouble is not Trouble.NO_ANSWER


@pytest.mark.req("AGENT-07", "AGENT-06", "AGENT-05")
@pytest.mark.parametrize(
    ("text", "code", "params"),
    [
        (SEEN[0][2], Code.PORT_CONFLICT, {"port": 18200}),
        (SEEN[5][2], Code.IMAGE_MISSING, {"image": "a/b:1"}),
        (SEEN[11][2], Code.CARDS_UNREACHABLE, {"vendor": "nvidia"}),
        (SEEN[15][2], Code.MODEL_NOT_FOUND_ON_NODE, {"path": "given/by-the-user"}),
        ("something new", Code.START_FAILED, {"why": "something new"}),
    ],
)
def test_reasons_for_people(text: str, code: Code, params: dict[str, object]) -> None:
    kind = "ImageNotFound" if code is Code.IMAGE_MISSING else "APIError"
    why = reason_for(
        read_error(kind, 500, text), image="a/b:1", model_path="given/by-the-user", vendor="nvidia"
    )
    assert why.code is code
    assert params.items() <= why.params.items()
    assert "/data/models" not in str(why.params)


def test_credentials_in_an_address_are_not_repeated() -> None:
    assert "hunter2" not in read_error("APIError", 500, 'Get "https://me:hunter2@r.example/v2/": EOF').text
