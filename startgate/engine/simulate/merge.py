"""JSON merge patches (RFC 7396): how a later document changes an object, and how a what-if lies over its base.

Pure functions of plain values; what is given is never changed, and what is made shares parts with it.
"""

from collections.abc import Mapping
from typing import Any


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the patch over it: maps are merged, null takes a key away, all else replaces what was there."""
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            below = merged.get(key)
            merged[key] = merge(below if isinstance(below, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The patch that makes `new` of `old`."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            if inner := difference(before, value):
                patch[key] = inner
        elif before != value or key not in old:
            patch[key] = value
    return patch


def without_nulls(value: Any) -> Any:
    """The value as the API server takes it in: a key that is null counts as left out, at any depth."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [without_nulls(each) for each in value]
    return value
