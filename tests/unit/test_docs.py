"""What the documentation says of commands and fields is all that there is, and as it is."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from weft.model.job import TrainingJob

ROOT = Path(__file__).parents[2]


def commands_script() -> Any:
    place = importlib.util.spec_from_file_location("commands", ROOT / "scripts" / "commands.py")
    assert place is not None
    assert place.loader is not None
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


def test_the_reference_of_commands_is_current() -> None:
    written = (ROOT / "docs" / "commands.md").read_text()
    assert written == commands_script().reference(), "repeat: python scripts/commands.py"


def test_every_argument_of_every_command_is_explained() -> None:
    rows = re.findall(r"^\| `(.+)` \| (.*) \|$", (ROOT / "docs" / "commands.md").read_text(), re.MULTILINE)
    assert len(rows) > 60
    assert [name for name, text in rows if not text] == []


def fields(schema: dict[str, Any], parts: dict[str, Any], path: str = "") -> Iterator[str]:
    """The place of every field, as people write it: `roles.NAME.env`, `metrics[].source`."""
    for option in [schema, *schema.get("anyOf", ())]:
        if reference := option.get("$ref"):
            yield from fields(parts[reference.rpartition("/")[2]], parts, path)
        for name, inside in option.get("properties", {}).items():
            place = f"{path}.{name}".lstrip(".")
            yield place
            yield from fields(inside, parts, place)
        if isinstance(items := option.get("items"), dict):
            yield from fields(items, parts, f"{path}[]")
        values = [option.get("additionalProperties"), *option.get("patternProperties", {}).values()]
        for value in values:
            if isinstance(value, dict):
                yield from fields(value, parts, f"{path}.NAME")


def test_every_field_of_the_job_file_is_explained_and_no_other() -> None:
    schema = TrainingJob.model_json_schema(by_alias=True)
    there = {field.removeprefix("spec.") for field in fields(schema, schema["$defs"])} - {"spec", "metadata"}
    there = {field for field in there if not field.startswith("roles.NAME.restart.")}  # as `restart`
    assert {"roles.NAME.resources.gpuType", "metrics[].source", "secrets[].env", "code.git"} <= there
    table = re.findall(r"^\| (`.+?) \|", (ROOT / "docs" / "job-file.md").read_text(), re.MULTILINE)
    explained = {name for row in table for name in re.findall(r"`([^`]+)`", row)}
    variables = {name for name in explained if name.isupper()}
    assert explained - variables == there
