"""A person's patch of a pod, merged: RFC 7386 for objects, and by name for lists of things that have one.

The standard alone would have a person who adds one variable write out every other one, and every container.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}
_REPLACED = frozenset(["env"])
"""A variable has a `value` or a `valueFrom`: merged, it could have both."""
_APPENDED = frozenset(["tolerations"])


def merged(document: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the patch over it; neither is changed. Done twice it is as done once."""
    result = dict(document)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            before = result.get(name)
            result[name] = merged(before if isinstance(before, dict) else {}, value)
        elif isinstance(value, list) and (name in _KEYS or name in _APPENDED):
            before = result.get(name)
            result[name] = _merged_list(name, before if isinstance(before, list) else [], value)
        else:
            result[name] = value
    return result


def _merged_list(name: str, items: list[Any], patch: list[Any]) -> list[Any]:
    result = list(items)
    key = _KEYS.get(name, "")
    for item in patch:
        own = merged({}, item) if isinstance(item, dict) else item  # without what it only removes
        named = isinstance(own, dict) and own.get(key) is not None
        place = next((n for n, old in enumerate(result) if named and _keyed(old, key, own[key])), None)
        if place is None:
            result += [own] if named or own not in result else []
        elif name in _REPLACED:
            result[place] = own
        else:
            result[place] = merged(result[place], item)
    return result


def _keyed(item: Any, key: str, value: Any) -> bool:
    return isinstance(item, dict) and key in item and item[key] == value
