"""A real API server takes the objects that jobs become, and drops nothing of them. Nothing is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

GOLDEN = sorted((Path(__file__).parents[1] / "unit" / "golden" / "kubernetes").glob("*.yaml"))


def taken(kubectl: Any, file: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each object as it was sent and as the server would have kept it."""
    sent = list(yaml.safe_load_all(file.read_text()))
    for thing in sent:
        del thing["metadata"]["namespace"]  # the test's own instead
    everything = {"apiVersion": "v1", "kind": "List", "items": sent}
    told = kubectl("create", "--dry-run=server", "--validate=true", "-o", "json", "-f", "-", told=everything)
    return list(zip(sent, one_after_another(told), strict=True))


def one_after_another(text: str) -> Iterator[dict[str, Any]]:
    while text := text.lstrip():
        document, end = json.JSONDecoder().raw_decode(text)
        yield document
        text = text[end:]


def missing(sent: Any, kept: Any, place: str = "") -> list[str]:
    """What was sent and is not there; what is empty may be left out."""
    if isinstance(sent, dict):
        inside = kept if isinstance(kept, dict) else {}
        return [
            found
            for name, value in sent.items()
            if value not in ("", {}, [], False) or name in inside
            for found in missing(value, inside.get(name), f"{place}.{name}")
        ]
    if isinstance(sent, list) and isinstance(kept, list) and len(sent) <= len(kept):
        pairs = zip(sent, kept[: len(sent)], strict=True)
        return [
            found
            for number, (one, other) in enumerate(pairs)
            for found in missing(one, other, f"{place}[{number}]")
        ]
    return [] if sent == kept else [f"{place}: {sent!r} became {kept!r}"]


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_every_object_is_taken_as_it_is(kubectl: Any, file: Path) -> None:
    lost = []
    for sent, kept in taken(kubectl, file):
        sent.pop("stringData", None)  # is turned into `data`
        lost += missing(sent, kept, f"{sent['kind']} {sent['metadata']['name']}")
    assert lost == []


def test_a_task_with_whole_cpus_and_memory_is_guaranteed_them(kubectl: Any) -> None:
    """Only of such pods does a kubelet pin containers to CPUs."""
    [file] = [file for file in GOLDEN if file.stem == "pytorch-gpus"]
    classes = [kept["status"]["qosClass"] for _, kept in taken(kubectl, file) if kept["kind"] == "Pod"]
    assert classes == ["Guaranteed"] * 4
