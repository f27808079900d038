"""What memory a model needs on cards, as far as the catalog knows (SVC-09).

Owns the reckoning: weights, times a factor for KV cache and activations, and a fixed overhead on each card.
"Not known" is None, never zero.
"""

from django.conf import settings
from django.db.models import Max

from apps.catalog.models import CatalogModel

# Their models lie inside the image, so that no path tells a size (ENG-03).
NOT_ESTIMATED = frozenset({"trtllm"})


def estimate_mb(path: str, *, engine: str, cards: int) -> int | None:
    """MB on all `cards` together, by the size that operators registered for the path; None where none is,
    or nothing stands on cards. Where several models have the path, the largest counts."""
    if not path or not cards or engine in NOT_ESTIMATED:
        return None
    size_mb = CatalogModel.objects.filter(path=path).aggregate(size=Max("size_mb"))["size"]
    if size_mb is None:
        return None
    return round(size_mb * settings.MODEL_MEMORY_FACTOR) + cards * settings.MODEL_OVERHEAD_MB
