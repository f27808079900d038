"""What Docker means by its errors. Pure: class, status and text in, a kind of trouble out.

Owns the table of Docker's words (seen with 20.10 to 28). Docker answers 500 to most failed starts, so
the text decides, and only after class and status. Such a text also quotes what a tenant wrote (a command,
a folder) and what a registry answered; so what makes the agent try again is known by the words with which
Docker begins, and by the status, where no tenant writes. Never asks Docker anything.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from agent.contract.codes import Code, Reason, reason


class Trouble(StrEnum):
    """What went wrong; `OTHER` is an answer that this table does not know."""

    NO_ANSWER = "no_answer"  # nothing may be concluded from it
    PORT_BUSY = "port_busy"
    NAME_TAKEN = "name_taken"
    IMAGE_MISSING = "image_missing"
    BAD_REFERENCE = "bad_reference"
    REGISTRY_SILENT = "registry_silent"
    REGISTRY_REFUSES = "registry_refuses"
    GPU_DRIVER_MISSING = "gpu_driver_missing"
    RUNTIME_UNKNOWN = "runtime_unknown"
    DEVICE_ABSENT = "device_absent"
    MOUNT_SOURCE_ABSENT = "mount_source_absent"
    ENTRY_POINT_ABSENT = "entry_point_absent"
    NETWORKS_SPENT = "networks_spent"
    NO_SPACE = "no_space"
    GONE = "gone"
    OTHER = "other"


class Words(msgspec.Struct, frozen=True):
    """One error as read. `subject` is the port, name, device or path that it speaks of, "" for none."""

    trouble: Trouble
    text: str
    subject: str = ""


# Of a port the agent waits and tries again, so it must be Docker that speaks of it, not a command that a
# tenant wrote and runc quotes.
_OWN = r"^(?!.*OCI runtime create failed).*"
# (trouble, statuses or None for any, pattern with the subject as its group). First match wins.
_TABLE: tuple[tuple[Trouble, frozenset[int] | None, re.Pattern[str]], ...] = tuple(
    (trouble, statuses, re.compile(pattern, re.IGNORECASE))
    for trouble, statuses, pattern in (
        (Trouble.NO_ANSWER, frozenset({502, 503, 504}), r""),
        (
            Trouble.NO_ANSWER,
            frozenset({500}),
            r"^(?:cannot \w+ container:? [\w-]+: |failed to create (?:shim )?task(?: for container)?: )*"
            r"(?:connection error: desc = |error reading from server: |transport is closing|context canceled"
            r"|(?:dial|connect to) \S*containerd\.sock)",
        ),
        # another call is at it: over by the next time
        (Trouble.NO_ANSWER, frozenset({409}), r"^removal of container \S+ is already in progress"),
        (
            Trouble.NO_ANSWER,
            frozenset({403}),
            r"^error while removing network: network \S+ (?:id \S+ )?has active endpoints",
        ),
        (Trouble.PORT_BUSY, None, _OWN + r":(\d+) failed: port is already allocated"),
        (Trouble.PORT_BUSY, None, _OWN + r"listen \w+ \S*:(\d+): bind: address already in use"),
        (
            Trouble.PORT_BUSY,
            None,
            _OWN + r"failed to bind host port for \S*?:(\d+):\S* address already in use",
        ),
        (Trouble.PORT_BUSY, None, _OWN + r"failed to bind host port \S*:(\d+)/\w+: address already in use"),
        (
            Trouble.NAME_TAKEN,
            frozenset({409}),
            r'^conflict\. the container name "/?([^"]+)" is already in use',
        ),
        (Trouble.REGISTRY_REFUSES, None, r"pull access denied for ([^\s,]+)"),
        (Trouble.REGISTRY_REFUSES, None, r"unauthorized|authentication required|no basic auth|denied:"),
        (Trouble.IMAGE_MISSING, None, r"no such image:? ?(\S*)"),
        (Trouble.IMAGE_MISSING, None, r"manifest (?:for (\S+) not found|unknown)"),
        (Trouble.IMAGE_MISSING, None, r"repository (\S+) not found"),
        (Trouble.BAD_REFERENCE, None, r"invalid reference format|invalid repository name"),
        (Trouble.REGISTRY_SILENT, None, r'(?:Get|Head) "(https?://[^"/]+)[^"]*"?:'),
        (Trouble.REGISTRY_SILENT, None, r"TLS handshake timeout|no such host|i/o timeout"),
        (Trouble.GPU_DRIVER_MISSING, None, r'could not select device driver "[^"]*" with capabilities'),
        (Trouble.GPU_DRIVER_MISSING, None, r"nvidia-container-cli: (?:initialization|device) error"),
        (Trouble.RUNTIME_UNKNOWN, None, r"unknown(?: or invalid)? runtime(?: specified| name:?)? (\S+)"),
        (Trouble.DEVICE_ABSENT, None, r'gathering device information while adding custom device "([^"]+)"'),
        (Trouble.MOUNT_SOURCE_ABSENT, None, r"bind source path does not exist: (\S+)"),
        (Trouble.ENTRY_POINT_ABSENT, None, r"OCI runtime create failed.*(?:stat|exec: \"?)\s?([^\s:\"]+)"),
        (
            Trouble.NETWORKS_SPENT,
            None,
            r"could not find an available, non-overlapping|all predefined address",
        ),
        (Trouble.NO_SPACE, None, r"no space left on device"),
        (Trouble.GONE, frozenset({404}), r"no such container: ?(\S*)|network (\S+) not found"),
    )
)
_BY_CLASS = {"NotFound": Trouble.GONE, "ImageNotFound": Trouble.IMAGE_MISSING}
_CREDENTIALS = re.compile(r"//[^/@\s]+@")
LONGEST = 500


def read_error(kind: str, status: int | None, text: str, *, by_registry: bool = False) -> Words:
    """Read one error by the class of the SDK, HTTP status and Docker's text.

    `status` None means that there was no answer at all. `by_registry`: the text may be a registry's, which
    is anybody's; then nothing in it is silence of Docker's, or speaks of our ports.
    """
    told = _CREDENTIALS.sub("//", " ".join(text.split()))[:LONGEST]
    if status is None:
        return Words(Trouble.NO_ANSWER, told)
    for trouble, statuses, pattern in _TABLE:
        if statuses is not None and status not in statuses:
            continue
        if by_registry and trouble in (Trouble.NO_ANSWER, Trouble.PORT_BUSY):
            continue
        match = pattern.search(told)
        if match is not None:
            return Words(trouble, told, next((g for g in match.groups() if g), ""))
    return Words(_BY_CLASS.get(kind, Trouble.OTHER), told)


def reason_for(words: Words, *, image: str, model_path: str, vendor: str) -> Reason:
    """Why a start failed, for people: the code and Docker's own words.

    Host paths that the user did not give are left out (they are in the agent's log).
    """
    if words.trouble is Trouble.PORT_BUSY:
        return reason(Code.PORT_CONFLICT, port=int(words.subject))
    if words.trouble is Trouble.IMAGE_MISSING:
        return reason(Code.IMAGE_MISSING, image=image)
    if words.trouble in (Trouble.REGISTRY_SILENT, Trouble.REGISTRY_REFUSES, Trouble.NO_SPACE):
        return reason(Code.PULL_FAILED, image=image, why=words.text)
    if words.trouble in (Trouble.GPU_DRIVER_MISSING, Trouble.RUNTIME_UNKNOWN, Trouble.DEVICE_ABSENT):
        return reason(Code.CARDS_UNREACHABLE, vendor=vendor, why=words.text)
    if words.trouble is Trouble.MOUNT_SOURCE_ABSENT:
        return reason(Code.MODEL_NOT_FOUND_ON_NODE, path=model_path)
    return reason(Code.START_FAILED, why=words.text)
