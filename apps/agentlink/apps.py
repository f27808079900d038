from django.apps import AppConfig


class AgentlinkConfig(AppConfig):
    name = "apps.agentlink"
    label = "agentlink"
