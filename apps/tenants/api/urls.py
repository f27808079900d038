"""Addresses of this app below /api/v1."""

from django.urls import URLPattern, path

from apps.tenants.api import audit, keys, people, sign_in, tenants

urlpatterns: list[URLPattern] = [
    path("auth/token", sign_in.Token.as_view(), name="token"),
    path("auth/token/refresh", sign_in.TokenRefresh.as_view(), name="token-refresh"),
    path("auth/session", sign_in.Session.as_view(), name="session"),
    path("auth/session/end", sign_in.SessionEnd.as_view(), name="session-end"),
    path("audit", audit.AuditList.as_view(), name="audit"),
    path("auth/invitation", people.InvitationTaking.as_view(), name="invitation-taking"),
    path("auth/password-reset", people.ResetTaking.as_view(), name="reset-taking"),
    path("me", people.Account.as_view(), name="me"),
    path("me/password", people.OwnPassword.as_view(), name="own-password"),
    path("sessions", people.SessionList.as_view(), name="sessions"),
    path("sessions/end-others", people.OtherSessionsEnd.as_view(), name="other-sessions-end"),
    path("sessions/<str:session_id>", people.SessionDetail.as_view(), name="signed-in"),
    path("users/<str:user_id>/password-reset", people.ResetOffer.as_view(), name="reset-offer"),
    path("tenants/<str:tenant_id>/invitations", people.InvitationList.as_view(), name="invitations"),
    path(
        "tenants/<str:tenant_id>/invitations/<str:link_id>",
        people.InvitationDetail.as_view(),
        name="invitation",
    ),
    path("tenants", tenants.TenantList.as_view(), name="tenants"),
    path("tenants/<str:tenant_id>", tenants.TenantDetail.as_view(), name="tenant"),
    path("tenants/<str:tenant_id>/members", tenants.MemberList.as_view(), name="members"),
    path("tenants/<str:tenant_id>/members/<str:user_id>", tenants.MemberDetail.as_view(), name="member"),
    path("api-keys", keys.KeyList.as_view(), name="keys"),
    path("api-keys/<str:key_id>", keys.KeyDetail.as_view(), name="key"),
    path("api-keys/<str:key_id>/rotate", keys.KeyRotation.as_view(), name="key-rotation"),
]
