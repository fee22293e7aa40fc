"""Custom resources: what the models say, in the words that Kubernetes has for it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.support.structural import broken_rules, validator

from weft.backends.kubernetes.crds import (
    ANYTHING,
    INT_OR_STRING,
    KINDS,
    Kind,
    Unsayable,
    crd,
    root_schema,
    structural,
)
from weft.jobtypes.complete import read_job

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
KIND = {kind.name: kind for kind in KINDS}
EXAMPLES = sorted(ROOT.glob("examples/*/job.yaml"))
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@cache
def judge(kind: str) -> Any:
    return validator(root_schema(KIND[kind]))


def accepts(kind: str, document: dict[str, Any]) -> list[str]:
    """What is wrong with a document; of its metadata Kubernetes looks at the name alone."""
    name = {key: value for key, value in document.get("metadata", {}).items() if key == "name"}
    return [str(error) for error in judge(kind).iter_errors({**document, "metadata": name})]


def job(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "weft.dev/v1", "kind": "TrainingJob", "metadata": {"name": "x"}, "spec": spec}


class TestTheFiles:
    def test_they_are_what_the_script_writes(self) -> None:
        from crds import TARGET, files

        written = {path.name: path.read_text() for path in TARGET.glob("*.weft.dev.yaml")}
        assert written == files(), "the models changed: python scripts/crds.py"

    @every_kind
    def test_the_schema_is_structural(self, kind: Kind) -> None:
        assert list(broken_rules(root_schema(kind))) == []

    @every_kind
    def test_every_field_of_the_model_is_there(self, kind: Kind) -> None:
        whole = kind.model.model_json_schema(by_alias=True)
        fields = set(_fields(whole["properties"]["spec"], whole["$defs"]))
        assert fields == set(_structural_fields(root_schema(kind)["properties"]["spec"]))
        assert len(fields) > 4

    @every_kind
    def test_every_pattern_is_one_that_go_understands(self, kind: Kind) -> None:
        patterns = set(re.findall(r'"pattern": "((?:[^"\\]|\\.)*)"', json.dumps(crd(kind))))
        for pattern in map(json.loads, (f'"{found}"' for found in patterns)):
            assert not re.search(r"\(\?[=!<P]|\\[1-9ZuU]", pattern), pattern
            assert all(int(most) <= 1000 for most in re.findall(r"\{\d*,?(\d+)\}", pattern)), pattern

    @every_kind
    def test_columns_show_fields_that_exist(self, kind: Kind) -> None:
        schema = root_schema(kind)
        for column in kind.columns:
            here = schema
            for part in column.path.removeprefix(".").split("."):
                if part == "metadata":
                    break
                here = here["properties"][part]

    def test_of_metadata_only_the_name_is_judged(self) -> None:
        assert set(root_schema(KIND["TrainingJob"])["properties"]["metadata"]["properties"]) == {"name"}

    def test_jobs_have_a_namespace_and_what_they_share_has_none(self) -> None:
        scopes = {kind.name: crd(kind)["spec"]["scope"] for kind in KINDS}
        assert scopes == {
            "TrainingJob": "Namespaced",
            "JobType": "Cluster",
            "Queue": "Cluster",
            "Size": "Cluster",
        }

    @every_kind
    def test_nothing_is_filled_in(self, kind: Kind) -> None:
        """A field that is left out is the job type's to fill."""
        assert '"default":' not in json.dumps(crd(kind))


