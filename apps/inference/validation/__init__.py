"""Field-by-field checks of a creation request: pure, one concern a module, all errors at once.

Never reads a row: what depends on others (a taken name, a quota, the tenant) is decided by services.
"""

from apps.inference.validation.service import validate_create
from apps.inference.validation.spec import ServiceSpec, WorkerSpec

__all__ = ["ServiceSpec", "WorkerSpec", "validate_create"]
