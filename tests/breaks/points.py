"""The points of a start at which a process of a stack may be killed (see installed/sitecustomize.py).

Knows functions of the product by name; a name that is gone ends the process at its import, so the test that
uses the point fails. Imports nothing of the project: it runs before every process' own imports.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class Point(NamedTuple):
    """Before or after `function` of a module, or of its class `owner`."""

    name: str
    module: str
    function: str
    owner: str = ""
    before: bool = False
    when: Callable[..., bool] = lambda *args, **kwargs: True


def about_ready(*args: Any, **kwargs: Any) -> bool:
    """Whether a call is about an attempt that has just become ready."""
    return any("ready" in (one, getattr(one, "observed", "")) for one in (*args, *kwargs.values()))


_MADE = ("docker.api.container", "ContainerApiMixin")
_PLACING, _CLAIMING, _REPORTING = (
    f"apps.workloads.services.{name}ing" for name in ("plac", "claim", "report")
)
_ALL = (
    # of the agent: the claim is granted; Docker has made the container; has started it; it is ready
    Point("agent-claimed", "agent.supervisor.starting", "take_spec"),
    Point("agent-created", _MADE[0], "create_container", _MADE[1]),
    Point("agent-started", _MADE[0], "start", _MADE[1]),
    Point("agent-reports", "agent.link.reports", "add", "ReportQueue", before=True, when=about_ready),
    # of the server: written and not committed; committed and not told
    Point("server-placing", _PLACING, "_commit"),
    Point("server-placed", _PLACING, "commit_placements"),
    Point("server-granting", _CLAIMING, "_build_spec"),
    Point("server-granted", _CLAIMING, "claim_task"),
    Point("server-believing", _REPORTING, "_carry_out", when=about_ready),
    Point("server-believed", _REPORTING, "apply_report", when=about_ready),
)
POINTS = {point.name: point for point in _ALL}
