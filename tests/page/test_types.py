"""Job types and sizes on the page: what there is, and examples that work."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml
from harness import Server
from pages import Reader
from playwright.sync_api import expect


def test_every_type_has_an_example_that_the_server_takes(server: Server, reader: Reader) -> None:
    page = reader.go("/types")
    names = [item["metadata"]["name"] for item in server.get("/v1/jobtypes").json["items"]]
    links = page.get_by_role("navigation", name="Job types").get_by_role("link")
    expect(links).to_have_count(len(names))
    for name in names:
        page.get_by_role("navigation", name="Job types").locator(f'a[href="/types/{name}"]').click()
        shown = page.get_by_label(f"A job of type {name} as YAML")
        expect(shown).to_be_visible()
        document = yaml.safe_load(shown.text_content() or "")
        answer = server.post("/v1/jobs?dryRun=true", document)
        assert answer.status == 200, (name, answer.body)
        assert answer.json["spec"]["type"] == name


def test_an_example_is_copied_and_used(server: Server, reader: Reader) -> None:
    page = reader.go("/types/notebook")
    expect(page.get_by_text("weft run --type notebook --cpu 2 --memory 4Gi")).to_be_visible()
    expect(page.get_by_text("there is one notebook in a job: its worker")).to_be_visible()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown = page.get_by_label("A job of type notebook as YAML").text_content()
    page.get_by_role("button", name="Copy YAML").click()
    expect(page.get_by_role("button", name="copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == shown
    page.get_by_role("link", name="Use it").click()
    expect(page).to_have_url(re.compile(r"/new\?type=notebook"))
    expect(page.get_by_label("The job as YAML")).to_have_value(shown or "")
    expect(page.get_by_text("Checked by the server: 1 task")).to_be_visible()


@pytest.fixture
def own(server: Server) -> Iterator[None]:
    """A job type and a size that an operator declared."""
    spec = {
        "description": "Ring",
        "roles": {"node": {}},
        "checks": [{"that": "replicas.node >= 1", "message": "one"}],
    }
    assert server.call("PUT", "/v1/jobtypes/ring", {"spec": spec}).status == 201
    size = {"cpu": 3, "memory": "5Gi", "description": "For tests", "perGpu": True, "gpuType": "a100"}
    assert server.call("PUT", "/v1/sizes/huge", {"spec": size}).status == 201
    yield
    assert server.call("DELETE", "/v1/jobtypes/ring").status == 204
    assert server.call("DELETE", "/v1/sizes/huge").status == 204


def test_a_type_and_a_size_of_ones_own_are_there_too(own: None, reader: Reader) -> None:
    page = reader.go("/types/ring")
    expect(page.get_by_role("heading", name="ring")).to_be_visible()
    expect(page.get_by_text("replicas.node >= 1")).to_be_visible()
    row = page.get_by_role("table", name="Sizes").get_by_role("row").filter(has_text="huge-N")
    expect(row).to_contain_text("For tests")
    row.get_by_role("link").click()
    expect(page).to_have_url(re.compile(r"size=huge-1"))
    expect(page.get_by_label("The job as YAML")).to_have_value(re.compile("size: huge-1"))
    expect(page.get_by_text("Checked by the server: 1 task, 3 CPUs, 1 GPU.")).to_be_visible()


def test_a_type_that_is_not_there(reader: Reader) -> None:
    page = reader.go("/types/none")
    expect(page.get_by_role("heading", name="No job type none")).to_be_visible()
