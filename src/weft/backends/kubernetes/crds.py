"""The models as Kubernetes knows them: CustomResourceDefinitions with structural schemas.

A structural schema says less than JSON Schema: no references, one type a field, and what is not listed is
taken away instead of refused. `structural` says all that can be said; a word it does not know is an error, so
that nothing of a model is lost unseen.

Two things are left out on purpose. Defaults: a field that is left out may be the job type's to fill, and the
API server would fill it first. And `null`: in Kubernetes a field is left out instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from weft.model.job import TrainingJob
from weft.model.jobtype import JobType
from weft.model.queue import Queue
from weft.model.resource import API_VERSION, NAME_PATTERN
from weft.model.sizes import Size

GROUP, VERSION = API_VERSION.split("/")
ANYTHING = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"

Schema = dict[str, Any]

_SAID = frozenset(
    {"description", "type", "format", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum", "multipleOf",
     "minItems", "maxItems", "minProperties", "maxProperties", "required"}
)  # fmt: skip
_UNSAID = frozenset({"title", "default", "examples", "uniqueItems"})
_TURNED = frozenset(
    {"properties", "items", "additionalProperties", "patternProperties", "propertyNames", "const",
     "exclusiveMinimum", "exclusiveMaximum"}
)  # fmt: skip
_NOT_A_SCALAR = {"minProperties": 1, "maxProperties": 0, "minItems": 1, "maxItems": 0}
"""No mapping and no list is of that size; text and numbers have none."""


class Unsayable(ValueError):
    """A part of a JSON Schema that has no structural form."""


@dataclass(frozen=True, slots=True)
class Column:
    """What `kubectl get` prints of a field; `wide` only with `-o wide`."""

    name: str
    path: str
    kind: str = "string"
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource of Weft, and how Kubernetes shows it."""

    model: type[BaseModel]
    about: str
    plural: str
    short: str
    columns: tuple[Column, ...]
    namespaced: bool = False
    status: Mapping[str, Schema] | None = None

    @property
    def name(self) -> str:
        return self.model.__name__

    @property
    def full_name(self) -> str:
        return f"{self.plural}.{GROUP}"


_STATE = Column("State", ".status.state")
_AGE = Column("Age", ".metadata.creationTimestamp", "date")
_MOMENT: Schema = {"type": "string", "format": "date-time"}
_COUNT: Schema = {"type": "integer"}
_DECLARED: Mapping[str, Schema] = {
    "state": {"type": "string", "description": "ACCEPTED, or REFUSED: then Weft goes on with what it had."},
    "reason": {"type": "string", "description": "Why it is refused."},
    "observedGeneration": _COUNT,
}

