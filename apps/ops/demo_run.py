"""The demo from start to greeting: its people, its model file, its service, the wait, the print.

Repeatable: a second start finds all of it and makes no second key. The part before the children start
writes rows; the part after speaks HTTP only.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rest_framework_simplejwt.tokens import AccessToken

from apps.ops import demo, demo_model, first_start, greeting
from apps.ops.layout import Layout
from apps.ops.rest import Api, ApiRefusal
from apps.tenants import services as tenants
from apps.tenants.models import Role, Tenant, User
from apps.tenants.scope import SYSTEM

log = logging.getLogger("heteroflow.ops")

TENANT, MEMBER = "demo", "demo"
RETRY_EVERY_S = 0.5


@dataclass(frozen=True)
class DemoRun:
    """A prepared demo. `access_token` signs the member in where the password is not known any more."""

    base_url: str
    people: greeting.People
    model: Path
    model_name: str
    access_token: str

    @classmethod
    def prepare(
        cls, base_url: str, layout: Layout, people: greeting.People, own_model: Path | None
    ) -> "DemoRun | None":
        """Ensure tenant, member and model file. None where no model file is at hand."""
        source = own_model or demo_model.find_packaged()
        if source is None or not source.is_file():
            return None
        user, password = _ensure_member()
        return cls(
            base_url,
            replace(people, member=user.username, member_password=password),
            demo_model.place(source, layout.models),
            demo_model.model_name(source),
            str(AccessToken.for_user(user)),
        )

    def run(self, say: Callable[[str], None], stop: threading.Event, give_up_s: float) -> None:
        """Make or find the service, wait for it, print how to call it."""
        api = Api(self.base_url, self.access_token)
        try:
            self._wait_for_server(api, stop)
            if self.people.member_password:
                api.sign_in(self.people.member, self.people.member_password)
            group, key = demo.ensure_service(api, self.model, self.model_name)
            try:
                group, running = demo.wait_until_running(
                    api, group["id"], say, give_up_s=give_up_s, stopping=stop.is_set
                )
            finally:
                if not stop.is_set() or key:  # a key that was made is shown, whatever comes after
                    self._tell(say, key)
            if not running and not stop.is_set():
                say(f"The demo service does not run yet: {demo.describe(group)}. The portal shows its log.")
        except (OSError, ApiRefusal) as error:
            if not stop.is_set():
                say(f"The demo service could not be made or reached: {error}")

    def _wait_for_server(self, api: Api, stop: threading.Event) -> None:
        while not stop.is_set() and not api.answers("/readyz"):
            time.sleep(RETRY_EVERY_S)

    def _tell(self, say: Callable[[str], None], key: str | None) -> None:
        lines = [
            *greeting.sign_in_lines(self.base_url, self.people),
            "",
            *greeting.call_lines(self.base_url, self.model_name, key),
        ]
        say("\n".join([greeting.LINE, *lines, greeting.LINE]))


def _ensure_member() -> tuple[User, str | None]:
    tenant = Tenant.objects.filter(slug=TENANT).first()
    if tenant is None:
        tenant = tenants.create_tenant(actor=SYSTEM, slug=TENANT, name="Demo")
    user, password = User.objects.filter(username=MEMBER).first(), None
    if user is None:
        password = first_start.new_password()
        user = tenants.create_user(username=MEMBER, password=password)
    if not user.memberships.filter(tenant=tenant).exists():
        tenants.add_member(actor=SYSTEM, tenant=tenant, user=user, role=Role.MEMBER)
    return user, password
