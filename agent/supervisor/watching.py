"""What watching one started attempt needs, built from its spec. Pure.

Owns the way from settings and spec to a health monitor and a probe, and from an end to its reason.
"""

from __future__ import annotations

from agent.config import Settings
from agent.contract.codes import Code, Reason, reason
from agent.contract.messages import TaskSpec
from agent.contract.states import TaskType
from agent.engines.catalog import get_engine
from agent.runtime.base import Exit
from agent.supervisor.health import HealthMonitor
from agent.supervisor.probe import ProbeTarget, probe_port


def build_monitor(settings: Settings, spec: TaskSpec, now: float, *, age_s: float) -> HealthMonitor:
    """Judged from the real start, `age_s` ago (AGENT-08); the cap on loading counts from now, since
    nobody watched before."""
    return HealthMonitor(
        spec.health_check,
        started_at=now - age_s,
        load_cap_s=settings.load_cap_s + age_s,
        stall_s=settings.stall_s if spec.gpu_uuids else settings.stall_cpu_s,
        loading_s=settings.loading_probe_s,
    )


def build_target(settings: Settings, spec: TaskSpec) -> ProbeTarget:
    """Where and how to ask this engine."""
    return ProbeTarget(
        host=settings.engine_host,
        port=probe_port(spec.health_check, spec.ports),
        check=spec.health_check,
        engine=get_engine(spec.engine),
        key=spec.engine_key,
        api_port=spec.ports[0].host_port if spec.ports else 0,
        model=spec.served_model_name,
    )


def needs_canary(spec: TaskSpec) -> bool:
    """Whether a woken engine can be asked for a token: those of the catalog all speak one API."""
    return spec.task_type is TaskType.INFERENCE and bool(spec.ports) and get_engine(spec.engine) is not None


def why_ended(ended: Exit) -> Reason:
    """Why an attempt is over that nobody asked to end."""
    if ended.vanished:
        return reason(Code.CONTAINER_GONE)
    code = Code.OUT_OF_MEMORY if ended.out_of_memory else Code.EXITED
    return reason(code, exit_code=ended.exit_code)
