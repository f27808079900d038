"""Shapes of the route test's query and answer."""

from typing import Any

from rest_framework import serializers


class RouteTestQuery(serializers.Serializer[Any]):
    model = serializers.CharField(max_length=200)
    tenant = serializers.CharField(max_length=50, required=False, help_text="needed by who has several")
    key = serializers.CharField(max_length=40, required=False, help_text="a key's id: as if called with it")
    version = serializers.CharField(max_length=50, required=False, help_text="as x-heteroflow-version")
    backend = serializers.CharField(max_length=40, required=False, help_text="as x-heteroflow-backend")
    session = serializers.CharField(max_length=200, required=False, help_text="as x-heteroflow-session")
    user = serializers.CharField(max_length=200, required=False, help_text="as the body's `user`")
    address = serializers.IPAddressField(
        required=False, help_text="where the call comes from, judged by the key's allowed addresses"
    )


class RouteReasonShape(serializers.Serializer[Any]):
    code = serializers.CharField()
    text = serializers.CharField()


class ReplicaStandingShape(RouteReasonShape):
    gateways = serializers.IntegerField(help_text="how many processes judge it so")


class TestedReplicaShape(serializers.Serializer[Any]):
    task_id = serializers.CharField()
    percent = serializers.FloatField(help_text="of such calls, by drawing")
    in_flight = serializers.IntegerField(
        allow_null=True, help_text="null of an external engine, which others may call, too; operators see it"
    )
    standings = ReplicaStandingShape(many=True)
    failures = serializers.IntegerField()
    last_failure = serializers.CharField()
    running = serializers.FloatField(allow_null=True, help_text="as the engine told; null = it did not")
    waiting = serializers.FloatField(allow_null=True)
    kv_use = serializers.FloatField(allow_null=True, help_text="0 to 1")


class TestedRouteShape(serializers.Serializer[Any]):
    id = serializers.CharField()
    leads_to = serializers.CharField()
    group_id = serializers.CharField(allow_null=True)
    priority = serializers.IntegerField()
    weight = serializers.IntegerField()
    version = serializers.CharField()
    balancing = serializers.CharField()
    sticky = serializers.CharField()
    active = serializers.BooleanField()
    percent = serializers.FloatField()
    reason = RouteReasonShape()
    replicas = TestedReplicaShape(many=True)


class RouteRefusalShape(serializers.Serializer[Any]):
    status = serializers.IntegerField()
    code = serializers.CharField()
    message = serializers.CharField()


class RouteTestShape(serializers.Serializer[Any]):
    model = serializers.CharField()
    tenant = serializers.CharField()
    table_version = serializers.IntegerField()
    gateways = serializers.IntegerField(help_text="processes that were heard lately; 0: judged without them")
    refusal = RouteRefusalShape(allow_null=True, help_text="what the caller would get instead of an answer")
    address = RouteReasonShape(
        allow_null=True, help_text="what the key's allowed addresses say; null without a key"
    )
    routes = TestedRouteShape(many=True)
    others = serializers.IntegerField(help_text="routes of the tenant that are not in your sight")
    others_percent = serializers.FloatField()
