"""The form shared by every resource: `apiVersion`, `kind`, `metadata`, `spec`, `status`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import InitErrorDetails, PydanticCustomError

API_VERSION = "weft.dev/v1"

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
NAME_HELP = (
    "lower-case letters, digits and '-', starting and ending with a letter or digit, at most 63 characters"
)
LABEL_KEY_PATTERN = r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
LabelKey = Annotated[str, StringConstraints(pattern=LABEL_KEY_PATTERN)]
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
"""Text that may reach a process: anything but a NUL, which no argument or variable can carry."""
Image = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}$")]
"""The name of a container image, with its registry, tag or digest if it has any."""


class Strict(BaseModel):
    """The base of all resource parts: camelCase outside, unknown fields refused, immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,  # an input may be a secret; errors are rendered by model.problems
    )


class Ruled(Strict):
    """A part whose fields have rules among each other.

    Pydantic's own model validators stay silent while any field is wrong. These rules judge what was
    written, so that a broken rule and a broken field are told in one refusal.
    """

    @classmethod
    def rules(cls, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """The broken rules: the field (empty: the part as a whole), and what would be right. `given` are
        the fields as they were written, which may be anything."""
        raise NotImplementedError

    @model_validator(mode="wrap")
    @classmethod
    def _fields_and_rules(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        broken = [
            InitErrorDetails(type=_broken(rule), loc=(field,) if field else (), input=None)
            for field, rule in (cls.rules(data) if isinstance(data, Mapping) else ())
        ]
        try:
            made = handler(data)
        except ValidationError as error:
            broken[:0] = [
                InitErrorDetails(
                    type=_broken(detail["msg"]) if detail["type"] == _RULE else detail["type"],
                    loc=detail["loc"],
                    input=detail["input"],
                    ctx=detail.get("ctx", {}),
                )
                for detail in error.errors(include_url=False)
            ]
        if broken:
            raise ValidationError.from_exception_data(cls.__name__, broken)
        return made


_RULE = "rule"


def _broken(rule: str) -> PydanticCustomError:
    """A broken rule, in Pydantic's terms: it knows no type of ours by name."""
    return PydanticCustomError(_RULE, "{rule}", {"rule": rule})


class Metadata(Strict):
    name: Name | None = None
    """Unique among the jobs that exist. Left out, Weft makes one from `generateName`."""
    generate_name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,54})?$")] | None = None
    """The beginning of a name that Weft completes."""
    labels: dict[LabelKey, Annotated[str, StringConstraints(max_length=253)]] = Field(default_factory=dict)
    annotations: dict[LabelKey, Text] = Field(default_factory=dict)
    owner: Annotated[str, StringConstraints(max_length=253)] | None = None
    """Who submitted it; set by the server."""
    uid: str | None = None
    """Set by the server; names the job's folder."""
    created: float | None = None
    """Set by the server: seconds since 1970."""


def slug(text: str, fallback: str = "job") -> str:
    """The nearest valid name to any text (`My Model.py` → `my-model-py`)."""
    cleaned = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:48].strip("-")
    return cleaned or fallback
