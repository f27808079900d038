"""Websocket addresses of this app; asgi.py puts session sign-in and the origin check before them."""

from django.urls import path

from apps.streams.consumers import LogConsumer

websocket_urlpatterns = [path("ws/tasks/<str:task_id>/logs", LogConsumer.as_asgi())]
