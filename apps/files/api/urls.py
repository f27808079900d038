"""Addresses of this app below /api/v1."""

from django.urls import path

from apps.files.api import views

urlpatterns = [
    path("file-requests", views.FileRequests.as_view(), name="file-requests"),
    path("file-requests/<str:request_id>", views.OneFileRequest.as_view(), name="file-request"),
    path("file-requests/<str:request_id>/content", views.FileContent.as_view(), name="file-content"),
]
