"""Image references: name:tag or name@sha256:digest (SVC-08). Owns the rule; never pulls or resolves one."""

import re

from apps.core.bodies import Fields

# The first part is a registry only where it holds a dot or a port, or is localhost.
_HOST = r"(?=localhost[:/]|[^/]*[.:])[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}|@sha256:[0-9a-f]{{64}})",
)
IMAGE_LIMIT = 300


def is_image(text: str) -> bool:
    """Whether a text is name:tag or name@sha256:digest, with or without a registry in front."""
    return _IMAGE.fullmatch(text) is not None


def read_image(fields: Fields) -> str:
    image = fields.text("image", limit=IMAGE_LIMIT, required=True)
    if image and not is_image(image):
        fields.refuse("image", "bad_image", image)
    return image
