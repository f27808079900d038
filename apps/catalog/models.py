"""Models that operators registered by hand, for the create form to choose from (SVC-06)."""

from django.db import models

from apps.core.fields import PublicIdField


class CatalogModel(models.Model):
    """A model file or folder that nodes have at `path`; `name` is what callers will send."""

    public_id = PublicIdField(kind="model")
    name = models.CharField(max_length=200, unique=True)
    path = models.CharField(max_length=1000)
    image = models.CharField(max_length=300)
    engine = models.CharField(max_length=30, blank=True, default="")
    size_mb = models.PositiveIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
