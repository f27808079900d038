"""Cards, host and ports: what could not be read is never zero."""

import asyncio
import socket
import threading
import types
from pathlib import Path

import msgspec
import pytest

from agent.contract.messages import CardHolder, CardReport
from agent.gpu.cardgate import CardGate
from agent.gpu.cards import CardsUnknown, read_cards
from agent.gpu.host import listening_ports, read_host
from agent.gpu.readings import NodeReadings
from tests.agent.fakes import FakeRuntime, make_settings


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"nvml {value}")
        self.value = value


def nvml(**changes: object) -> types.SimpleNamespace:
    """A driver with one card; `changes` replace its functions, an int makes one raise that code."""
    functions: dict[str, object] = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlSystemGetDriverVersion": "580.1",
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetUUID": "GPU-1",
        "nvmlDeviceGetName": b"L20",
        "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(total=48 << 30, used=1 << 30),
        "nvmlDeviceGetCudaComputeCapability": (8, 9),
        "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=7),
        "nvmlDeviceGetTemperature": 50,
        "nvmlDeviceGetComputeRunningProcesses": [
            types.SimpleNamespace(pid=4711, usedGpuMemory=700 << 20),
            types.SimpleNamespace(pid=4712, usedGpuMemory=None),
        ],
    }
    made = types.SimpleNamespace(
        NVMLError=NvmlError,
        NVML_ERROR_NOT_SUPPORTED=3,
        NVML_ERROR_DRIVER_NOT_LOADED=9,
        NVML_ERROR_LIBRARY_NOT_FOUND=12,
        NVML_ERROR_FUNCTION_NOT_FOUND=13,
        NVML_ERROR_UNKNOWN=999,
        NVML_P2P_CAPS_INDEX_NVLINK=2,
        NVML_P2P_STATUS_OK=0,
        NVML_TOPOLOGY_HOSTBRIDGE=30,
        NVML_TEMPERATURE_GPU=0,
    )
    for name, value in functions.items():
        setattr(made, name, lambda *_, v=value: v)
    failing = {"nvmlDeviceGetMigMode": 3, **changes}
    for name, code in failing.items():

        def fail(*_: object, code: object = code) -> None:
            raise NvmlError(int(str(code)))

        setattr(made, name, fail)
    return made


def test_card_is_read_whole() -> None:
    assert read_cards(nvml()) == [
        CardReport(
            uuid="GPU-1",
            index=0,
            vendor="nvidia",
            model="L20",
            vram_total_mb=48 * 1024,
            vram_used_mb=1024,
            temperature_c=50,
            utilization_percent=7,
            driver_version="580.1",
            compute_capability="8.9",
            mig_capable=False,
            mps_capable=True,
            processes=[CardHolder(4711, 700), CardHolder(4712, None)],
            pcie_root="0",
        )
    ]


@pytest.mark.parametrize("code", [9, 12])
def test_no_driver_means_no_cards(code: int) -> None:
    assert read_cards(nvml(nvmlInit=code)) == []


@pytest.mark.parametrize(
    "name", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"]
)
def test_driver_that_fails_is_unknown_and_not_empty(name: str) -> None:
    with pytest.raises(CardsUnknown):
        read_cards(nvml(**{name: 999}))


def test_value_that_fails_is_none_and_not_zero() -> None:
    failing = {"nvmlDeviceGetMemoryInfo": 999, "nvmlDeviceGetUtilizationRates": 3}
    (card,) = read_cards(nvml(**failing, nvmlDeviceGetComputeRunningProcesses=3))
    assert card.processes is None
    assert card.vram_total_mb is None and card.vram_used_mb is None and card.utilization_percent is None
    assert card.temperature_c == 50


def test_this_machine_is_read_by_the_real_library() -> None:
    """Whatever the machine: cards with their names, none, or said to be unknown; nothing else."""
    try:
        cards = read_cards()
    except CardsUnknown as error:
        assert str(error)
    else:
        assert all(card.uuid and card.model for card in cards)


async def test_failing_or_hanging_driver_repeats_the_last_cards_as_unknown(tmp_path: Path) -> None:
    card = CardReport("GPU-1", 0, "nvidia", "L20", vram_total_mb=10, vram_used_mb=5)
    hang = threading.Event()
    steps: list[object] = [[card], CardsUnknown("driver"), hang, [card]]

    def read() -> list[CardReport]:
        step = steps.pop(0)
        if isinstance(step, Exception):
            raise step
        if isinstance(step, threading.Event):
            step.wait(5)
            return []
        return step  # type: ignore[return-value]

    settings = make_settings(tmp_path, gpu_timeout_s=0.05)
    readings = NodeReadings(
        settings, FakeRuntime(tmp_path), CardGate(settings, tmp_path / "cards.json"), read
    )
    told = msgspec.structs.replace(card, foreign_mb=5)  # nothing of ours runs there
    assert await readings.cards() == ([told], False)
    for _ in range(3):  # the third asks the hanging call again instead of starting another one
        cards, unknown = await readings.cards()
        assert unknown
        assert cards == [CardReport("GPU-1", 0, "nvidia", "L20", vram_total_mb=10)]
    assert len(steps) == 1
    hang.set()
    await asyncio.sleep(0)


def test_host_and_listening_ports(tmp_path: Path) -> None:
    host = read_host(tmp_path)
    assert host.cpu_count >= 1 and host.memory_total_mb > 100
    assert read_host(tmp_path / "missing").disk_used_percent is None
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert listening_ports(port, port) == []
        listener.listen()
        assert listening_ports(port, port) == [port]
    assert listening_ports(port, port, (str(tmp_path / "none"),)) == []
