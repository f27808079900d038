"""Addresses of the portal; all others are the API's, the agents' and the console's."""

from django.urls import path

from apps.portal.views import account, audit, keys, links, members, playground, services, sessions, usage

app_name = "portal"

urlpatterns = [
    path("", services.home, name="home"),
    path("sign-in/", sessions.sign_in, name="sign_in"),
    path("sign-out/", sessions.sign_out, name="sign_out"),
    path("services/", services.service_list, name="services"),
    path("services/new/", services.create, name="service_create"),
    path("services/<str:group_id>/", services.detail, name="service"),
    path("services/<str:group_id>/stop/", services.stop, name="service_stop"),
    path("services/<str:group_id>/sleep/", services.sleep, name="service_sleep"),
    path("services/<str:group_id>/wake/", services.wake, name="service_wake"),
    path("services/<str:group_id>/scale/", services.scale, name="service_scale"),
    path("services/<str:group_id>/start/", services.start, name="service_start"),
    path("services/<str:group_id>/delete/", services.delete, name="service_delete"),
    path("keys/", keys.key_list, name="keys"),
    path("keys/<str:key_id>/", keys.change, name="key"),
    path("keys/<str:key_id>/rotate/", keys.rotate, name="key_rotate"),
    path("keys/<str:key_id>/revoke/", keys.revoke, name="key_revoke"),
    path("account/", account.account, name="account"),
    path("account/profile/", account.save_profile, name="save_profile"),
    path("account/password/", account.change_password, name="change_password"),
    path("account/sessions/end-others/", account.end_others, name="end_others"),
    path("account/sessions/<str:session_id>/end/", account.end_session, name="end_session"),
    path("members/", members.member_list, name="members"),
    path("members/<str:user_id>/role/", members.change_role, name="member_role"),
    path("members/<str:user_id>/remove/", members.remove, name="member_remove"),
    path("members/<str:user_id>/new-password/", members.offer_reset, name="member_reset"),
    path("invitations/<str:link_id>/withdraw/", members.withdraw, name="invitation_withdraw"),
    path("join/", links.join, name="join"),
    path("new-password/", links.new_password, name="new_password"),
    path("audit/", audit.trail_list, name="audit"),
    path("usage/", usage.usage, name="usage"),
    path("playground/", playground.playground, name="playground"),
    path("playground/key/", playground.issue_key, name="playground_key"),
]
