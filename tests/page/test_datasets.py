"""Datasets on the page: versions, caches, readers and lineage."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Server, python, sh, until
from pages import Reader, Visit
from playwright.sync_api import Locator, Page, expect

READS = "import weft\nprint(sum(len(sample.data) for _ in range(3) for sample in weft.data('portraits')))"
COPY = "mkdir -p $RESULT_DIR/out && cp $DATA_DIR/{}/* $RESULT_DIR/out/"


@pytest.fixture
def faces(server: Server, tmp_path: Path) -> Iterator[Path]:
    """A folder that is the dataset `portraits`, read once."""
    folder = tmp_path / "portraits"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.txt").write_text(f"face {number}\n" * 100)
    put(server, "portraits", {"source": {"url": f"file://{folder}"}, "description": "Faces of people"})
    yield folder
    for job in ("reader", "clean", "learn"):
        if server.get(f"/v1/jobs/{job}").status == 200:
            server.ask(job, "cancel")
            server.wait_for(job)
            server.delete(job)
    for name in ("portraits", "broken", "tidy", "model"):
        server.call("DELETE", f"/v1/datasets/{name}")


def put(server: Server, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    answer = server.call("PUT", f"/v1/datasets/{name}", {"kind": "Dataset", "spec": spec})
    assert answer.status == 201, answer.body
    until(lambda: look(server, name)["state"] in ("READY", "FAILED"), f"dataset {name} to be read")
    return look(server, name)


def look(server: Server, name: str) -> Any:
    return server.get(f"/v1/datasets/{name}").json["status"]


def rows(page: Page, table: str) -> Locator:
    return page.get_by_role("table", name=table, exact=True).get_by_role("row")


def test_datasets_are_listed_with_what_one_asks_of_them(server: Server, reader: Reader, faces: Path) -> None:
    put(server, "broken", {"source": {"url": "file:///nowhere/at/all"}})
    version = look(server, "portraits")["version"]
    page = reader.go("/datasets")
    listed = rows(page, "Datasets").filter(has_text="portraits")
    expect(listed).to_contain_text("ready")
    expect(listed).to_contain_text(version[:12])
    expect(listed).to_contain_text("3.42 KiB")
    expect(rows(page, "Datasets").filter(has_text="broken")).to_contain_text("failed")
    page.get_by_role("link", name="broken").click()
    expect(page.get_by_text("/nowhere/at/all").first).to_be_visible()
    expect(page.locator(".dataset-reason")).to_be_visible()


def test_a_dataset_shows_where_it_is_and_who_reads_it(server: Server, reader: Reader, faces: Path) -> None:
    server.run(
        sh("exec sleep 1000", name="reader", grace="1s", datasets=[{"name": "portraits"}]), "PROCESSING"
    )
    page = reader.go("/datasets/portraits")
    expect(page.get_by_text("Faces of people")).to_be_visible()
    expect(rows(page, "Readers").filter(has_text="reader")).to_be_visible()
    cache = look(server, "portraits")["cached"][0]
    expect(rows(page, "Caches").filter(has_text=cache["node"])).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("dataset portraits is in use: reader")).to_be_visible()
    server.ask("reader", "cancel")
    expect(page.get_by_text("Nobody reads it now")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page).to_have_url(re.compile(r"/datasets$"))
    assert server.get("/v1/datasets/portraits").status == 404


def test_how_often_it_was_found_in_a_cache(caching: Server, visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a face")
    put(caching, "portraits", {"source": {"url": tmp_path.as_uri()}})

    def found() -> list[Any]:
        return [each for each in look(caching, "portraits")["cached"] if each["hits"]]

    with visit.signed_in(caching) as reader:
        page = reader.go("/datasets/portraits")
        expect(page.get_by_text("nothing was asked of a cache yet")).to_be_visible()
        for name in ("fills", "finds"):
            reads = python(READS, name=name, datasets=[{"name": "portraits", "files": False}])
            assert caching.run(reads)["status"]["state"] == "COMPLETED", caching.text(name)
        until(found, "what was found to be counted")
        (cache,) = found()
        ratio = f"{round(100 * cache['hits'] / (cache['hits'] + cache['misses']))} %"
        expect(page.get_by_text(f"{ratio} of reads came from a cache")).to_be_visible()
        shown = rows(page, "Caches").filter(has_text=cache["node"])
        expect(shown.get_by_text(ratio, exact=True)).to_have_attribute(
            "title", f"{cache['hits']} found, {cache['misses']} not"
        )
        expect(shown.get_by_role("meter")).to_have_attribute("value", "1")
        reader.turn_to("/datasets")
        listed = rows(page, "Datasets").filter(has_text="portraits")
        expect(listed.get_by_role("cell", name=ratio, exact=True)).to_be_visible()
        expect(listed).to_contain_text(cache["node"])


def test_reading_the_source_again_makes_a_version(server: Server, reader: Reader, faces: Path) -> None:
    first = look(server, "portraits")["version"]
    page = reader.go("/datasets/portraits")
    expect(rows(page, "Versions")).to_have_count(2)
    (faces / "more.txt").write_text("one more")
    page.get_by_role("button", name="Refresh").click()
    expect(rows(page, "Versions")).to_have_count(3)
    newest = look(server, "portraits")["version"]
    assert newest != first
    expect(rows(page, "Versions").nth(1)).to_contain_text(newest[:12])
    page.get_by_role("link", name=first[:12]).click()
    expect(page).to_have_url(re.compile(rf"version={first[:12]}"))
    expect(page.get_by_role("group", name=f"Lineage of portraits@{first[:12]}")).to_be_visible()


def test_verifying_proves_the_version_that_is_looked_at(server: Server, reader: Reader, faces: Path) -> None:
    first = look(server, "portraits")["version"]
    for number in range(5):
        (faces / f"{number}.txt").write_text(f"another face {number}\n" * 100)
    assert server.post("/v1/datasets/portraits/refresh").status == 202
    until(lambda: look(server, "portraits")["version"] != first, "a second version")
    newest = look(server, "portraits")["version"]
    flip_a_byte(server, first)

    page = reader.go("/datasets/portraits")
    page.get_by_role("button", name="Verify").click()
    told = page.locator(".notices")
    expect(told).to_contain_text(f"Every byte of portraits@{newest[:12]} is as it should be: 5 samples")
    page.get_by_role("link", name=first[:12]).click()
    expect(page.get_by_role("group", name=f"Lineage of portraits@{first[:12]}")).to_be_visible()
    page.get_by_role("button", name="Verify").click()
    expect(told).to_contain_text(f"portraits@{first[:12]} is damaged, 2 problems: part 0")
    expect(told.locator(".tone-bad code")).to_have_text("weft data refresh portraits")


def flip_a_byte(server: Server, version: str) -> None:
    store = server.home / "datasets"
    (part,) = json.loads((store / "versions" / version / "version.json").read_text())["parts"]
    file = store / "parts" / part["digest"][:2] / part["digest"]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.chmod(0o600)
    file.write_bytes(data)


def test_lineage_is_drawn_from_left_to_right(server: Server, reader: Reader, faces: Path) -> None:
    made = server.run(
        sh(
            COPY.format("portraits"),
            name="clean",
            datasets=[{"name": "portraits"}],
            outputs=[{"dataset": "tidy"}],
        )
    )
    assert made["status"]["state"] == "COMPLETED", made["status"]
    server.run(
        sh(COPY.format("tidy/out"), name="learn", datasets=[{"name": "tidy"}], outputs=[{"dataset": "model"}])
    )
    page = reader.go("/datasets/tidy")
    names = [
        f"portraits@{short(server, 'portraits')}",
        "job/clean",
        f"tidy@{short(server, 'tidy')}",
        "job/learn",
    ]
    places = [place(page, name) for name in (*names, f"model@{short(server, 'model')}")]
    assert places == sorted(places)
    assert len({*places}) == 5
    expect(page.locator(f'[data-node="{names[2]}"] a')).to_have_attribute("aria-current", "true")
    assert page.locator(".graph path").count() == 4
    page.locator('[data-node="job/clean"] a').click()
    expect(page).to_have_url(re.compile(r"/jobs/clean"))


def short(server: Server, name: str) -> str:
    return look(server, name)["version"][:12]


def place(page: Page, node: str) -> float:
    found = page.locator(f'[data-node="{node}"]').bounding_box()
    assert found is not None
    return found["x"]


def test_a_dataset_that_is_not_there(reader: Reader) -> None:
    page = reader.go("/datasets/none")
    expect(page.get_by_role("alert")).to_contain_text("none")
