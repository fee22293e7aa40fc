"""Metrics from real processes, each point exactly once, whatever dies meanwhile."""

from __future__ import annotations

import pytest
from harness import Server, python, sh, until

pytestmark = pytest.mark.machine


def points(server: Server, name: str) -> list[tuple[str, int | None, float]]:
    return [(p["name"], p["step"], p["value"]) for p in server.metrics(name)]


def test_weft_log_from_a_process(server: Server):
    source = "import weft\nfor s in range(3): weft.log(step=s, loss=1 / (s + 1), accuracy=s)"
    server.run(python(source, name="logged"))
    assert points(server, "logged") == [
        ("loss", 0, 1.0), ("accuracy", 0, 0.0), ("loss", 1, 0.5), ("accuracy", 1, 1.0),
        ("loss", 2, pytest.approx(1 / 3)), ("accuracy", 2, 2.0),
    ]  # fmt: skip
    only = server.get("/v1/jobs/logged/metrics", name="loss").json["items"]
    assert {p["name"] for p in only} == {"loss"}
    assert all(p["task"] == "worker-0" and p["time"] > 1e9 for p in only)


def test_plain_json_lines_appended_by_a_shell(server: Server):
    script = """echo '{"step":7,"time":12.5,"values":{"x":1,"y":2.5}}' >> $WEFT_METRICS_FILE
echo 'not json' >> $WEFT_METRICS_FILE
printf '{"step":8,"time":13,"values":{"x":3}}\\n{"half' >> $WEFT_METRICS_FILE"""
    server.run(sh(script, name="plain"))
    assert points(server, "plain") == [("x", 7, 1.0), ("y", 7, 2.5), ("x", 8, 3.0)]


def test_a_regular_expression_over_the_log_across_lines(server: Server):
    script = "echo 'Epoch 3/10'; echo '  train loss: 0.25'; echo noise; echo 'Epoch 4/10'; echo '  train loss: 0.125'"
    metrics = [
        {
            "source": "regex",
            "pattern": r"Epoch (?P<step>\d+)/\d+\s+train loss: (?P<loss>[0-9.]+)",
            "group": "train",
        }
    ]
    server.run(sh(script, name="regex", metrics=metrics))
    assert points(server, "regex") == [("train/loss", 3, 0.25), ("train/loss", 4, 0.125)]


def test_name_value_pairs_in_the_log(server: Server):
    script = "echo 'step=1 loss=0.5 lr=1e-3 name=abc'; echo 'step=2 loss=0.25'"
    server.run(sh(script, name="pairs", metrics=[{"source": "log", "names": ["loss"]}]))
    assert points(server, "pairs") == [("loss", 1, 0.5), ("loss", 2, 0.25)]


TENSORBOARD = """
import os
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(os.environ["LOG_DIR"] + "/run")
for step in range(50):
    value = Summary.Value(tag="loss", simple_value=1.0 / (step + 1))
    writer.add_event(Event(step=step, wall_time=1000.0 + step, summary=Summary(value=[value])))
writer.close()
"""


def test_tensorboard_event_files(server: Server):
    done = server.run(python(TENSORBOARD, name="board", metrics=[{"source": "tensorboard"}]), timeout=60)
    assert done["status"]["state"] == "COMPLETED", server.text("board")
    found = points(server, "board")
    assert [step for _, step, _ in found] == list(range(50))
    assert found[1] == ("run/loss", 1, 0.5)


def test_files_that_a_gang_shares_are_read_once(server: Server):
    """LOG_DIR is one for the whole job: its chief alone reads metrics from there."""
    script = """[ $RANK = 1 ] && echo '{"step":1,"time":1,"values":{"x":1}}' >> $LOG_DIR/metrics.jsonl; sleep 0.2"""
    metrics = [{"source": "file"}]
    server.run(sh(script, name="shared", roles={"worker": {"replicas": 3}}, metrics=metrics))
    assert points(server, "shared") == [("x", 1, 1.0)]
    assert {p["task"] for p in server.metrics("shared")} == {"worker-0"}


def test_points_are_followed_live(server: Server, tmp_path):
    go = tmp_path / "go"
    script = f"""echo '{{"step":1,"time":1,"values":{{"x":1}}}}' >> $WEFT_METRICS_FILE
while [ ! -e {go} ]; do sleep 0.01; done
echo '{{"step":2,"time":2,"values":{{"x":2}}}}' >> $WEFT_METRICS_FILE"""
    name = server.submit(sh(script, name="live"))
    seen = []
    for event in server.stream(f"/v1/jobs/{name}/metrics"):
        if event.event == "end":
            break
        seen += [p["step"] for p in event.data["items"]]
        if seen == [1]:
            go.touch()
    assert seen == [1, 2]


STEADY = """
import os, time, weft
step = 0
while not os.path.exists(os.environ["GO"]):
    weft.log(step=step, x=step)
    print(f"step={step} y={step}", flush=True)
    step += 1
    time.sleep(0.002)
print("total", step)
"""


def test_every_point_once_while_the_server_is_killed_again_and_again(server: Server, tmp_path):
    go = tmp_path / "go"
    metrics = [{"source": "log", "names": ["y"]}]
    name = server.submit(python(STEADY, name="steady", metrics=metrics, env={"GO": str(go)}))
    for round_number in range(4):
        until(lambda n=round_number: len(server.metrics(name)) > 200 * n, "points to arrive")
        server.restart()
    go.touch()
    server.wait_for(name, "COMPLETED")
    total = int(server.text(name, tail=1)[0].split()[1])
    found = points(server, name)
    for metric in ("x", "y"):
        assert [step for n, step, _ in found if n == metric] == list(range(total))


def test_points_of_restarts_and_resumes_come_after_each_other(server: Server):
    script = """echo '{"step":'$WEFT_LAUNCH',"time":1,"values":{"x":1}}' >> $WEFT_METRICS_FILE; [ $WEFT_LAUNCH = 3 ]"""
    server.run(sh(script, name="again", restart={"policy": "on-failure", "max": 1, "backoff": 0.02}))
    assert server.status("again")["state"] == "FAILED"
    server.ask("again", "resume")
    server.wait_for("again", "COMPLETED")
    assert points(server, "again") == [("x", 1, 1.0), ("x", 2, 1.0), ("x", 3, 1.0)]


def test_not_a_number_and_infinity_are_kept(server: Server):
    source = "import weft; weft.log(step=1, loss=float('nan'), top=float('inf'))"
    server.run(python(source, name="odd"))
    assert points(server, "odd") == [("loss", 1, "nan"), ("top", 1, "inf")]


def test_what_tasks_used_is_known_after_the_server_and_the_job_have_ended(server: Server):
    def used() -> list[list[float]]:
        items = server.get("/v1/jobs/uses/usage").json["items"]
        assert all((item["task"], item["cpuLimit"]) == ("worker-0", 0.5) for item in items)
        return items[0]["points"] if items else []

    roles = {"worker": {"resources": {"cpu": 0.5, "memory": "256Mi"}}}
    server.run(sh("exec sleep 600", name="uses", roles=roles), "PROCESSING")
    before = until(used, "its use to be measured", every=0.2)
    server.kill()
    server.start()
    assert used()[: len(before)] == before
    until(lambda: len(used()) > len(before), "another server to go on", every=0.2)
    server.ask("uses", "cancel")
    server.wait_for("uses")
    whole = used()
    assert whole[: len(before)] == before
    assert all(0 <= cpu < 0.6 and 0 < memory < 256 << 20 for _, cpu, memory in whole)
