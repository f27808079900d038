"""Any value in any field of a creation request is read or refused by field, without a row."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.core.errors import Invalid
from apps.inference.validation import validate_create
from tests.apps.inference.bodies import body
from tests.examples import examples

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
PATHS = ["name", "model_name", "parallelism", "world_size", "labels", "health_check", "scale_policy"]
PATHS += ["schedule_window", "task", "priority", "min_replicas", "task_type", "tenant", "zzz"]
PATHS += ["task.image", "task.ports", "task.env", "task.volumes", "task.command", "task.gpu_required"]
PATHS += ["task.pull_credentials", "task.kv_offload_gb", "task.engine", "task.model_path", "qos"]


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(PATHS), JSON, max_size=6))
def test_any_value_anywhere_is_either_fine_or_refused_by_field(changes: dict[str, Any]) -> None:
    # a whole section may be replaced by nonsense; then there is no place for its fields
    whole = {name for name in changes if "." not in name}
    kept = {p: v for p, v in changes.items() if "." not in p or p.split(".")[0] not in whole}
    try:
        validate_create(body(**kept), is_operator=False)
    except Invalid as refused:
        assert refused.errors
        assert all(error.field and error.code for error in refused.errors)
