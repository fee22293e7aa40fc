"""The types of answers, as OpenAPI has them."""

from __future__ import annotations

from weft.model.job import TrainingJob
from weft.server import answers, openapi


def test_no_answer_takes_the_name_of_a_part_of_a_resource() -> None:
    schema = TrainingJob.model_json_schema(ref_template=answers.REFERENCE)
    told = openapi.document([])["components"]["schemas"]
    for name, part in schema.pop("$defs").items():
        assert told[name] == part, name


def test_every_reference_leads_somewhere() -> None:
    told = openapi.document([])["components"]["schemas"]

    def references(value: object) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [found for each in value.values() for found in references(each)]
        return [found for each in value for found in references(each)] if isinstance(value, list) else []

    assert {reference.rsplit("/", 1)[1] for reference in references(told)} <= set(told)


def test_what_may_be_unknown_in_a_status_may_be_missing_and_is_never_null() -> None:
    status = openapi.document([])["components"]["schemas"]["JobStatus"]
    assert "reason" not in status["required"]
    assert status["properties"]["reason"] == {"title": "Reason", "type": "string"}
    assert {"state", "tasks", "restarts", "logTail"} <= set(status["required"])
