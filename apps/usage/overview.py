"""What the pages of usage show: sums, bars by hour or day, a table by what one asks for.

Reads only; a fixed number of statements whatever the size. Who sees what is the selectors'.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django import forms
from django.conf import settings
from django.utils import formats
from django.utils.functional import Promise
from django.utils.http import urlencode
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from apps.core import texts
from apps.core.errors import Invalid
from apps.tenants.scope import Viewer
from apps.tenants.selectors import keys
from apps.usage.charts import Chart, build_chart
from apps.usage.period import USUAL_DAYS, settle_days
from apps.usage.sums import By, Only, Use, add, use_by
from apps.workloads.models import TaskGroup

LINES_SHOWN = 200
Text = str | Promise

_WORDS: dict[By, Any] = {
    By.MODEL: _("model"),
    By.KEY: _("key"),
    By.MEMBER: _("person"),
    By.SERVICE: _("service"),
    By.DAY: _("day"),
    By.TENANT: _("tenant"),
    By.HOUR: _("hour"),
}
_RANGES = (
    (_("Today"), 1),
    (_("7 days"), 7),
    (_("30 days"), 30),
    (_("A year"), 365),
)


class PeriodForm(forms.Form):
    """From when to when, and what the table is by. Of a tenant only where there are several."""

    by = forms.ChoiceField(label=_("Table by"), required=False)

    def __init__(self, given: Mapping[str, str], *, today: date, tenants: list[tuple[str, str]]) -> None:
        usual = {"from": (today - timedelta(days=USUAL_DAYS - 1)).isoformat(), "to": today.isoformat()}
        super().__init__(given if given.get("from") or given.get("to") else {**given, **usual})
        self._today = today
        days: dict[str, Any] = {
            name: forms.DateField(
                label=label,
                required=False,
                widget=forms.DateInput(attrs={"type": "date", "max": today.isoformat()}, format="%Y-%m-%d"),
            )
            for name, label in (("from", _("First day")), ("to", _("Last day")))
        }
        several = len(tenants) > 1
        if several:
            every = [("", _("all")), *tenants]
            days["tenant"] = forms.ChoiceField(label=_("Tenant"), required=False, choices=every)
        self.fields = {**days, **self.fields}
        field: Any = self.fields["by"]
        offered = [by for by in _WORDS if by is not By.HOUR and (several or by is not By.TENANT)]
        field.choices = [(by.value, _WORDS[by]) for by in offered]

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = super().clean() or {}
        if not self.errors:
            try:
                given["from"], given["to"] = settle_days(given.get("from"), given.get("to"), self._today)
            except Invalid as refusal:
                (error,) = refusal.errors
                words = {"field": self.fields["from"].label, "value": error.value, **error.params}
                self.add_error("from", texts.say(error.code, words))
        return given


@dataclass(frozen=True)
class Line:
    """One line of the table: a name, and where it says more than that, the id or the key's beginning."""

    name: str
    more: str
    use: Use


def build_usage(viewer: Viewer, form: PeriodForm, now: datetime) -> dict[str, Any] | None:
    """Everything of the page; None where the form asks for what can't be shown."""
    if not form.is_valid():
        return None
    asked = form.cleaned_data
    first, last, only = asked["from"], asked["to"], Only(tenant=asked.get("tenant", ""))
    by = By(asked["by"] or By.MODEL)
    hourly = first == last and _hours_are_kept(first, now.date())
    steps = use_by(viewer, first, last, By.HOUR if hourly else By.DAY, only)
    found = use_by(viewer, first, last, by, only)
    points = _points(steps, first, last, hourly)
    rest = {"by": by.value} | ({"tenant": only.tenant} if only.tenant else {})
    return {
        "first": first,
        "last": last,
        "by_word": capfirst(_WORDS[by]),
        "by_words": _("By %(what)s") % {"what": _WORDS[by]},
        "whole": add(steps),
        "charts": [
            _chart(
                _("Tokens"),
                {"in": (_("in"), "prompt_tokens"), "out": (_("out"), "completion_tokens")},
                points,
            ),
            _chart(
                _("Requests"),
                {"done": (_("completed"), "completed"), "failed": (_("not completed"), "failed")},
                points,
            ),
        ],
        "lines": _named(viewer, by, found[-LINES_SHOWN:] if by is By.DAY else found[:LINES_SHOWN]),
        "left_out": max(0, len(found) - LINES_SHOWN),
        "ranges": [
            (words, _query(now.date() - timedelta(days=days - 1), now.date(), rest))
            for words, days in _RANGES
        ],
        "query": _query(first, last, rest),
        "records_keep_days": settings.USAGE_RECORDS_KEEP_DAYS,
    }


def _query(first: date, last: date, rest: dict[str, str]) -> str:
    return urlencode({"from": first.isoformat(), "to": last.isoformat(), **rest})


def _hours_are_kept(day: date, today: date) -> bool:
    keep = settings.USAGE_HOURS_KEEP_DAYS
    return not keep or (today - day).days < keep - 1


def _points(uses: list[Use], first: date, last: date, hourly: bool) -> list[tuple[str, Use]]:
    """Each hour or day with its label, also those without a call."""
    start = datetime(first.year, first.month, first.day, tzinfo=UTC)
    steps = 24 if hourly else (last - first).days + 1
    moments = [
        start + number * (timedelta(hours=1) if hourly else timedelta(days=1)) for number in range(steps)
    ]
    found = {use.value[0]: use for use in uses}
    form = "%H:%M" if hourly else "%Y-%m-%d"
    return [(moment.strftime(form), found.get(moment.isoformat(), Use())) for moment in moments]


def _chart(title: Text, kinds: dict[str, tuple[Text, str]], points: list[tuple[str, Use]]) -> Chart:
    """`kinds`: word and field of each."""
    drawn = []
    for label, use in points:
        values = {kind: getattr(use, field) for kind, (_word, field) in kinds.items()}
        told = ", ".join(
            f"{formats.number_format(values[kind], 0, force_grouping=True)} {word}"
            for kind, (word, _field) in kinds.items()
        )
        drawn.append((label, f"{label}: {told}", values))
    return build_chart(str(title), {kind: str(word) for kind, (word, _field) in kinds.items()}, drawn)


def _named(viewer: Viewer, by: By, uses: list[Use]) -> list[Line]:
    """Ids with the names that they have now; what is gone keeps what its records say."""
    ids = {use.value[0] for use in uses}
    names: dict[str, str] = {}
    if by is By.KEY:
        names = dict(keys(viewer).filter(public_id__in=ids).values_list("public_id", "name"))
    elif by is By.SERVICE:
        names = dict(TaskGroup.objects.filter(public_id__in=ids).values_list("public_id", "name"))
    lines = []
    for use in uses:
        value = use.value[0]
        if by is By.DAY:
            lines.append(Line(value[:10], "", use))
        elif by is By.KEY:
            lines.append(Line(names.get(value, value), f"{use.value[1]}…" if use.value[1] else "", use))
        else:
            lines.append(Line(names.get(value, value), value if value in names else "", use))
    return lines
