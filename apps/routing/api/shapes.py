"""Shapes of routes and endpoints, for the schema. Checking and answering are done elsewhere."""

from rest_framework import serializers

from apps.routing.models import Balancing, Sticky


class RouteOfGroupShape(serializers.Serializer):
    id = serializers.CharField()
    model_name = serializers.CharField()
    engine = serializers.CharField()
    version = serializers.CharField()
    priority = serializers.IntegerField()
    weight = serializers.IntegerField()
    balancing = serializers.ChoiceField(choices=Balancing.values)
    sticky = serializers.ChoiceField(choices=["", *Sticky.values])
    active = serializers.BooleanField()


class RouteShape(RouteOfGroupShape):
    group_id = serializers.CharField(allow_null=True, help_text="null: it leads to an external engine")
    external = serializers.CharField(allow_null=True, help_text="the external engine's name")
    tenant = serializers.CharField()
    warnings = serializers.ListField(
        child=serializers.CharField(), help_text="what runs behind it and gets no call, and why"
    )


class RouteBody(serializers.Serializer):
    weight = serializers.IntegerField(
        min_value=0, max_value=100, required=False, help_text="0 = reserve, used when nothing else can serve"
    )
    priority = serializers.IntegerField(required=False, help_text="0 first; negative: operators only")
    balancing = serializers.ChoiceField(choices=Balancing.values, required=False)
    version = serializers.CharField(max_length=50, required=False)
    sticky = serializers.ChoiceField(
        choices=["", *Sticky.values],
        required=False,
        help_text="by what the calls of a session stay on one replica; empty: they don't",
    )
    active = serializers.BooleanField(required=False)


class NewRouteBody(RouteBody):
    group_id = serializers.CharField(required=False, help_text="this or external_id")
    external_id = serializers.CharField(required=False, help_text="operators only")
    model_name = serializers.CharField(max_length=200, required=False, help_text="the group's where absent")
    tenant = serializers.CharField(required=False, help_text="with external_id: whose callers it is for")


class ExternalEngineShape(serializers.Serializer):
    id = serializers.CharField()
    name = serializers.CharField()
    url = serializers.CharField()
    engine_model = serializers.CharField(help_text="empty: asked of its /v1/models")
    created_at = serializers.DateTimeField()


class ExternalEngineBody(serializers.Serializer):
    name = serializers.CharField(max_length=200)
    url = serializers.CharField(
        max_length=500, help_text="with its /v1 or without, such as https://engine.example:8000"
    )
    engine_model = serializers.CharField(
        max_length=200, required=False, allow_blank=True, help_text="empty: asked of its /v1/models"
    )
    api_key = serializers.CharField(
        max_length=500, required=False, allow_blank=True, write_only=True, help_text="kept encrypted"
    )


class ExternalEngineChanges(ExternalEngineBody):
    name = serializers.CharField(max_length=200, required=False)
    url = serializers.CharField(max_length=500, required=False)


class EndpointShape(serializers.Serializer):
    id = serializers.CharField()
    name = serializers.CharField()
    group_id = serializers.CharField()
    model_name = serializers.CharField()
    port = serializers.IntegerField()
    external_port = serializers.IntegerField(help_text="kept, without effect")
    base_url = serializers.CharField()
    key_id = serializers.CharField(allow_null=True)
    key_prefix = serializers.CharField(allow_null=True)
    created_at = serializers.DateTimeField()


class EndpointOnceShape(EndpointShape):
    api_key = serializers.CharField(required=False, help_text="with rotate_key, in this answer only")


class EndpointBody(serializers.Serializer):
    name = serializers.CharField(max_length=200, required=False)
    port = serializers.IntegerField(min_value=1, max_value=65535, required=False)
    external_port = serializers.IntegerField(min_value=0, max_value=65535, required=False)
    rotate_key = serializers.BooleanField(required=False, help_text="true: a new key, shown once")
    overlap_seconds = serializers.IntegerField(
        min_value=0, required=False, help_text="with rotate_key: for how long the old one works on"
    )
