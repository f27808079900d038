"""What a container is given so that it sees its cards and no others (AGENT-06). Pure, per vendor.

Owns the vendors' parameters. Capabilities beyond Docker's profile that some vendors' manuals ask for
(SYS_PTRACE, seccomp off, host IPC, privileged) are left out until a card shows the need. Only NVIDIA
and CPU were seen running; the others follow the vendors' manuals.
"""

from __future__ import annotations

import msgspec

ASCEND_SHARED = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
ASCEND_FILES = (
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    "/usr/local/Ascend/driver/lib64",
    "/usr/local/Ascend/driver/version.info",
    "/etc/ascend_install.info",
)
HYGON_FILES = ("/opt/hyhal",)


class CardsUnplaceable(Exception):
    """Cards that cannot be handed on; the sentence names them and the rule."""


class ContainerCards(msgspec.Struct, frozen=True):
    """Docker's parameters for cards. `read_only_files` are host paths mounted where they are."""

    device_ids: list[str] = []  # NVIDIA device request
    devices: list[str] = []
    groups: list[str] = []
    runtime: str = ""
    env: dict[str, str] = {}
    read_only_files: list[str] = []


def cards_for_container(vendor: str, uuids: list[str], indexes: dict[str, int]) -> ContainerCards:
    """Parameters for these cards; `indexes` is each card's number on the node, by UUID.

    Raises CardsUnplaceable for an unknown vendor, or a card whose number is unknown where the
    vendor's runtime goes by numbers.
    """
    if not uuids:
        # images made for NVIDIA ask for all cards by themselves, and a node may have nvidia as its
        # default runtime: without this a task without cards would see every card
        return ContainerCards(env={"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""})
    if vendor == "nvidia":
        return ContainerCards(device_ids=list(uuids), env={"CUDA_VISIBLE_DEVICES": ",".join(uuids)})
    if vendor in ("amd", "hygon"):
        # /dev/dri is passed whole: the variable alone tells the cards apart, so it is forced
        own = ["/dev/kfd", "/dev/dri"] if vendor == "amd" else ["/dev/kfd", "/dev/mkfd", "/dev/dri"]
        return ContainerCards(
            devices=own,
            groups=["video"],
            env={"HIP_VISIBLE_DEVICES": ",".join(map(str, _numbers(uuids, indexes)))},
            read_only_files=list(HYGON_FILES) if vendor == "hygon" else [],
        )
    if vendor == "ascend":
        numbers = _numbers(uuids, indexes)
        return ContainerCards(
            devices=[*(f"/dev/davinci{n}" for n in numbers), *ASCEND_SHARED],
            env={"ASCEND_RT_VISIBLE_DEVICES": ",".join(map(str, range(len(numbers))))},
            read_only_files=list(ASCEND_FILES),
        )
    if vendor == "musa":
        numbers = _numbers(uuids, indexes)
        return ContainerCards(
            runtime="mthreads",
            env={
                "MTHREADS_VISIBLE_DEVICES": ",".join(map(str, numbers)),
                "MUSA_VISIBLE_DEVICES": ",".join(map(str, range(len(numbers)))),
            },
        )
    raise CardsUnplaceable(f"cards of vendor {vendor!r} are not known; nvidia, amd, hygon, ascend, musa are")


def _numbers(uuids: list[str], indexes: dict[str, int]) -> list[int]:
    missing = [uuid for uuid in uuids if uuid not in indexes]
    if missing:
        raise CardsUnplaceable(f"card {missing[0]} is not among this node's cards now")
    return [indexes[uuid] for uuid in uuids]
