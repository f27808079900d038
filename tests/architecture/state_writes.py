"""Finds writes of a state column in a syntax tree (LIFE-01): only apps/workloads/state.py may do one."""

import ast
import re

COLUMN = "state"
KEYWORD_WRITERS = {"update", "create", "get_or_create", "update_or_create", "aupdate", "acreate"}
LIST_WRITERS = {"bulk_update", "abulk_update", "bulk_create", "save", "asave"}
MODELS = {"Task", "TaskGroup"}
BIRTHS = MODELS | {"create"}
RAW = re.compile(r"\bupdate\b.+\bset\b.*\bstate\b\s*=", re.IGNORECASE | re.DOTALL)


def find(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, what) of each write."""
    return sorted((node.lineno, what) for node in ast.walk(tree) if (what := _write(node)))  # type: ignore[attr-defined]


def _write(node: ast.AST) -> str | None:
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(_is_state_attribute(part) for target in targets for part in ast.walk(target)):
            return "assignment to .state"
    if isinstance(node, ast.Call):
        return _call(node)
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and RAW.search(node.value):
        return "SQL that sets state"
    return None


def _is_state_attribute(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or node.attr != COLUMN or not isinstance(node.ctx, ast.Store):
        return False
    # `self.state` of a class that is no row; rows are written from outside.
    return not (isinstance(node.value, ast.Name) and node.value.id == "self")


def _call(node: ast.Call) -> str | None:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    if name in KEYWORD_WRITERS | MODELS and COLUMN in keywords:
        if name in BIRTHS and getattr(keywords[COLUMN], "attr", "") == "PENDING":
            return None  # born pending: no move
        return f"{name}(state=...)"
    if name in KEYWORD_WRITERS and any(
        _mentions(keywords.get(word)) for word in ("defaults", "create_defaults", None)
    ):
        return f"{name}(...) with state in a mapping"
    if name == "setattr" and len(node.args) > 1 and _is_word(node.args[1]):
        return "setattr(..., 'state', ...)"
    if name in LIST_WRITERS and any(_mentions(part) for part in [*node.args, *keywords.values()]):
        return f"{name}(...) that lists state"
    return None


def _mentions(node: ast.AST | None) -> bool:
    """Whether a list, tuple or mapping literal holds the column's name."""
    if isinstance(node, ast.Dict):
        return any(_is_word(key) for key in node.keys if key is not None)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return any(_is_word(part) for part in node.elts)
    return False


def _is_word(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == COLUMN
