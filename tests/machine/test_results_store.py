"""A results store on another disk: what a job saves and leaves is there a second time, and comes back from there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Server, python, until

pytestmark = pytest.mark.machine
New = Callable[..., Server]

TRAIN = """
import os, time, weft
state = weft.checkpoint.load(default={"step": 0})
print("begin", state["step"])
while state["step"] < 3:
    state = {"step": state["step"] + 1}
    weft.checkpoint.save(state, step=state["step"])
    print("step", state["step"])
    while state["step"] == 2 and os.environ["WEFT_LAUNCH"] == "1":
        time.sleep(0.1)
open(os.environ["RESULT_DIR"] + "/model.txt", "w").write("good")
"""


def steps(server: Server, name: str) -> dict[int, tuple[bool, bool]]:
    items = server.get(f"/v1/jobs/{name}/checkpoints").json["items"]
    return {item["step"]: (item["here"], item["copied"]) for item in items}


def test_a_job_that_lost_its_disk_goes_on_from_the_copy(new_server: New, tmp_path: Path):
    store = tmp_path / "store"
    server = new_server("--results-store", str(store))
    name = server.submit(python(TRAIN, name="train"))
    server.printed_line(name, "step 2")
    until(
        lambda: steps(server, name) == {1: (True, True), 2: (True, True)}, "both to be copied, as it runs", 20
    )
    server.ask(name, "halt")
    server.wait_for(name, "HALTED")
    for path in (server.folder(name) / "checkpoints").glob("step-*"):
        shutil.rmtree(path)
    assert steps(server, name) == {1: (False, True), 2: (False, True)}
    server.restart()
    assert server.post(f"/v1/jobs/{name}/resume?fromCheckpoint=7").status == 409
    assert server.ask(name, "resume").status == 200
    server.wait_for(name, "COMPLETED")
    assert server.text(name)[-2:] == ["begin 2", "step 3"]
    assert steps(server, name) == dict.fromkeys((1, 2, 3), (True, True))
    copy = store / f"{name}.{server.uid(name)}"
    assert (copy / "results" / "model.txt").read_text() == "good", "there before it was COMPLETED"
    server.delete(name)
    until(lambda: not copy.exists(), "the copies to go with the job", 10)


def test_a_step_that_is_only_in_the_store_can_be_asked_for(new_server: New, tmp_path: Path):
    server = new_server("--results-store", str(tmp_path / "store"))
    name = server.submit(python(TRAIN, name="train"))
    server.printed_line(name, "step 2")
    until(lambda: steps(server, name).get(1) == (True, True), "the first to be copied", 20)
    server.ask(name, "halt")
    server.wait_for(name, "HALTED")
    shutil.rmtree(server.folder(name) / "checkpoints" / f"step-{1:012d}")
    assert server.post(f"/v1/jobs/{name}/resume?fromCheckpoint=1").status == 200
    server.wait_for(name, "COMPLETED")
    assert server.text(name)[-3:] == ["begin 1", "step 2", "step 3"]


def test_a_store_that_is_away_is_told_and_harms_no_job(new_server: New, tmp_path: Path):
    store = tmp_path / "store"
    server = new_server("--results-store", str(store))
    store.rmdir()
    store.write_text("no folder any more")
    name = server.submit(python(TRAIN.replace("== 2 and", "== 0 and"), name="train"))
    server.wait_for(name, "COMPLETED")
    notes = [event["cause"] for event in server.history(name) if event["type"] == "note"]
    assert f"checkpoints are not copied to {store}: Not a directory; tried again" in notes
    store.unlink()
    copied = store / f"{name}.{server.uid(name)}" / "results" / "model.txt"
    until(copied.exists, "it to be copied once the store is back", 20)
    server.kill()
    shutil.rmtree(store)
    store.write_text("no folder any more")
    with pytest.raises(AssertionError, match=r"results store .*File exists; mount it, name another"):
        server.restart()
    store.unlink()
    server.restart()
    assert server.status(name)["state"] == "COMPLETED"