class TestWhatIsAccepted:
    @pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
    def test_the_examples(self, path: Path) -> None:
        assert accepts("TrainingJob", yaml.safe_load(path.read_text())) == []

    @pytest.mark.parametrize(
        "path", sorted(ROOT.glob("src/weft/jobtypes/*.yaml")), ids=lambda path: path.stem
    )
    def test_the_job_types(self, path: Path) -> None:
        assert accepts("JobType", yaml.safe_load(path.read_text())) == []

    @pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
    def test_what_weft_makes_of_the_examples(self, path: Path) -> None:
        document = yaml.safe_load(path.read_text())
        document["spec"]["code"] = {"package": "sha256:" + "0" * 64}  # as the client sends it
        made = read_job(document, path.name)
        assert (
            accepts("TrainingJob", json.loads(made.model_dump_json(by_alias=True, exclude_none=True))) == []
        )

    @every_kind
    @given(data=st.data())
    @settings(
        max_examples=30,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        deadline=None,
    )
    def test_all_that_the_model_accepts(self, kind: Kind, data: st.DataObject) -> None:
        whole = kind.model.model_json_schema(by_alias=True)
        spec = data.draw(_made(whole["properties"]["spec"], whole["$defs"]))
        document = {"apiVersion": "weft.dev/v1", "kind": kind.name, "metadata": {"name": "x"}, "spec": spec}
        try:
            parsed = kind.model.model_validate(document)
        except ValidationError:
            assume(False)
        assert accepts(kind.name, document) == []
        assert accepts(kind.name, json.loads(parsed.model_dump_json(by_alias=True, exclude_none=True))) == []


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        "spec",
        [{"comand": ["x"]}, {"command": "x"}, {"priority": "hih"}, {"priority": 1.5}, {"priority": 10**7},
         {"grace": "soon"}, {"grace": True}, {"grace": {}}, {"grace": []}, {"grace": {"a": 1}}, {"grace": ["1s"]},
         {"env": {"A": True}}, {"roles": {"w": {"replicas": "many"}}}, {"roles": {"w": {"replicas": 0}}},
         {"roles": {"w": {"replica": 1}}}, {"roles": {"w": {"resources": {"gpu": 1.5}}}},
         {"roles": {"w": {"resources": {"gpu": -1}}}}, {"roles": {"w": {"resources": {"memory": "512MB"}}}},
         {"success": "most"}, {"metrics": [{"names": ["a"]}]}],
        ids=str,
    )  # fmt: skip
    def test_what_the_model_refuses_by_its_fields(self, spec: dict[str, Any]) -> None:
        assert accepts("TrainingJob", job(**spec))
        with pytest.raises(ValidationError):
            KIND["TrainingJob"].model.model_validate(job(**spec))

    def test_a_job_without_a_spec(self) -> None:
        assert accepts("TrainingJob", {"metadata": {"name": "x"}})

    @pytest.mark.parametrize("name", ["a" * 64, "my.job", "Job"])
    def test_a_name_that_weft_would_not_take(self, name: str) -> None:
        assert accepts("TrainingJob", {**job(), "metadata": {"name": name}})


class TestTheConversion:
    def test_a_reference_is_written_out_and_keeps_its_own_description(self) -> None:
        defs = {"A": {"type": "string", "description": "any"}}
        assert structural({"$ref": "#/$defs/A", "description": "mine"}, defs) == {
            "description": "mine",
            "type": "string",
        }

    def test_a_reference_that_comes_around_is_left_open(self) -> None:
        defs = {"Tree": {"type": "object", "properties": {"below": {"$ref": "#/$defs/Tree"}}}}
        below = structural({"$ref": "#/$defs/Tree"}, defs)["properties"]["below"]
        assert below == {"type": "object", ANYTHING: True}

    def test_optional_is_the_thing_itself(self) -> None:
        schema = {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}
        assert structural(schema, {}) == {"type": "integer"}

    def test_a_short_default_is_told_and_not_set(self) -> None:
        told = structural({"type": "boolean", "default": False, "description": "On."}, {})
        assert told == {"description": "On. Left out: false.", "type": "boolean"}

    def test_a_whole_number_or_a_word(self) -> None:
        schema = {"anyOf": [{"type": "integer", "minimum": 0}, {"enum": ["a.b", "c"]}]}
        assert structural(schema, {}) == {INT_OR_STRING: True, "minimum": 0, "pattern": r"^(a\.b|c)$"}

    def test_names_that_are_free_lose_their_spelling(self) -> None:
        schema = {"type": "object", "patternProperties": {"^a": {"type": "string"}}}
        assert structural(schema, {}) == {"type": "object", "additionalProperties": {"type": "string"}}

    def test_a_limit_that_is_not_reached(self) -> None:
        said = structural({"type": "number", "exclusiveMinimum": 0}, {})
        assert said == {"type": "number", "minimum": 0, "exclusiveMinimum": True}

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "string", "contentEncoding": "base64"},
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
            {"allOf": [{"type": "string"}, {"minLength": 1}]},
            {"type": "object", "patternProperties": {"a": {"type": "string"}, "b": {"type": "integer"}}},
            {},
        ],
        ids=str,
    )
    def test_what_cannot_be_said_is_an_error(self, schema: dict[str, Any]) -> None:
        with pytest.raises(Unsayable):
            structural(schema, {})


