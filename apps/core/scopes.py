"""Who an address is for: every view declares one scope, and the suite fails for a view without one.

Owns the words and how they are found on a view. Enforcing them is the view's authentication and
permission classes; which rows are seen is decided by selectors (TEN-04).

    class NodeList(APIView):
        scope = "tenant"

    @node                       # the same as @scope("node")
    def heartbeat(request): ...
"""

from collections.abc import Callable
from typing import Any, TypeVar

PUBLIC = "public"  # anybody, also without sign-in; shows no tenant's things
SIGNED_IN = "signed_in"  # any signed-in person; shows the person's own things only
TENANT = "tenant"  # signed in, rows scoped by membership
OPERATOR = "operator"  # platform operators
NODE = "node"  # a node's agent, by its own credential
METRICS = "metrics"  # whoever scrapes, by METRICS_TOKEN; people have no business there

SCOPES = frozenset({PUBLIC, SIGNED_IN, TENANT, OPERATOR, NODE, METRICS})

V = TypeVar("V", bound=Callable[..., Any])


def scope(name: str) -> Callable[[V], V]:
    """Declare the scope of a function view or a view class. Raises ValueError for an unknown word."""
    if name not in SCOPES:
        raise ValueError(f"scope {name!r} is not one of {sorted(SCOPES)}")

    def declare(view: V) -> V:
        view.scope = name  # type: ignore[attr-defined]
        return view

    return declare


public = scope(PUBLIC)
signed_in = scope(SIGNED_IN)
tenant = scope(TENANT)
operator = scope(OPERATOR)
node = scope(NODE)
metrics = scope(METRICS)


def scope_of(view: object) -> str | None:
    """The declared scope of a view as it stands in the URL table; None where it declares none.

    Finds it on plain functions, on Django's view classes and on DRF's views and viewsets, also
    through decorators that keep the attributes of what they wrap.
    """
    for holder in (view, getattr(view, "view_class", None), getattr(view, "cls", None)):
        declared = getattr(holder, "scope", None)
        if declared is not None:
            return str(declared)
    return None
