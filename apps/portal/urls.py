"""Addresses of the portal; all others are the API's, the agents' and the console's."""

from django.urls import path

from apps.portal.views import audit, keys, playground, services, sessions, usage

app_name = "portal"

urlpatterns = [
    path("", services.home, name="home"),
    path("sign-in/", sessions.sign_in, name="sign_in"),
    path("sign-out/", sessions.sign_out, name="sign_out"),
    path("services/", services.service_list, name="services"),
    path("services/new/", services.create, name="service_create"),
    path("services/<str:group_id>/", services.detail, name="service"),
    path("services/<str:group_id>/stop/", services.stop, name="service_stop"),
    path("services/<str:group_id>/start/", services.start, name="service_start"),
    path("services/<str:group_id>/delete/", services.delete, name="service_delete"),
    path("keys/", keys.key_list, name="keys"),
    path("keys/<str:key_id>/rotate/", keys.rotate, name="key_rotate"),
    path("keys/<str:key_id>/revoke/", keys.revoke, name="key_revoke"),
    path("audit/", audit.trail_list, name="audit"),
    path("usage/", usage.today, name="usage"),
    path("playground/", playground.playground, name="playground"),
    path("playground/key/", playground.issue_key, name="playground_key"),
]
