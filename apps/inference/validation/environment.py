"""Environment, labels, volumes, command and pull credentials of a task."""

import re
from pathlib import PurePosixPath

from apps.core.bodies import Fields

ENV_LIMIT = 128
ENV_VALUE_LIMIT = 8192
LABELS_LIMIT = 64
VOLUMES_LIMIT = 32
COMMAND_LIMIT = 256
ARGUMENT_LIMIT = 8192
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,98}[A-Za-z0-9])?")


def read_env(fields: Fields) -> dict[str, str]:
    """NAME -> text. Values may be secrets, so none is ever echoed."""
    return _read_map(fields, "env", ENV_LIMIT, ENV_VALUE_LIMIT, _VARIABLE, lines=True)


def read_labels(fields: Fields) -> dict[str, str]:
    return _read_map(fields, "labels", LABELS_LIMIT, 500, _LABEL, lines=False)


def _read_map(
    fields: Fields, name: str, limit: int, each: int, key_shape: re.Pattern[str], *, lines: bool
) -> dict[str, str]:
    section = fields.section(name, secret=True)
    if section is None:
        return {}
    if len(section.body) > limit:
        fields.refuse(name, "too_many", len(section.body), max=limit)
        return {}
    good: dict[str, str] = {}
    for key, value in section.body.items():
        if not key_shape.fullmatch(key):
            fields.refuse(name, "bad_key", key)
        elif section.takes(key[:100], value, limit=each, lines=lines):
            good[key] = value
    return good


def read_volumes(fields: Fields) -> list[str]:
    """host:container or host:container:ro, both absolute and without `..`; which folders a node
    allows is its own rule (AGENT-05)."""
    good = []
    for index, volume in enumerate(fields.texts("volumes", limit=VOLUMES_LIMIT, each=2000)):
        if _is_volume(volume):
            good.append(volume)
        else:
            fields.refuse(f"volumes[{index}]", "bad_volume", volume)
    return good


def _is_volume(text: str) -> bool:
    parts = text.split(":")
    if len(parts) == 3 and parts[2] in ("ro", "rw"):
        parts.pop()
    if len(parts) != 2:
        return False
    return all(PurePosixPath(p).is_absolute() and ".." not in PurePosixPath(p).parts for p in parts)


def read_command(fields: Fields) -> list[str]:
    return fields.texts("command", limit=COMMAND_LIMIT, each=ARGUMENT_LIMIT, lines=True)


def read_pull_credentials(fields: Fields) -> dict[str, str] | None:
    """{username, password, registry?}; write-only, never echoed (SVC-02)."""
    section = fields.section("pull_credentials", secret=True)
    if section is None:
        return None
    found = {
        "username": section.secret("username", limit=200),
        "password": section.secret("password", limit=4000),
    }
    registry = section.text("registry", limit=255)
    section.close()
    return {**found, "registry": registry} if registry else found
