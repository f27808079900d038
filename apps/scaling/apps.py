from django.apps import AppConfig


class ScalingConfig(AppConfig):
    name = "apps.scaling"
    label = "scaling"
