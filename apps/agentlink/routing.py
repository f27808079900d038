"""Websocket addresses of this app; agents send no Origin and bring their own credential."""

from django.urls import path

from apps.agentlink.consumers import AgentConsumer

websocket_urlpatterns = [path("ws/agent", AgentConsumer.as_asgi())]
