"""The page that says how a machine joins (AGENT-01): steps, the command, whom its agent must meet."""

from collections.abc import Iterator

from django.conf import settings
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _

from apps.console.admin.base import OperatorAdmin
from apps.core.clock import utc_now
from apps.fleet import services
from apps.tenants.scope import viewer_of


def join_token_page(owner: OperatorAdmin, request: HttpRequest) -> TemplateResponse:
    """Says how a machine joins; makes a token on POST and shows the join command this once."""
    if request.method != "POST":
        return owner.show(
            request,
            "console/join.html",
            _("Join a node"),
            steps=list(_join_steps()),
            button=_("Make a join command"),
            back=owner.page_of(),
        )
    _token, plain = services.create_join_token(actor=viewer_of(request.user), now=utc_now())
    return owner.show(
        request,
        "console/shown_once.html",
        _("Join command"),
        secret=services.join_command(plain),
        note=_("Run this on the machine that shall join. It is shown once and works once."),
        back=owner.page_of(),
    )


def _join_steps() -> Iterator[str]:
    """What an operator does, in order, and how the machine knows that it speaks with this server."""
    yield str(
        _(
            "1. Install the agent on the machine: Python 3.11, this project's source, and Docker for"
            " containers."
        )
    )
    minutes = settings.JOIN_TOKEN_TTL_S // 60
    made = _(
        "2. Make a command here. It holds a token that lets one machine join, once, within %(minutes)s"
        " minutes."
    )
    yield str(made) % {"minutes": minutes}
    yield str(
        _(
            "3. Run it there. The node shows up in the list within seconds, and takes work once its door is"
            " open."
        )
    )
    if settings.SERVER_CERTIFICATE_SHA256:
        pinned = _("The agent checks that the server's certificate has this SHA-256: %(fingerprint)s")
        yield str(pinned) % {"fingerprint": settings.SERVER_CERTIFICATE_SHA256}
    elif settings.PUBLIC_URL.startswith("http://"):
        plain = _(
            "The server's address is plain http, which an agent accepts to its own machine only; set"
            " PUBLIC_URL to an https address for others."
        )
        yield str(plain)
