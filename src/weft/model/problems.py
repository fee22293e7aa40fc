"""Refusals a person can act on: each names the field, the value and what would be right.

Pydantic finds all errors of fields at once; this module turns them into sentences, adds the nearest right
name to every unknown field, and keeps what is right as a draft, so that rules about the whole document can
be checked in the same pass.
"""

from __future__ import annotations

import copy
import difflib
import json
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from weft.model.resource import NAME_HELP, NAME_PATTERN

M = TypeVar("M", bound=BaseModel)

MAPPING_EXPECTED = ("dict_type", "model_type", "model_attributes_type")
Place = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with one field."""

    field: str
    message: str
    value: str | None = None

    def __str__(self) -> str:
        shown = f" (got {self.value})" if self.value is not None else ""
        return f"{self.field}: {self.message}{shown}" if self.field else f"{self.message}{shown}"


class Invalid(ValueError):
    """A document that is refused, with every problem found in it."""

    def __init__(self, what: str, problems: Sequence[Problem], kind: str = "TrainingJob"):
        self.what = what
        self.kind = kind
        self.problems = list(problems)
        super().__init__(f"{what} is not valid:\n" + "\n".join(f"  {problem}" for problem in problems))


@dataclass(frozen=True, slots=True)
class Draft(Generic[M]):
    """A document as far as it can be understood."""

    value: M | None
    """The document without what is wrong in it; None if nothing is left."""
    problems: list[Problem]
    lost: frozenset[str] = frozenset()
    """The fields that were left out of the value; `roles.*` where one of the roles is not known by name."""

    def knows(self, *fields: str) -> bool:
        """Whether these are as they were written. A rule about a field that was lost would only report
        that it was lost."""
        return not any(
            field == lost or field.startswith((f"{lost}.", f"{lost}["))
            for lost in self.lost
            for field in fields
        )


def parse(model: type[M], document: Any, what: str, kind: str = "TrainingJob") -> M:
    """The document as a model, or `Invalid` with the problems of all fields."""
    draft = read(model, document)
    if draft.value is None or draft.problems:
        raise Invalid(what, draft.problems, kind)
    return draft.value


def read(model: type[M], document: Any) -> Draft[M]:
    """The document as a model, or as much of it as is right."""
    try:
        return Draft(model.model_validate(document), [])
    except ValidationError as error:
        meant = {place for detail in _details(error) if (place := _meant(detail, model)) is not None}
        meant.difference_update(_places(document))
        details = [detail for detail in _details(error) if detail["loc"] not in meant]
        problems = [_problem(detail, model, document) for detail in details]
        value, lost = _rest(model, copy.deepcopy(document), error)
        return Draft(value, problems, frozenset(map(_path, lost | meant)))


def in_order(problems: Sequence[Problem], document: Any) -> list[Problem]:
    """Sorted as the document is; what is missing comes first in the part that lacks it."""
    places = {_path(place): number for number, place in enumerate(_places(document))}

    def number(problem: Problem) -> int:
        field = problem.field
        while field and field not in places:
            field = field[: max(field.rfind("."), field.rfind("["), 0)]
        return places.get(field, 0)

    return sorted(problems, key=number)


def _places(part: Any, place: Place = ()) -> Iterator[Place]:
    yield place
    inside = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in inside:
        yield from _places(value, (*place, key))


def _rest(model: type[M], document: Any, error: ValidationError) -> tuple[M | None, set[Place]]:
    """What remains of a document when everything that is wrong is taken out, and what that was.

    A field that is required takes its part along when it goes, so this may need several rounds.
    """
    lost: set[Place] = set()
    while isinstance(document, dict):
        wrong = {_removable(detail["loc"], document): detail["type"] for detail in _details(error)}
        if () in wrong:
            break
        for place, kind in wrong.items():
            _take_out(document, place, keep=kind in MAPPING_EXPECTED)
        lost.update(wrong)
        lost.update((*d["loc"][:-2], "*") for d in _details(error) if d["loc"][-1:] == ("[key]",))
        try:
            return model.model_validate(document), lost
        except ValidationError as again:
            error = again
    return None, lost


def _take_out(document: Any, place: Place, keep: bool) -> None:
    """Remove a field, or leave it empty: a role that is no mapping is still a role."""
    *way, last = place
    for step in way:
        document = document.get(step, {})  # its part may be gone already
    if keep and not isinstance(document.get(last, {}), dict):
        document[last] = {}
    else:
        document.pop(last, None)


def _removable(place: Place, document: Any) -> Place:
    """The smallest part around a place that can be taken out: never an item of a list, whose neighbours
    would then be called by the wrong number."""
    found: Place = ()
    for part in place:
        if not isinstance(document, dict) or part not in document:
            break
        found, document = (*found, part), document[part]
    return found


def _details(error: ValidationError) -> list[Any]:
    return error.errors(include_url=False, include_context=True)


def _problem(detail: Any, model: type[BaseModel], document: Any) -> Problem:
    loc: Place = tuple(part for part in detail["loc"] if part != "[key]")
    field = _path(loc)
    kind: str = detail["type"]
    if kind == "extra_forbidden":
        meant = _meant(detail, model)
        known = ", ".join(_field_names(model, loc[:-1]))
        hint = f"did you mean {meant[-1]}?" if meant else f"the fields here are {known}"
        return Problem(field, f"unknown field; {hint}")
    value = None if kind == "missing" else _shown(_lookup(document, detail["loc"]))
    return Problem(field, _message(kind, detail), value)


def _meant(detail: Any, model: type[BaseModel]) -> Place | None:
    """The field that a misspelt one was probably meant to be: of that one it need not be said that it is missing."""
    if detail["type"] != "extra_forbidden":
        return None
    *way, written = detail["loc"]
    known = _field_names(model, tuple(way))
    folded = [name for name in known if name.lower() == str(written).replace("_", "").lower()]
    near = difflib.get_close_matches(str(written), known, n=1, cutoff=0.6)
    guess = next(iter(folded or near), None)
    return None if guess is None else (*way, guess)


def _message(kind: str, detail: Any) -> str:
    context = detail.get("ctx", {})
    match kind:
        case "missing":
            return "is required"
        case "string_pattern_mismatch" if context["pattern"] == NAME_PATTERN:
            return f"not a name; use {NAME_HELP}"
        case "string_pattern_mismatch" if context["pattern"] == r"^[^\x00]*$":
            return "must not contain a NUL character"
        case "string_pattern_mismatch":
            return f"must match {context['pattern']}"
        case "string_type":
            return "must be text; put it in quotes"
        case "list_type":
            return "must be a list, one '- item' a line or [a, b]"
        case kind if kind in MAPPING_EXPECTED:
            return "must be a mapping of fields (name: value)"
        case "bool_type" | "bool_parsing":
            return "must be true or false"
        case "int_type" | "int_parsing" | "int_from_float":
            return "must be a whole number"
        case "enum" | "literal_error":
            return f"must be {context['expected']}"
        case "value_error":
            return str(context.get("error", detail["msg"]))
        case _:
            message: str = detail["msg"]
            return message[:1].lower() + message[1:]


def _path(loc: Place) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _lookup(document: Any, loc: Sequence[int | str]) -> Any:
    """The value at a place, or the key itself where the key is what is wrong."""
    if loc and loc[-1] == "[key]":
        return loc[-2]
    for part in loc:
        try:
            document = document[part]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def _shown(value: Any) -> str | None:
    """Scalars only, and short: a whole mapping would bury the sentence."""
    if value is None or isinstance(value, (dict, list)):
        return None
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "…"


def _field_names(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """The fields of the model found by following a location down from the root."""
    here: Any = model
    for part in loc:
        if isinstance(here, type) and issubclass(here, BaseModel):
            fields = {(info.alias or name): info for name, info in here.model_fields.items()}
            info = fields.get(str(part)) or here.model_fields.get(str(part))
            if info is None:
                return []
            here = _plain(info.annotation)
        else:
            here = _plain(_element(here))
    if isinstance(here, type) and issubclass(here, BaseModel):
        return [info.alias or name for name, info in here.model_fields.items()]
    return []


def _plain(annotation: Any) -> Any:
    """An annotation without Optional and Annotated around it."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return _plain(next(a for a in typing.get_args(annotation) if a is not type(None)))
    if origin is typing.Annotated:
        return _plain(typing.get_args(annotation)[0])
    return annotation


def _element(annotation: Any) -> Any:
    """What a list or a mapping holds."""
    arguments = typing.get_args(annotation)
    return arguments[-1] if arguments else None
