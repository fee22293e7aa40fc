"""A refusal in the terms of a file: each field that was refused, at the line where it stands.

The server knows fields and no files. When it has refused one, and only then, the file is read once more, as
nodes that know their places.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from weft.client.documents import Document, node_of
from weft.client.errors import ApiError, BadDocument, describe_problem

Step = str | int
MERGED = "tag:yaml.org,2002:merge"


def refused(document: Document, error: ApiError) -> BadDocument:
    """The server's refusal of a document."""
    wrong = [(problem.get("field") or "", describe_problem(problem)) for problem in error.problems]
    return blamed(document, wrong or [("", error.detail or error.title)], error.next)


def blamed(document: Document, wrong: Sequence[tuple[str, str]], next: str | None = None) -> BadDocument:
    """What is wrong with a document: fields, and what to say of each."""
    lines = [(place_of(document, field), said) for field, said in wrong]
    next = next or f"weft schema {document.value.get('kind') or 'TrainingJob'}"
    if len(lines) == 1:
        place, said = lines[0]
        return BadDocument(place or "Not valid", said, next)
    listed = "".join(f"\n  {place}: {said}" if place else f"\n  {said}" for place, said in lines)
    return BadDocument(document.file or document.source or "Not valid", listed, next)


def place_of(document: Document, field: str) -> str:
    """`job.yaml:3:7` for a field, or for the nearest part around it that is there; without a line where it is not the
    file that says so, but an option."""
    if not document.text:
        return document.source
    steps = list(_steps(document.value, field))
    if _at(document.value, steps) != _at(document.written, steps):
        return document.file
    node = node_of(document)
    if node is None:
        return document.source
    mark = _mark(node, steps)
    return f"{document.file}:{mark.line + 1}:{mark.column + 1}"


def _steps(value: Any, field: str) -> Sequence[Step]:
    """The keys and numbers that lead to a field, as far as it is there. A key may have dots of its own, so all ways
    to read the field are tried, and the one that leads farthest is right."""
    ways = [(step, _steps(value[step], rest)) for step, rest in _first_steps(value, field)]
    return max(([step, *more] for step, more in ways), key=len, default=[])


def _first_steps(value: Any, field: str) -> Iterator[tuple[Any, str]]:
    if isinstance(value, list):
        number, bracket, rest = field.removeprefix("[").partition("]")
        if field.startswith("[") and bracket and number.isdecimal() and int(number) < len(value):
            yield int(number), rest.removeprefix(".")
    elif isinstance(value, dict):
        for key in value:
            name = key if isinstance(key, str) else json.dumps(key, default=str)
            rest = field.removeprefix(name)
            if field.startswith(name) and name and rest[:1] in ("", ".", "["):
                yield key, rest.removeprefix(".")


def _at(value: Any, steps: Sequence[Step]) -> Any:
    for step in steps:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _mark(node: Any, steps: Sequence[Step]) -> Any:
    """Where the last of these steps begins: a key, or an item of a list."""
    mark = node.start_mark
    for step in steps:
        found = _item(node, step) if isinstance(node.value, list) else None
        if found is None:
            break
        named, node = found
        mark = named.start_mark
    return mark


def _item(node: Any, step: Step) -> tuple[Any, Any] | None:
    """The node that names a part of another, and the part. What is merged in (`<<`) stands where it was written."""
    import yaml

    if isinstance(node, yaml.SequenceNode):
        part = node.value[step]
        return part, part
    merged: list[Any] = []
    for key, value in node.value:
        if key.tag == MERGED:
            merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
        elif isinstance(key, yaml.ScalarNode) and _key(key) == step:
            return key, value
    return next((found for part in merged if (found := _item(part, step)) is not None), None)


def _key(node: Any) -> Any:
    import yaml

    return node.value if node.tag == "tag:yaml.org,2002:str" else yaml.safe_load(node.value)
