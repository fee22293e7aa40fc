"""New job on the page: the form, the YAML beside it, and the server's word on both."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml
from harness import Server, sh
from pages import Reader
from playwright.sync_api import Locator, Page, Route, expect

GOOD = "Checked by the server"


def text(page: Page) -> Locator:
    return page.get_by_label("The job as YAML")


def field(page: Page, name: str) -> Locator:
    """The input of a field, as the server names it."""
    return page.locator(f'[id="field-{name}"]')


def problem(page: Page, name: str) -> Locator:
    return page.locator(f'[id="field-{name}-problem"]')


def written(page: Page) -> dict:
    return yaml.safe_load(text(page).input_value())


def names(server: Server) -> set[str]:
    return {item["metadata"]["name"] for item in server.get("/v1/jobs", limit=10_000).json["items"]}


@pytest.fixture(autouse=True)
def before(server: Server) -> Iterator[set[str]]:
    """The jobs that were there before; those of the test are deleted."""
    there = names(server)
    yield there
    for name in names(server) - there:
        server.ask(name, "cancel")
        server.delete(name)


def test_a_job_is_filled_in_checked_and_submitted(server: Server, reader: Reader, before: set[str]) -> None:
    page = reader.go("/new")
    field(page, "metadata.name").fill("mine")
    field(page, "metadata.generateName").fill("")
    field(page, "spec.command[0]").fill("sh")
    field(page, "spec.command[1]").fill("-c")
    field(page, "spec.command[1]").press("Enter")
    expect(field(page, "spec.command[2]")).to_be_focused()
    page.keyboard.type("echo $WORD")
    field(page, "spec.roles.worker.replicas").fill("2")
    field(page, "spec.roles.worker.resources.cpu").fill("0.5")
    page.get_by_text(re.compile("^More: env")).click()
    page.get_by_role("button", name="Add to spec.env").click()
    page.get_by_label("Name of spec.env.NAME").fill("WORD")
    page.get_by_label("Name of spec.env.NAME").press("Enter")
    field(page, "spec.env.WORD").fill("hello there")
    assert written(page) == {
        "apiVersion": "weft.dev/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "mine"},
        "spec": {
            "command": ["sh", "-c", "echo $WORD"],
            "roles": {"worker": {"replicas": 2, "resources": {"cpu": 0.5}}},
            "env": {"WORD": "hello there"},
        },
    }
    expect(page.get_by_text(f"{GOOD}: 2 tasks, 1 CPU.")).to_be_visible()
    assert names(server) == before  # a dry run is no submit
    page.get_by_role("button", name="Submit").click()
    expect(page).to_have_url(re.compile("/jobs/mine$"))
    assert server.wait_for("mine")["status"]["state"] == "COMPLETED"
    assert server.text("mine").count("hello there") == 2


def test_what_is_wrong_is_said_where_it_is_wrong(server: Server, reader: Reader, before: set[str]) -> None:
    page = reader.go("/new")
    expect(page.get_by_text(GOOD)).to_be_visible()
    field(page, "spec.deadline").fill("1 hour")
    field(page, "spec.roles.worker.resources.cpu").fill("many")
    field(page, "metadata.name").fill("Not A Name")
    expect(problem(page, "spec.deadline")).to_have_text(
        "write a duration with a unit: 30s, 5m, 2h, 1h30m, 7d"
    )
    expect(problem(page, "spec.roles.worker.resources.cpu")).to_contain_text("write CPUs as a number")
    expect(problem(page, "metadata.name")).to_contain_text("not a name")
    expect(field(page, "spec.deadline")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_text("3 problems to mend")).to_be_visible()

    page.get_by_role("button", name="Submit").click()
    page.get_by_role("button", name="spec.deadline").click()
    expect(field(page, "spec.deadline")).to_be_focused()
    assert names(server) == before
    field(page, "spec.deadline").fill("1h")
    expect(problem(page, "spec.deadline")).to_have_count(0)
    expect(page.get_by_text("2 problems to mend")).to_be_visible()


def test_the_server_names_what_is_not_there(server: Server, reader: Reader) -> None:
    page = reader.go("/new")
    text(page).fill(
        "spec: {command: [a], queue: nope, datasets: [{name: no-faces}], comand: [b], roles: {worker: {resources: {size: hu}}}}"
    )
    expect(problem(page, "spec.queue")).to_contain_text("no such queue")
    expect(problem(page, "spec.datasets[0].name")).to_contain_text("no such dataset")
    expect(problem(page, "spec.roles.worker.resources.size")).to_contain_text("no such size")
    verdict = page.locator(".verdict")
    expect(verdict).to_contain_text(
        "unknown field; did you mean command?"
    )  # there is no such field to stand at
    expect(verdict).to_contain_text("(line 1)")


def test_yaml_can_be_typed_and_keeps_its_comments(server: Server, reader: Reader) -> None:
    page = reader.go("/new")
    text(page).fill("# for Ann\nspec:\n  command: [sleep, '1'] # short\n  roles: {worker: {replicas: 3}}\n")
    expect(field(page, "spec.roles.worker.replicas")).to_have_value("3")
    expect(field(page, "spec.command[1]")).to_have_value("1")
    field(page, "spec.roles.worker.replicas").fill("4")
    expect(text(page)).to_have_value(
        "# for Ann\nspec:\n  command: [sleep, '1'] # short\n  roles: {worker: {replicas: 4}}\n"
    )
    expect(page.get_by_text("4 tasks")).to_be_visible()
    text(page).fill("spec:\n  command: [sleep\nmetadata: {}\n")
    expect(page.locator(".verdict")).to_contain_text(re.compile(r"Line \d"))
    expect(field(page, "spec.queue")).to_be_disabled()
    expect(page.get_by_role("button", name="Submit")).to_be_disabled()


def test_a_job_is_run_again_with_changes(server: Server, reader: Reader, before: set[str]) -> None:
    roles = {"worker": {"replicas": 2, "resources": {"cpu": 0.25}}}
    server.run(
        sh(
            "echo $WORD $0",
            name="first",
            env={"WORD": "one"},
            roles=roles,
            labels={"for": "ann"},
            deadline="1h",
        )
    )
    page = reader.go("/new?from=first")
    expect(text(page)).not_to_have_value("")
    assert written(page) == {
        "apiVersion": "weft.dev/v1",
        "kind": "TrainingJob",
        "metadata": {"generateName": "first-", "labels": {"for": "ann"}},
        "spec": {
            "command": ["sh", "-c", "echo $WORD $0"],
            "env": {"WORD": "one"},
            "roles": {"worker": {"replicas": 2, "resources": {"cpu": 0.25}}},
            "deadline": "1h",
        },
    }
    field(page, "spec.env.WORD").fill("two")
    page.get_by_role("button", name="Submit").click()
    expect(page).to_have_url(re.compile("/jobs/first-[a-z0-9]+$"))
    (name,) = names(server) - before - {"first"}
    server.wait_for(name)
    spec = server.get(f"/v1/jobs/{name}").json["spec"]
    assert spec == {**server.get("/v1/jobs/first").json["spec"], "env": {"WORD": "two"}}


def test_an_answer_that_is_lost_makes_no_second_job(server: Server, reader: Reader, before: set[str]) -> None:
    keys: list[str | None] = []

    def lose(route: Route) -> None:
        keys.append(route.request.headers.get("idempotency-key"))
        if len(keys) == 1:
            route.fetch()
            route.abort()
        else:
            route.continue_()

    page = reader.go("/new")
    text(page).fill("metadata: {generateName: once-}\nspec: {command: [sleep, '600']}\n")
    expect(page.get_by_text(GOOD)).to_be_visible()
    page.route(re.compile(r"/v1/jobs$"), lose)
    page.get_by_role("button", name="Submit").click()
    expect(page).to_have_url(re.compile("/jobs/once-[a-z0-9]+$"))
    assert len(names(server) - before) == 1
    assert len(keys) == 2
    assert keys[0] == keys[1] is not None
    page.goto(f"{reader.address}/new")
    text(page).fill("metadata: {generateName: once-}\nspec: {command: [sleep, '600']}\n")
    page.get_by_role("button", name="Submit").click()
    expect(page).to_have_url(re.compile("/jobs/once-[a-z0-9]+$"))
    assert len(names(server) - before) == 2, "another wish is another job"


def test_a_re_run_whose_answer_is_lost_is_one_job(server: Server, reader: Reader, before: set[str]) -> None:
    server.run(sh("true", name="again"))
    lost: list[str] = []

    def lose(route: Route) -> None:
        if route.request.method == "POST" and not lost:
            lost.append(route.request.url)
            route.fetch()
            route.abort()
        else:
            route.continue_()

    page = reader.go("/jobs/again")
    page.route(re.compile(r"/v1/jobs$"), lose)
    page.get_by_role("button", name="Re-run").click()
    page.get_by_role("dialog").get_by_role("button", name="Submit").click()
    expect(page).to_have_url(re.compile("/jobs/again-[a-z0-9]+$"))
    assert lost
    assert len(names(server) - before - {"again"}) == 1


def test_what_a_job_says_of_lists_stays_when_it_is_run_again(server: Server, reader: Reader) -> None:
    metrics = [{"source": "regex", "pattern": "loss=(?P<loss>.*)"}]
    roles = {"worker": {"resources": {"gpu": 64}}}  # it will wait
    server.submit(
        sh("true", name="first", metrics=metrics, roles=roles, placement={"nodes": "one"}, type="jax")
    )
    page = reader.go("/new?from=first")
    expect(page.get_by_text(GOOD)).to_be_visible()
    spec = written(page)["spec"]
    assert spec["type"] == "jax"
    assert spec["placement"] == {"nodes": "one"}
    assert spec["metrics"][0]["pattern"] == "loss=(?P<loss>.*)"
    assert "template" not in spec  # that is the type's
    assert "grace" not in spec


def test_every_field_of_the_schema_is_in_the_form(server: Server, reader: Reader) -> None:
    page = reader.go("/new")
    expect(page.get_by_text(GOOD)).to_be_visible()
    folds = page.locator("details.more:not([open]) > summary")
    while folds.count():
        folds.first.click()
    schema = server.get("/v1/schemas/TrainingJob").json
    shown = page.locator("[data-field]").evaluate_all("found => found.map(each => each.dataset.field)")
    wanted = {f"spec.{name}" for name in schema["$defs"]["TrainingJobSpec"]["properties"]}
    assert wanted <= {*shown}, wanted - {*shown}


@pytest.mark.parametrize("path", ["/new?from=none", "/new?type=none"])
def test_a_beginning_that_is_not_there(reader: Reader, path: str) -> None:
    page = reader.go(path)
    expect(page.get_by_role("alert")).to_contain_text("none")


def test_keys_add_and_remove_arguments(reader: Reader) -> None:
    page = reader.go("/new")
    field(page, "spec.command[1]").fill("")
    field(page, "spec.command[1]").press("Backspace")
    expect(field(page, "spec.command[0]")).to_be_focused()
    assert written(page)["spec"]["command"] == ["python"]
    page.get_by_role("button", name="Remove spec.command[0]").click()
    expect(problem(page, "spec.command")).to_contain_text("is required: what should role worker run?")
    assert "command" not in written(page)["spec"]
