"""Reads this node's NVIDIA cards through NVML.

Owns the difference between "no cards here" (an empty list, a true answer), "the driver does not
answer" (CardsUnknown) and "this one value could not be read" (None in its field). Never turns a
failed reading into zero memory.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from agent.contract.messages import CardHolder, CardReport
from agent.gpu.topology import Near, read_topology

with warnings.catch_warnings():
    # The package named pynvml is a shell that warns on import and then gives nvidia-ml-py's module.
    warnings.simplefilter("ignore", FutureWarning)
    import pynvml

log = logging.getLogger("agent.gpu")
T = TypeVar("T")
MB = 1 << 20


class CardsUnknown(Exception):
    """The cards could not be read now; says nothing about whether there are any."""


def read_cards(nvml: Any = pynvml) -> list[CardReport]:
    """All NVIDIA cards of this node, each with the processes that hold memory of it, where the driver tells
    (whose they are it does not know); [] where no NVIDIA driver is installed.

    Raises CardsUnknown when a driver is there but does not answer, or not for every card.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if _is(nvml, error, "NVML_ERROR_LIBRARY_NOT_FOUND", "NVML_ERROR_DRIVER_NOT_LOADED"):
            return []
        raise CardsUnknown(f"NVML does not start: {error}") from error
    try:
        driver = _text(_value(nvml, nvml.nvmlSystemGetDriverVersion))
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        near = read_topology(nvml, handles, lambda read: _value(nvml, read))
        return [
            _read_card(nvml, index, handle, driver, where)
            for index, (handle, where) in enumerate(zip(handles, near, strict=True))
        ]
    except nvml.NVMLError as error:
        raise CardsUnknown(f"NVML does not answer: {error}") from error
    finally:
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError as error:
            log.debug("NVML did not shut down: %s", error)


def _read_card(nvml: Any, index: int, handle: Any, driver: str | None, near: Near) -> CardReport:
    # Without its UUID a card has no identity: that is no answer, and raises.
    uuid = _text(nvml.nvmlDeviceGetUUID(handle)) or ""
    memory = _value(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    capability = _value(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    use = _value(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    mig = _value(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    return CardReport(
        uuid=uuid,
        index=index,
        vendor="nvidia",
        model=_text(_value(nvml, lambda: nvml.nvmlDeviceGetName(handle))) or "unknown",
        vram_total_mb=None if memory is None else int(memory.total) // MB,
        vram_used_mb=None if memory is None else int(memory.used) // MB,
        temperature_c=_value(
            nvml, lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        ),
        utilization_percent=None if use is None else int(use.gpu),
        driver_version=driver,
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        mig_capable=mig is not None,
        mps_capable=capability is not None and tuple(capability) >= (7, 0),
        processes=_read_processes(nvml, handle),
        link_group=near.link_group,
        pcie_root=near.pcie_root,
    )


def _read_processes(nvml: Any, handle: Any) -> list[CardHolder] | None:
    found = _value(nvml, lambda: list(nvml.nvmlDeviceGetComputeRunningProcesses(handle)))
    if found is None:
        return None
    return [
        CardHolder(int(one.pid), None if one.usedGpuMemory is None else int(one.usedGpuMemory) // MB)
        for one in found
    ]


def _value(nvml: Any, read: Callable[[], T]) -> T | None:
    """One reading; None where card or driver does not offer it or does not answer."""
    try:
        return read()
    except nvml.NVMLError as error:
        if not _is(nvml, error, "NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_FUNCTION_NOT_FOUND"):
            log.warning("a value of a card could not be read: %s", error)
        return None


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _is(nvml: Any, error: Exception, *names: str) -> bool:
    code = getattr(error, "value", None)
    return any(code == getattr(nvml, name) for name in names)