KINDS = (
    Kind(
        TrainingJob,
        "A job: what runs, in how many tasks of which roles, and with what.",
        "trainingjobs",
        "tj",
        (
            Column("State", ".status.state"),
            Column("Tasks", ".status.tasks"),
            Column("Queue", ".spec.queue"),
            Column("Priority", ".spec.priority"),
            Column("Reason", ".status.reason"),
            _AGE,
            Column("Type", ".spec.type", wide=True),
            Column("Restarts", ".status.restarts", "integer", wide=True),
        ),
        namespaced=True,
        status={
            "state": {"type": "string", "description": "Where the job is on its way: QUEUED, PROCESSING, COMPLETED, …"},
            "reason": {"type": "string", "description": "A sentence on the state, where there is something to say."},
            "reasonCode": {"type": "string", "description": "The same for programs, where something is wrong: NODE_LOST, …"},
            "desire": {"type": "string", "description": "What a person last asked of the job: run, halt, cancel."},
            "queued": _MOMENT,
            "started": _MOMENT,
            "finished": _MOMENT,
            "restarts": _COUNT,
            "preemptions": _COUNT,
            "tasks": {"type": "string", "description": "How many of its tasks run or are done, of how many: 2/4."},
            "failure": {
                "type": "object",
                "properties": {
                    "code": {"type": "string"},
                    "message": {"type": "string"},
                    "task": {"type": "string"},
                },
            },
            "conditions": {
                "type": "array",
                "description": "Complete, Failed; SpecIgnored: the resource was changed after it was submitted.",
                "items": {
                    "type": "object",
                    "properties": {"type": {"type": "string"}, "status": {"type": "string"}},
                    "required": ["type", "status"],
                    ANYTHING: True,
                },
            },
            "observedGeneration": _COUNT,
            "job": {
                "type": "string",
                "description": "What Weft calls the job: as here, unless another namespace had one of this name first.",
            },
            "jobUid": {"type": "string", "description": "What Weft knows the job by."},
        },
    ),
    Kind(
        JobType,
        "What jobs of one kind have in common.",
        "jobtypes",
        "jt",
        (Column("Success", ".spec.success"), Column("Elastic", ".spec.elastic", "boolean"), _STATE, _AGE,
         Column("Description", ".spec.description", wide=True)),
        status=_DECLARED,
    ),
    Kind(
        Queue,
        "Who may have how much of the cluster.",
        "queues",
        "wq",
        (Column("Parent", ".spec.parent"), Column("Weight", ".spec.weight"), Column("GPUs", ".spec.guarantee.gpu"),
         Column("Limit", ".spec.limit.gpu"), Column("Closed", ".spec.closed", "boolean"), _STATE, _AGE),
        status=_DECLARED,
    ),
    Kind(
        Size,
        "CPU, memory and GPUs under one name.",
        "sizes",
        "sz",
        (Column("CPU", ".spec.cpu"), Column("Memory", ".spec.memory"), Column("GPUs", ".spec.gpu"),
         Column("GPU-Type", ".spec.gpuType"), Column("Per-GPU", ".spec.perGpu", "boolean"), _STATE, _AGE),
        status=_DECLARED,
    ),
)  # fmt: skip
"""Jobs belong to a namespace; what all of them share (types, queues, sizes) to the cluster."""


