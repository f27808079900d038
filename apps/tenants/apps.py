from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "apps.tenants"
    label = "tenants"

    def ready(self) -> None:
        from apps.tenants.api import openapi  # noqa: F401 - the schema finds it by being imported
