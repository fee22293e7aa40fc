"""Job files: YAML or JSON, one or several documents each, read strictly and blamed precisely.

A duplicate key is refused with its line, because YAML would keep one of the two in silence. Timestamps
stay text, because a job has none.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from weft.client.errors import BadDocument

SUFFIXES = (".yaml", ".yml", ".json")
STANDARD_INPUT = ("-", "/dev/stdin")


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file."""

    value: dict[str, Any]
    source: str
    """The file as the person named it, with the line where it has several documents."""
    folder: Path
    """What relative paths in it are relative to."""
    file: str = ""
    """The file alone."""
    text: str = field(default="", repr=False)
    """All of the file, to find the lines of what is refused; empty where there is none."""
    number: int = 0
    """Which document of the file it is, from 0; those that are empty count, too."""
    written: dict[str, Any] = field(default_factory=dict, repr=False)
    """What the file says; `value` may have been changed by options."""

    @property
    def name(self) -> str | None:
        metadata = self.value.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        return str(name) if name is not None else None


def find_files(paths: Sequence[str]) -> list[str]:
    """The job files meant by these paths: folders are searched for YAML and JSON, `-` is standard input."""
    found: list[str] = []
    for path in paths:
        if path not in STANDARD_INPUT and Path(path).is_dir():
            inside = sorted(str(p) for p in Path(path).rglob("*") if p.suffix in SUFFIXES and p.is_file())
            if not inside:
                raise BadDocument(path, f"no {', '.join('*' + s for s in SUFFIXES)} in this folder")
            found += inside
        else:
            found.append(path)
    return found


def load_documents(path: str) -> list[Document]:
    """All documents of a file, at least one."""
    text, source, folder = _read(path)
    values = list(_parse(text, source, json_file=source.endswith(".json")))
    if not values:
        raise BadDocument(source, "there is no document in it")
    documents = []
    for number, line, value in values:
        where = source if len(values) == 1 else f"{source}:{line}"
        if not isinstance(value, dict):
            raise BadDocument(
                where, f"a document is a mapping of fields (apiVersion, kind, ...), not {_kind(value)}"
            )
        documents.append(Document(value, where, folder, source, text, number, value))
    return documents


def node_of(document: Document) -> Any:
    """The document as YAML nodes, which know their lines; None where its file cannot be read so."""
    import yaml

    text = document.text
    if document.file.endswith(".json"):
        # What JSON has and YAML has not, at the same length: tabs between its parts, and characters in two halves.
        text = re.sub(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}", "______", text.replace("\t", " "))
    loader = _loader_class()(text)
    try:
        node = None
        for _ in range(document.number + 1):
            node = loader.get_node() if loader.check_node() else None
        return node
    except (yaml.YAMLError, RecursionError):
        return None
    finally:
        loader.dispose()


def _read(path: str) -> tuple[str, str, Path]:
    if path in STANDARD_INPUT:
        return sys.stdin.read(), "standard input", Path.cwd()
    file = Path(path).expanduser()
    try:
        return file.read_text("utf-8"), path, file.absolute().parent
    except UnicodeDecodeError:
        raise BadDocument(path, "not a text file (UTF-8)") from None
    except OSError as problem:
        raise BadDocument(path, (problem.strerror or str(problem)).lower()) from None


def _parse(text: str, source: str, json_file: bool) -> Iterator[tuple[int, int, Any]]:
    """Number, first line and value of each document."""
    if json_file:
        try:
            yield 0, 1, json.loads(text, object_pairs_hook=_unique_pairs)
        except json.JSONDecodeError as problem:
            place = f"{source}:{problem.lineno}:{problem.colno}"
            raise BadDocument(place, f"not JSON: {problem.msg}") from None
        except ValueError as problem:
            raise BadDocument(source, str(problem)) from None
        return
    import yaml

    loader = _loader_class()(text)
    try:
        for number in count():
            if not loader.check_node():
                break
            node = loader.get_node()
            _check_keys(node)
            value = loader.construct_document(node)
            if value is not None:
                yield number, node.start_mark.line + 1, value
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        context = f" ({problem.context})" if problem.context and problem.problem else ""
        raise BadDocument(place, f"{problem.problem or problem.context}{context}") from None
    except yaml.YAMLError as problem:
        raise BadDocument(source, f"not YAML: {problem}") from None
    except RecursionError:
        raise BadDocument(source, "nested too deeply") from None
    finally:
        loader.dispose()


def _loader_class() -> Any:
    """A safe loader, libyaml's where it is built in, for which a date is text."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    resolvers = {
        first: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:timestamp"]
        for first, known in base.yaml_implicit_resolvers.items()
    }
    return type("Loader", (base,), {"yaml_implicit_resolvers": resolvers})


def _check_keys(root: Any) -> None:
    """Refuse duplicate keys, looking at the nodes before merge keys (`<<`) are worked in."""
    import yaml

    left, known = [root], set()
    while left:
        node = left.pop()
        if id(node) in known:
            continue
        known.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            left += node.value
        elif isinstance(node, yaml.MappingNode):
            lines: dict[str, int] = {}
            for key, value in node.value:
                left.append(value)
                if not isinstance(key, yaml.ScalarNode):
                    continue
                if key.value in lines:
                    twice = f"the key {key.value!r} is given twice (first on line {lines[key.value]})"
                    raise yaml.constructor.ConstructorError(None, None, twice, key.start_mark)
                lines[key.value] = key.start_mark.line + 1


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is given twice")
        found[key] = value
    return found


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"{value!r}" if len(repr(value)) < 60 else "text"