def _fields(schema: dict[str, Any], defs: dict[str, Any], place: str = "") -> Iterator[str]:
    """The places of all fields below a JSON Schema."""
    if "$ref" in schema:
        schema = defs[schema["$ref"].removeprefix("#/$defs/")]
    for way in schema.get("anyOf", ()):
        yield from _fields(way, defs, place)
    for name, part in schema.get("properties", {}).items():
        yield f"{place}.{name}"
        yield from _fields(part, defs, f"{place}.{name}")
    for part in [
        *schema.get("patternProperties", {}).values(),
        *([schema["items"]] if "items" in schema else []),
    ]:
        yield from _fields(part, defs, f"{place}[]")


def _structural_fields(schema: dict[str, Any], place: str = "") -> Iterator[str]:
    for name, part in schema.get("properties", {}).items():
        yield f"{place}.{name}"
        yield from _structural_fields(part, f"{place}.{name}")
    for word in schema.keys() & {"items", "additionalProperties"}:
        yield from _structural_fields(schema[word], f"{place}[]")


CODE = st.sampled_from(
    [{"path": "."}, {"package": "sha256:" + "0" * 64}, {"git": "https://x/y", "commit": "0123456"}]
)
METRIC = st.sampled_from(
    [
        {"source": "log"},
        {"source": "regex", "pattern": "(?P<loss>.)"},
        {"source": "file", "path": "a", "group": "b"},
    ]
)
WHOLE = {"Code": CODE, "Metric": METRIC}
"""Parts with rules among their fields, which a schema does not know."""
LETTERS = st.characters(codec="utf-8", exclude_characters="\0")


def _made(schema: dict[str, Any], defs: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of a JSON Schema, as far as the models use it. Nothing is null: it is left out instead."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return WHOLE[name] if name in WHOLE else _made(defs[name], defs)
    if "examples" in schema:
        return st.sampled_from(schema["examples"])
    if "anyOf" in schema:
        return st.one_of([_made(way, defs) for way in schema["anyOf"] if way != {"type": "null"}])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "string" if "pattern" in schema:
            return st.from_regex(schema["pattern"].replace("$", r"\Z"), alphabet=LETTERS)
        case "string":
            return st.text("ab./-_é ", min_size=schema.get("minLength", 0), max_size=8)
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(schema.get("minimum"), schema.get("maximum"))
        case "number":
            return st.integers(1, 999).map(lambda milli: milli / 1000) | st.integers(1, 100)
        case "array":
            return st.lists(_made(schema["items"], defs), min_size=schema.get("minItems", 0), max_size=3)
        case "object" if "properties" in schema:
            required = schema.get("required", ())
            parts = {name: _made(part, defs) for name, part in schema["properties"].items()}
            return st.fixed_dictionaries(
                {name: part for name, part in parts.items() if name in required},
                optional={name: part for name, part in parts.items() if name not in required},
            )
        case "object" if "patternProperties" not in schema:
            return st.just({})  # a part of a pod: Kubernetes' own business
        case "object":
            [(pattern, value)] = schema["patternProperties"].items()
            names = st.from_regex(pattern.replace("$", r"\Z"), alphabet=LETTERS)
            return st.dictionaries(names, _made(value, defs), max_size=2)
        case other:
            raise AssertionError(other)
