"""Shapes of routes and endpoints, for the schema. Checking and answering are done elsewhere."""

from rest_framework import serializers

from apps.routing.models import Balancing


class RouteOfGroupShape(serializers.Serializer):
    id = serializers.CharField()
    model_name = serializers.CharField()
    engine = serializers.CharField()
    version = serializers.CharField()
    priority = serializers.IntegerField()
    weight = serializers.IntegerField()
    balancing = serializers.ChoiceField(choices=Balancing.values)
    active = serializers.BooleanField()


class RouteShape(RouteOfGroupShape):
    group_id = serializers.CharField()
    tenant = serializers.CharField()


class RouteBody(serializers.Serializer):
    weight = serializers.IntegerField(
        min_value=0, max_value=100, required=False, help_text="0 = reserve, used when nothing else can serve"
    )
    priority = serializers.IntegerField(required=False, help_text="0 first; negative: operators only")
    balancing = serializers.ChoiceField(choices=Balancing.values, required=False)
    version = serializers.CharField(max_length=50, required=False)
    active = serializers.BooleanField(required=False)


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
