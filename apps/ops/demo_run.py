"""The demo from start to greeting: its people, its model file, its service, the wait, the print.

Repeatable: a second start finds all of it and makes no second key. The part before the children start
places the model file; everything after goes through the REST API, as operator and as member.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from apps.core.clock import utc_now
from apps.ops import demo, demo_model, greeting
from apps.ops.first_start import new_password
from apps.ops.layout import Layout
from apps.ops.rest import Api, ApiRefusal
from apps.tenants.models import User
from apps.tenants.sign_in import access_for

RETRY_EVERY_S = 0.5
Say = Callable[[str], None]


@dataclass(frozen=True)
class DemoRun:
    """A prepared demo. A token signs in whoever's password is not known any more, since only its
    hash was stored; it is made by this process, which has the keys, and lives 15 minutes."""

    base_url: str
    people: greeting.People
    model: Path
    model_name: str
    tokens: dict[str, str]
    since: datetime  # what a node said before is of an earlier run
    certificate: str = ""  # the file of one that callers would not believe otherwise

    @classmethod
    def prepare(
        cls,
        base_url: str,
        layout: Layout,
        people: greeting.People,
        own_model: Path | None,
        certificate: str = "",
    ) -> "DemoRun | None":
        """Place the model file. None where none is at hand."""
        source = own_model or demo_model.find_packaged()
        if source is None or not source.is_file():
            return None
        known = User.objects.filter(username__in=[people.operator, demo.MEMBER])
        return cls(
            base_url,
            people,
            demo_model.place(source, layout.models),
            demo_model.model_name(source),
            {user.username: access_for(user, agent="manage.py up") for user in known},
            utc_now(),
            certificate,
        )

    def run(self, say: Say, stop: threading.Event, give_up_s: float) -> None:
        """Make or find people and service, wait for it, print how to call it."""
        try:
            self._wait_for_server(stop)
            if not stop.is_set():
                self._run(say, stop, give_up_s)
        except (OSError, ApiRefusal) as error:
            if not stop.is_set():
                say(f"The demo service could not be made or reached: {error}")

    def _run(self, say: Say, stop: threading.Event, give_up_s: float) -> None:
        operator = self._signed_in(self.people.operator, self.people.operator_password)
        password = demo.ensure_member(operator, new_password)
        people = replace(self.people, member=demo.MEMBER, member_password=password)
        demo.ensure_model(operator, self.model, self.model_name)
        member = self._signed_in(people.member, people.member_password)
        group, key = demo.ensure_service(member, self.model, self.model_name)
        running = False
        try:
            found = not key  # one made just now runs by nobody else's word than its node's
            group, running = demo.wait_until_running(
                operator,
                group["id"],
                say,
                give_up_s=give_up_s,
                stopping=stop.is_set,
                confirm=demo.Nodes(operator, self.since).confirm if found else lambda group: True,
            )
            if running and key:
                took_s = demo.wait_until_answers(self.base_url, key, group["model_name"], give_up_s=give_up_s)
                say("demo service: " + (f"answers in {took_s:.1f} s" if took_s else "does not answer yet"))
        finally:  # what was made and is shown once is shown, whatever comes
            if running or password or key:
                self._tell(say, people, group, key)
        if not running and not stop.is_set():
            say(f"The demo service does not run yet: {demo.describe(group)}. The portal shows its log.")

    def _signed_in(self, name: str, password: str | None) -> Api:
        api = Api(self.base_url, self.tokens.get(name, ""))
        if password:
            api.sign_in(name, password)
        return api

    def _wait_for_server(self, stop: threading.Event) -> None:
        api = Api(self.base_url)
        while not stop.is_set() and not api.answers("/readyz"):
            time.sleep(RETRY_EVERY_S)

    def _tell(self, say: Say, people: greeting.People, group: dict[str, Any], key: str | None) -> None:
        lines = [
            *greeting.sign_in_lines(self.base_url, people),
            "",
            *greeting.call_lines(self.base_url, str(group["model_name"]), key, self.certificate),
        ]
        say("\n".join([greeting.LINE, *lines, greeting.LINE]))
