"""Addresses of this app below /api/v1."""

from django.urls import URLPattern, path

from apps.tenants.api import audit, keys, sign_in, tenants

urlpatterns: list[URLPattern] = [
    path("auth/token", sign_in.Token.as_view(), name="token"),
    path("auth/token/refresh", sign_in.TokenRefresh.as_view(), name="token-refresh"),
    path("auth/session", sign_in.Session.as_view(), name="session"),
    path("auth/session/end", sign_in.SessionEnd.as_view(), name="session-end"),
    path("audit", audit.AuditList.as_view(), name="audit"),
    path("me", sign_in.Me.as_view(), name="me"),
    path("tenants", tenants.TenantList.as_view(), name="tenants"),
    path("tenants/<str:tenant_id>", tenants.TenantDetail.as_view(), name="tenant"),
    path("tenants/<str:tenant_id>/members", tenants.MemberList.as_view(), name="members"),
    path("tenants/<str:tenant_id>/members/<str:user_id>", tenants.MemberDetail.as_view(), name="member"),
    path("api-keys", keys.KeyList.as_view(), name="keys"),
    path("api-keys/<str:key_id>", keys.KeyDetail.as_view(), name="key"),
    path("api-keys/<str:key_id>/rotate", keys.KeyRotation.as_view(), name="key-rotation"),
]
