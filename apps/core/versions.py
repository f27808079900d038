"""Version numbers of published tables; a reader that sees a new one loads the table again."""

from django.db.models import F

from apps.core.models import PublishedVersion

GATEWAY = "gateway"


def bump(name: str = GATEWAY) -> int:
    """Raise a version; call inside the transaction whose rows changed. Answers the new one, which is this
    transaction's alone until it ends."""
    if not PublishedVersion.objects.filter(name=name).update(version=F("version") + 1):
        PublishedVersion.objects.update_or_create(
            name=name, defaults={"version": F("version") + 1}, create_defaults={"version": 1}
        )
    return read(name)


def read(name: str = GATEWAY) -> int:
    """The present version; 0 before anything was published."""
    return PublishedVersion.objects.filter(name=name).values_list("version", flat=True).first() or 0
