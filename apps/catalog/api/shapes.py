"""Shapes of catalog models, for the schema."""

from rest_framework import serializers

from agent.engines.catalog import ENGINE_NAMES
from apps.catalog.models import CatalogModel


class ModelShape(serializers.ModelSerializer[CatalogModel]):
    id = serializers.CharField(source="public_id", read_only=True)

    class Meta:
        model = CatalogModel
        fields = ["id", "name", "path", "image", "engine", "size_mb", "created_at"]
        read_only_fields = fields


class NewModelBody(serializers.Serializer):
    name = serializers.CharField(max_length=200, help_text="what callers send in `model`")
    path = serializers.CharField(max_length=1000)
    image = serializers.CharField(max_length=300, help_text="name:tag or name@sha256:digest")
    engine = serializers.ChoiceField(choices=ENGINE_NAMES, required=False)
    size_mb = serializers.IntegerField(min_value=1, required=False)
