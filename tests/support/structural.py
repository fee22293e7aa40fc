"""Kubernetes' rules for the schemas of custom resources, and what such a schema lets through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs

ANYTHING = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
JUNCTORS = ("anyOf", "oneOf", "allOf")
WORDS = {
    "description", "type", "format", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "minProperties", "maxProperties",
    "required", "properties", "additionalProperties", "items", "not", *JUNCTORS, ANYTHING, INT_OR_STRING,
}  # fmt: skip
STRUCTURE = {"description", "type", "additionalProperties", ANYTHING, INT_OR_STRING}


def broken_rules(schema: dict[str, Any], place: str = "") -> Iterator[str]:
    """Why the API server would not take it, after `NonStructuralSchema` in its documentation."""
    if unknown := schema.keys() - WORDS:
        yield f"{place}: unknown {sorted(unknown)}"
    if "type" not in schema and not schema.get(ANYTHING) and not schema.get(INT_OR_STRING):
        yield f"{place}: no type"
    if "type" in schema and schema.get(INT_OR_STRING):
        yield f"{place}: a type beside int-or-string"
    if "properties" in schema and "additionalProperties" in schema:
        yield f"{place}: properties beside additionalProperties"
    if schema.get("type") == "array" and "items" not in schema:
        yield f"{place}: a list of nothing"
    for strict in ("exclusiveMinimum", "exclusiveMaximum"):
        if strict in schema and not isinstance(schema[strict], bool):
            yield f"{place}: {strict} is a number"
    for name, part in schema.get("properties", {}).items():
        yield from broken_rules(part, f"{place}.{name}")
    for word in ("items", "additionalProperties"):
        if word in schema:
            yield from broken_rules(schema[word], f"{place}.{word}")
    nested = [way for word in JUNCTORS for way in schema.get(word, ())] + [schema.get("not", {})]
    for way in nested:
        if wrong := way.keys() & STRUCTURE:
            yield f"{place}: {sorted(wrong)} inside a choice"


def validator(schema: dict[str, Any]) -> Any:
    """Judges as the API server does, and refuses unknown fields, as kubectl does before it."""
    return jsonschema_rs.Draft4Validator(_plain(schema))


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    said = dict(schema)
    if said.pop(INT_OR_STRING, False):
        said["type"] = ["integer", "string"]
    open_ended = said.pop(ANYTHING, False)
    if "properties" in said:
        said["properties"] = {name: _plain(part) for name, part in said["properties"].items()}
        said.setdefault("additionalProperties", bool(open_ended))
    for word in ("items", "additionalProperties"):
        if isinstance(said.get(word), dict):
            said[word] = _plain(said[word])
    return said
