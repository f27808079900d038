"""Forms of the portal: what people type, and refusals of services put beside the fields they name.

Owns labels and hints only. Every rule is the service's; a form never refuses what a service would take.
"""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from agent.engines.catalog import ENGINES
from apps.catalog.models import CatalogModel
from apps.core import texts
from apps.core.errors import FieldError, Refusal
from apps.fleet import selectors as fleet
from apps.tenants.models import Tenant
from apps.tenants.scope import Viewer


class RefusalForm(forms.Form):
    """A form that shows a Refusal: field errors beside their fields, the rest above them. Sentences name
    a field by its label, as it stands on the page."""

    # dotted path of a service's field -> name of the form's field
    paths: dict[str, str] = {}
    # code -> sentence, where the usual one speaks of the API's own fields
    own_sentences: dict[str, Any] = {}

    def show(self, refusal: Refusal) -> None:
        """Put a refusal's sentences into the bound form."""
        self.full_clean()
        for error in refusal.errors:
            name = self.paths.get(error.field, error.field)
            self.add_error(name if name in self.fields else None, self._say(error, name))
        if not refusal.errors:
            self.add_error(None, texts.say(refusal.code, refusal.params))

    def _say(self, error: FieldError, name: str) -> str:
        if error.code in self.own_sentences:
            return str(self.own_sentences[error.code])
        label = self.fields[name].label if name in self.fields else error.field
        return texts.say(error.code, {"field": label, "value": error.value, **error.params})


class SignInForm(RefusalForm):
    """Name and password."""

    username = forms.CharField(
        label=_("User name"),
        widget=forms.TextInput(
            attrs={"autocomplete": "username", "autofocus": True, "autocapitalize": "none"}
        ),
    )
    password = forms.CharField(
        label=_("Password"),
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
    )


def tenant_choices(viewer: Viewer) -> list[tuple[str, str]]:
    """The tenants that the viewer may make things for, as choices."""
    reachable = Tenant.objects.all() if viewer.is_operator else Tenant.objects.filter(pk__in=viewer.roles)
    return [(tenant.slug, tenant.name) for tenant in reachable.order_by("name")]


