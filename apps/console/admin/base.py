"""What all admin classes share: operators only, refusals as messages, state as a coloured word.

Owns how an action asks before it acts (a page on GET, the act on POST), and that what a form saves by
itself, without a service, is noted in the audit trail (TEN-08). Decides nothing.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.contrib.admin.views.main import ERROR_FLAG
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import formats, timezone
from django.utils.functional import Promise
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from unfold.admin import ModelAdmin, TabularInline

from apps.core import audit, texts
from apps.core.errors import FieldError, Refusal
from apps.tenants.models import User
from apps.tenants.scope import viewer_of
from apps.workloads.models import Task

Text = str | Promise

STATE_COLOURS = {
    "running": "success",
    "completed": "success",
    "pending": "warning",
    "draining": "warning",
    "stopping": "warning",
    "failed": "danger",
    "scheduling": "info",
    "waking": "info",
    "sleeping": "info",
}


def is_operator(request: HttpRequest) -> bool:
    """Whether a platform operator asks; staff who are not operators see nothing here (TEN-02)."""
    return isinstance(request.user, User) and request.user.is_operator


def coloured(word: Text, colour: str) -> SafeString:
    """A word as unfold's coloured label, for lists and details alike; the word says it, not the colour."""
    return mark_safe(render_to_string("unfold/helpers/label.html", {"text": word, "type": colour}))  # noqa: S308


def state_label(state: str) -> SafeString:
    """The word of a state in its colour."""
    return coloured(texts.say(f"state_{state}"), STATE_COLOURS.get(state, ""))


def to_the_second(moment: datetime) -> str:
    """A moment in the reader's zone with its seconds; several moves happen within a minute."""
    return formats.date_format(timezone.localtime(moment), "Y-m-d H:i:s")


