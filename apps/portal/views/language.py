"""The language switch: the framework's own, which also saves the choice of who is signed in."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.i18n import set_language

from apps.core.scopes import PUBLIC, scope
from apps.tenants import services
from apps.tenants.models import User
from apps.tenants.scope import viewer_of


@scope(PUBLIC)
def choose(request: HttpRequest) -> HttpResponse:
    """Answer in the chosen language from now on, here and wherever this person signs in."""
    wanted, user = request.POST.get("language", ""), request.user
    if request.method == "POST" and isinstance(user, User) and wanted in dict(settings.LANGUAGES):
        services.change_profile(actor=viewer_of(user), user=user, language=wanted)
    answer: HttpResponse = set_language(request)
    return answer