class TenantForm(RefusalForm):
    """Asks for the tenant only where the viewer has several."""

    tenant = forms.ChoiceField(label=_("Tenant"), required=False)

    def __init__(self, *args: Any, viewer: Viewer, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.choices = tenant_choices(viewer)
        if len(self.choices) > 1:
            self.fields["tenant"] = forms.ChoiceField(label=_("Tenant"), choices=self.choices)
        else:
            del self.fields["tenant"]

    @property
    def tenant_slug(self) -> str | None:
        return self.cleaned_data.get("tenant") or None


class CreateServiceForm(TenantForm):
    """The guided, thin form: a catalog model, or everything by hand."""

    name = forms.CharField(
        label=_("Service name"), help_text=_("For people. Tasks and the endpoint are named after it.")
    )
    model = forms.ChoiceField(
        label=_("Model"),
        required=False,
        help_text=_("A registered model fills the fields below by itself."),
    )
    model_name = forms.CharField(
        label=_("Model name"),
        required=False,
        help_text=_("What callers send as `model`. Empty: the service name."),
    )
    model_path = forms.CharField(
        label=_("Model path"), required=False, help_text=_("File or folder on the node.")
    )
    image = forms.CharField(
        label=_("Image"),
        help_text=_("name:tag or name@sha256:digest, such as ghcr.io/ggml-org/llama.cpp:server"),
    )
    engine = forms.ChoiceField(
        label=_("Engine"), required=False, help_text=_("Automatic reads it from the image.")
    )
    gpu_required = forms.IntegerField(
        label=_("Cards"), initial=1, help_text=_("0 for an engine that runs on the processor.")
    )
    gpu_memory_utilization = forms.IntegerField(
        label=_("GPU memory"),
        required=False,
        help_text=_(
            "Percent of one card that it may take; others may stand on the rest. Empty: the card alone."
            " Several cards are always whole ones."
        ),
    )
    gpu_type = forms.CharField(
        label=_("GPU type"), required=False, help_text=_("Such as A800 or RTX 4090. Empty: any card.")
    )
    estimated_gpu_memory_mb = forms.IntegerField(
        label=_("Memory needed"),
        required=False,
        help_text=_("MB on its cards. Empty: estimated from the registered model, where its size is known."),
    )
    idle_timeout_minutes = forms.IntegerField(
        label=_("Sleeps after"),
        required=False,
        help_text=_(
            "Minutes without a call, after which it leaves its cards' memory; somebody wakes it then."
            " Empty or 0: never."
        ),
    )
    field_order = ["tenant"]
    paths = {
        "task.image": "image",
        "task.engine": "engine",
        "task.model_path": "model_path",
        "task.gpu_required": "gpu_required",
        "task.gpu_type": "gpu_type",
        "task.estimated_gpu_memory_mb": "estimated_gpu_memory_mb",
    }
    own_sentences = {
        "model_path_or_command": _("Choose a model, or type the path of one on the node."),
        "engine_not_told": _("The image tells no engine; choose one."),
        "model_name_from_name": _(
            "Callers would send the service name, which holds blanks or other characters that they can not"
            " send. Type a model name of letters, digits, dot, underscore, colon, slash and hyphen."
        ),
    }

    def __init__(self, *args: Any, viewer: Viewer, **kwargs: Any) -> None:
        super().__init__(*args, viewer=viewer, **kwargs)
        if fleet.is_without_cards(viewer):
            self.fields["gpu_required"].initial = 0
            self.fields["gpu_required"].help_text = _(
                "There are no cards on the nodes that you may use: 0, it runs on the processor."
            )
        self.catalog = {model.public_id: model for model in CatalogModel.objects.all()}
        models = [(key, model.name) for key, model in self.catalog.items()]
        self.fields["model"] = forms.ChoiceField(
            label=self.fields["model"].label,
            help_text=self.fields["model"].help_text,
            required=False,
            choices=[("", _("Typed by hand")), *models],
        )
        engines = [(str(name), str(name)) for name in sorted(ENGINES)]
        self.fields["engine"] = forms.ChoiceField(
            label=self.fields["engine"].label,
            help_text=self.fields["engine"].help_text,
            required=False,
            choices=[("", _("Automatic")), *engines],
        )
        # A chosen model brings its image and path.
        if self.is_bound and self.data.get("model"):
            self.fields["image"].required = False

    def filling(self) -> dict[str, dict[str, str]]:
        """What each catalog model fills in, for the page's script."""
        return {
            key: {"model_name": m.name, "model_path": m.path, "image": m.image, "engine": m.engine}
            for key, m in self.catalog.items()
        }

    def body(self) -> dict[str, Any]:
        """The request body of the create call (SVC-01). A chosen model fills what was left empty; a
        path typed by hand sends no model name (SVC-06)."""
        given = self.cleaned_data
        chosen = self.catalog.get(given["model"])
        filled = self.filling()[chosen.public_id] if chosen else {}
        value = {key: given[key] or filled.get(key, "") for key in ("model_path", "image", "engine")}
        body: dict[str, Any] = {
            "name": given["name"],
            "enable_api": True,
            "task": {"image": value["image"], "gpu_required": given["gpu_required"]},
        }
        if self.tenant_slug:
            body["tenant"] = self.tenant_slug
        for name in ("model_path", "engine"):
            if value[name]:
                body["task"][name] = value[name]
        model_name = given["model_name"] or filled.get("model_name", "")
        if model_name:
            body["model_name"] = model_name
        if given["gpu_type"]:
            body["task"]["gpu_type"] = given["gpu_type"]
        for name, into in (
            ("gpu_memory_utilization", body),
            ("idle_timeout_minutes", body),
            ("estimated_gpu_memory_mb", body["task"]),
        ):
            if given[name] is not None:
                into[name] = given[name]
        return body