def crd(kind: Kind) -> dict[str, Any]:
    """The whole CustomResourceDefinition, ready to be written as YAML."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.full_name, "labels": {"app.kubernetes.io/name": "weft"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [kind.short],
                "categories": ["weft"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_column(column) for column in kind.columns],
                    "schema": {"openAPIV3Schema": root_schema(kind)},
                }
            ],
        },
    }


def root_schema(kind: Kind) -> Schema:
    """The schema of a resource. Its `metadata` is Kubernetes' own, so that of it only the name is judged: who
    owns a job, its uid and when it was made are not the same fields in Weft."""
    whole = kind.model.model_json_schema(by_alias=True, mode="validation")
    spec = structural(whole["properties"]["spec"], whole["$defs"])
    return {
        "description": kind.about,
        "type": "object",
        **({"required": ["spec"]} if "spec" in whole.get("required", ()) else {}),
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 63, "pattern": NAME_PATTERN}},
            },
            "spec": spec,
            "status": {
                "description": "Written by Weft.",
                "type": "object",
                **({"properties": dict(kind.status)} if kind.status else {}),
                ANYTHING: True,
            },
        },
    }


def _column(column: Column) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": column.name, "type": column.kind, "jsonPath": column.path}
    return shown | ({"priority": 1} if column.wide else {})


def structural(schema: Mapping[str, Any], defs: Mapping[str, Any], inside: tuple[str, ...] = ()) -> Schema:
    """The structural form of a JSON Schema. `inside` are the references being followed: one that comes
    around again is left open, since a structural schema has an end."""
    if "$ref" in schema:
        name = str(schema["$ref"]).removeprefix("#/$defs/")
        own = {key: value for key, value in schema.items() if key != "$ref"}
        if name in inside:
            return _with_description({"type": "object", ANYTHING: True}, own)
        return structural({**defs[name], **own}, defs, (*inside, name))
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            own = {key: value for key, value in schema.items() if key != word}
            ways = [way for way in schema[word] if way != {"type": "null"}]
            if len(ways) == 1:
                return structural({**ways[0], **own}, defs, inside)
            if word == "allOf":
                raise Unsayable(f"allOf of {len(ways)} schemas")
            return _with_description(_either([structural(way, defs, inside) for way in ways]), own)
    unknown = schema.keys() - _SAID - _UNSAID - _TURNED
    if unknown:
        raise Unsayable(f"{', '.join(sorted(unknown))} in {dict(schema)}")
    said: Schema = {key: value for key, value in schema.items() if key in _SAID}
    if "const" in schema:
        said["enum"] = [schema["const"]]
    if "type" not in said:
        said["type"] = _type_of(said.get("enum"))
    for word in ("minimum", "maximum"):
        strict = f"exclusive{word.capitalize()}"
        if strict in schema:
            said |= {word: schema[strict], strict: True}
    if said["type"] == "array":
        said["items"] = structural(schema["items"], defs, inside)
    elif said["type"] == "object":
        said |= _fields(schema, defs, inside)
    return _with_description(said, schema)


def _fields(schema: Mapping[str, Any], defs: Mapping[str, Any], inside: tuple[str, ...]) -> Schema:
    """What is in a mapping: fields by name, or values under names that are free. How these must be spelt
    cannot be said, so the control plane says it."""
    if "properties" in schema:
        return {
            "properties": {
                name: structural(part, defs, inside) for name, part in schema["properties"].items()
            }
        }
    values = list(schema.get("patternProperties", {}).values())
    more = schema.get("additionalProperties")
    if isinstance(more, Mapping):
        values.append(more)
    forms = [structural(value, defs, inside) for value in values]
    if any(form != forms[0] for form in forms):
        raise Unsayable(f"values of {len(forms)} kinds in one mapping")
    if forms:
        return {"additionalProperties": forms[0]}
    return {} if more is False else {ANYTHING: True}


def _either(ways: Sequence[Schema]) -> Schema:
    """One of several scalars. Limits hold for values of their own type only, so those of different types can
    stand side by side."""
    types = tuple(sorted({way["type"] for way in ways if "type" in way}))
    if len(ways) == 2 and types == ("integer", "number"):
        whole = {"multipleOf": 1}
        return {
            "type": "number",
            "anyOf": [(whole if way["type"] == "integer" else {}) | _limits(way) for way in ways],
        }
    if len(ways) == 2 and types in (("integer", "string"), ("number", "string")):
        both: Schema = {}
        for way in ways:
            both |= _as_pattern(way) if way["type"] == "string" else _limits(way)
        if types[0] == "integer":
            return {INT_OR_STRING: True, **both}
        # There is a word for a whole number or text, none for any number or text: anything, less the rest.
        return {ANYTHING: True, **both, **_NOT_A_SCALAR, "not": {"enum": [True, False]}}
    raise Unsayable(f"a choice among {', '.join(types)}")


def _limits(way: Schema) -> Schema:
    """Limits without the type, which only the field as a whole may have."""
    return {key: value for key, value in way.items() if key not in ("type", "description")}


def _as_pattern(way: Schema) -> Schema:
    """Text out of a list of words: a list would hold for numbers too."""
    if "enum" in way:
        return {"pattern": f"^({'|'.join(re.escape(word) for word in way['enum'])})$"}
    return _limits(way)


def _type_of(enum: Sequence[Any] | None) -> str:
    if enum and all(isinstance(value, str) for value in enum):
        return "string"
    raise Unsayable("a value of any type")


def _with_description(said: Schema, schema: Mapping[str, Any]) -> Schema:
    """The description first, with what a field is when it is left out, where that is short."""
    text = " ".join(str(schema.get("description", "")).split())
    default = schema.get("default")
    if isinstance(default, (str, int, float)) and default != "" and "default" not in text.lower():
        text = f"{text} Left out: {default if isinstance(default, str) else json.dumps(default)}.".strip()
    rest = {key: value for key, value in said.items() if key != "description"}
    return {"description": text, **rest} if text else rest
