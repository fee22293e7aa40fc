"""What a job would be on a cluster, asked of a server whose engine is this machine."""

from __future__ import annotations

from support.builders import job_document
from support.machine import Machine, Tell
from support.rest import call

ASKED = "/v1/jobs?dryRun=true&objects=kubernetes"


def test_a_dry_run_answers_with_the_objects_and_keeps_nothing(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        document = job_document(roles={"worker": {"replicas": 2}}, command=["python", "train.py"])
        status, answer = await call(m, "POST", ASKED, document)
        assert status == 200
        kinds = [thing["kind"] for thing in answer["items"]]
        assert kinds == ["ConfigMap", "Secret", "Service", "NetworkPolicy", "Pod", "Pod"]
        secret = answer["items"][1]
        assert secret["stringData"] == {"token": "made when it is submitted"}
        assert not m.control.jobs

    on_a_machine(story)


def test_what_no_cluster_can_run_is_refused_with_the_reason(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        document = job_document(roles={"worker": {"resources": {"gpu": 0.5}}})
        status, problem = await call(m, "POST", ASKED, document)
        assert status == 422
        assert "0.5 of a GPU cannot be had on Kubernetes" in problem["detail"]

    on_a_machine(story)


def test_objects_are_shown_only_of_what_is_not_submitted(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        status, problem = await call(m, "POST", "/v1/jobs?objects=kubernetes", job_document())
        assert (status, problem["problems"][0]["field"]) == (422, "query.objects")
        assert not m.control.jobs

    on_a_machine(story)