def ago(moment: datetime | None, now: datetime) -> str | None:
    """How long before `now` a moment was, in its largest unit; None for no moment."""
    if moment is None:
        return None
    seconds = max(0, int((now - moment).total_seconds()))
    if seconds < 120:
        return _("%(n)s s ago") % {"n": seconds}
    if seconds < 7200:
        return _("%(n)s min ago") % {"n": seconds // 60}
    if seconds < 172800:
        return _("%(n)s h ago") % {"n": seconds // 3600}
    return _("%(n)s days ago") % {"n": seconds // 86400}


def further_refusals(task: Task) -> list[str]:
    """Why no node takes a task, as sentences; what its own reason says already is left out."""
    others = [refusal for refusal in task.refusals if refusal.get("code") != task.reason_code]
    return [texts.say(refusal.get("code", ""), refusal.get("params")) for refusal in others]


def tell_refusal(request: HttpRequest, refusal: Refusal, form: Any = None) -> None:
    """A refusal as messages: its fields' sentences, by their names on the page where `form` has them, or its
    own."""
    for _field, sentence in _sentences_of(refusal, form.fields if form is not None else {}):
        messages.error(request, sentence)


def _sentences_of(refusal: Refusal, shown: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Each with its field; the refusal's own has none. `shown`: a form's fields, for their labels."""

    def say(error: FieldError) -> str:
        name = shown[error.field].label if error.field in shown else error.field
        return texts.say(error.code, {"field": name, "value": error.value, **error.params})

    found = [(error.field, say(error)) for error in refusal.errors]
    return found or [("", texts.say(refusal.code, refusal.params))]


def note_row(
    request: HttpRequest, verb: str, row: Any, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Note what an operator did with a row that the console itself saves."""
    audit.note(
        viewer_of(request.user),
        verb,
        kind=str(row._meta.model_name),
        public_id=str(getattr(row, "public_id", row.pk)),
        name=str(row),
        before=before,
        after=after,
    )


def _as_stored(row: Any) -> dict[str, Any]:
    """A row's own columns and lists, for comparison."""
    lists = {field.name: sorted(map(str, getattr(row, field.name).all())) for field in row._meta.many_to_many}
    return audit.picture(row) | lists


class OperatorAdmin(ModelAdmin):
    """For operators only. A Refusal of a service is shown in the form, which keeps what was typed."""

    list_fullwidth = True
    list_per_page = 50
    show_full_result_count = False
    warn_unsaved_form = True
    actions_on_top = True

    def has_module_permission(self, request: HttpRequest) -> bool:
        return is_operator(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return is_operator(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return is_operator(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return is_operator(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Who may use the actions, also on rows that can't be edited."""
        return is_operator(request)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        try:
            answer = super().changelist_view(request, extra_context)
            # Now, not later: a date far off in the address is only met when the page is written.
            return answer.render() if isinstance(answer, TemplateResponse) else answer
        except (OverflowError, ValueError):
            if ERROR_FLAG in request.GET:  # it isn't the address then
                raise
            return redirect(f"{request.path}?{ERROR_FLAG}=1")  # as the framework does for other filters

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        try:
            return super().changeform_view(request, object_id, form_url, extra_context)
        except Refusal as refusal:
            request.refused = refusal  # type: ignore[attr-defined]
            return super().changeform_view(request, object_id, form_url, extra_context)

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form: Any = super().get_form(request, obj, change=change, **kwargs)
        refusal = getattr(request, "refused", None)
        if refusal is None:
            return form

        def clean(filled: Any) -> Any:
            cleaned = form.clean(filled)
            for field, sentence in _sentences_of(refusal, filled.fields):
                filled.add_error(field if field in filled.fields else None, sentence)
            return cleaned

        return type("RefusedForm", (form,), {"clean": clean})

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """What the form saves by itself is noted once its lists are saved too; a class that saves
        through a service does not come here, the service notes it."""
        stored = type(obj)._default_manager.filter(pk=obj.pk).first() if change else None
        request.audited_before = _as_stored(stored) if stored else {}  # type: ignore[attr-defined]
        super().save_model(request, obj, form, change)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        old = getattr(request, "audited_before", None)
        if old is None:
            return
        before, after = audit.changes(old, _as_stored(form.instance))
        if after:
            note_row(request, "console_change" if change else "console_add", form.instance, before, after)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        with transaction.atomic():
            note_row(request, "console_delete", obj, _as_stored(obj), {})
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        with transaction.atomic():
            for row in queryset:
                self.delete_model(request, row)

    def found(self, request: HttpRequest, object_id: str) -> Any:
        """The row of an action's page. Raises Http404."""
        row = self.get_object(request, object_id)
        if row is None:
            raise Http404
        return row

    def page_of(self, row: Model | None = None) -> str:
        """Address of a row's page, or of the list."""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}"
        return reverse(f"{name}_change", args=[row.pk]) if row else reverse(f"{name}_changelist")

    def show(self, request: HttpRequest, template: str, title: Text, **context: Any) -> TemplateResponse:
        """A page of our own below its list's name, or with `opts=None` below `title`."""
        whole = {**self.admin_site.each_context(request), "title": title, "opts": self.opts, **context}
        answer = TemplateResponse(request, template, whole)
        answer["Cache-Control"] = "no-store, private"
        return answer

    def guarded(self, view: Callable[..., HttpResponse]) -> Callable[..., Any]:
        """A page of our own, behind the console's sign-in and for operators only."""

        def look(request: HttpRequest) -> HttpResponse:
            if not self.has_view_permission(request):
                raise PermissionDenied
            return view(request)

        return self.admin_site.admin_view(look)

    def ask_then(
        self,
        request: HttpRequest,
        *,
        title: Text,
        question: Text,
        button: Text,
        act: Callable[[], Text],
        back: str,
        leads_to: str = "",
    ) -> HttpResponse:
        """Ask on GET; on POST act, tell the sentence that it returns and go to `leads_to`."""
        if request.method != "POST":
            return self.show(
                request, "console/confirm.html", title, question=question, button=button, back=back
            )
        try:
            messages.success(request, str(act()))
        except Refusal as refusal:
            tell_refusal(request, refusal)
            return redirect(back)
        return redirect(leads_to or back)


class ReadOnlyAdmin(OperatorAdmin):
    """Rows that only services and loops write."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ReadOnlyRows(TabularInline):
    """Rows that belong to the page's row, shown and never edited."""

    extra = 0
    can_delete = False
    tab = True
    show_change_link = True

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return is_operator(request)
