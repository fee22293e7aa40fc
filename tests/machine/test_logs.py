"""Logs: merged or single, from any offset, live, after crashes, and whatever a task prints."""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time

import pytest
from harness import Server, python, sh, until

pytestmark = pytest.mark.machine


def test_logs_of_a_gang_are_merged_by_time_or_read_alone(server: Server):
    script = "for i in 1 2 3; do sleep 0.1; echo $WEFT_TASK $i; [ $RANK = 0 ] && sleep 0.05; done; true"
    server.run(sh(script, name="two", roles={"worker": {"replicas": 2}}))
    merged = server.logs("two")
    assert [line["time"] for line in merged] == sorted(line["time"] for line in merged)
    assert {line["task"] for line in merged} == {"worker-0", "worker-1"}
    assert len(merged) == 6
    for task in ("worker-0", "worker-1"):
        assert server.text("two", task=task) == [f"{task} {i}" for i in (1, 2, 3)]
        assert [line["text"] for line in merged if line["task"] == task] == server.text("two", task=task)
    wrong = server.get("/v1/jobs/two/logs", task="worker-9")
    assert wrong.status == 404
    assert "worker-0" in wrong.json["detail"]


def test_a_log_is_read_from_any_offset(server: Server):
    server.run(sh("seq 1 2000", name="numbers"))
    everything = server.logs("numbers")
    assert [line["text"] for line in everything] == [str(n) for n in range(1, 2001)]
    for index in (0, 1, 999, 1999):
        line = everything[index]
        assert server.logs("numbers", task="worker-0", offset=line["offset"])[0] == line
    page = server.get("/v1/jobs/numbers/logs", offset=0, limit=1000).json
    assert len(page["items"]) < 2000
    following = server.logs("numbers", offset=page["next"]["worker-0"])
    assert following[0]["text"] == str(len(page["items"]) + 1)
    assert server.text("numbers", tail=3) == ["1998", "1999", "2000"]
    assert server.logs("numbers", offset=everything[-1]["offset"] + 5) == []


def test_a_log_is_followed_live_to_its_end(server: Server, tmp_path):
    go = tmp_path / "go"
    script = f"echo one; while [ ! -e {go} ]; do sleep 0.01; done; echo two; printf unfinished"
    name = server.submit(sh(script, name="live"))
    seen = []
    for event in server.stream(f"/v1/jobs/{name}/logs"):
        if event.event == "end":
            break
        seen += [line["text"] for line in event.data["items"]]
        if seen == ["one"]:
            go.touch()
    assert seen == ["one", "two", "unfinished"]


def test_following_begins_with_the_tail_asked_for(server: Server):
    server.run(sh("seq 1 100", name="numbers"))
    events = list(server.stream("/v1/jobs/numbers/logs", tail=2))
    assert [line["text"] for event in events[:-1] for line in event.data["items"]] == ["99", "100"]
    assert events[-1].event == "end"


def test_restarts_append_and_offsets_go_on(server: Server):
    script = 'echo run $WEFT_RESTARTS; [ "$WEFT_RESTARTS" = 2 ]'
    server.run(sh(script, name="again", restart={"policy": "on-failure", "backoff": 0.02}))
    assert [(line["offset"], line["text"]) for line in server.logs("again")] == [
        (0, "run 0"), (6, "run 1"), (12, "run 2"),
    ]  # fmt: skip


def test_escape_bytes_carriage_returns_and_broken_utf8_arrive(server: Server):
    source = r"""
import sys
out = sys.stdout.buffer
out.write(b"\x1b[31mred\x1b[0m\n")
out.write(b"bad \xff\xfe bytes\n")
out.write("grüße\n".encode())
out.write(b"10%\r50%\r100%\n")
out.write(b"windows\r\n")
out.write(b"nul \x00 here\n")
"""
    server.run(python(source, name="bytes"))
    assert server.text("bytes") == [
        "\x1b[31mred\x1b[0m", "bad \ufffd\ufffd bytes", "grüße", "10%", "50%", "100%", "windows", "nul \x00 here",
    ]  # fmt: skip


def test_a_line_of_five_megabytes_is_whole_when_its_pieces_are_joined(server: Server):
    server.run(python("print('x' * 5_000_000)\nprint('after')", name="wide"))
    lines = server.logs("wide", limit=8 << 20)
    assert lines[-1]["text"] == "after"
    assert "".join(line["text"] for line in lines[:-1]) == "x" * 5_000_000
    followed = [e for e in server.stream("/v1/jobs/wide/logs") if e.event == "lines"]
    assert sum(len(line["text"]) for e in followed for line in e.data["items"]) == 5_000_005


def test_a_task_that_prints_as_fast_as_it_can_hurts_neither_server_nor_disk(server: Server):
    name = server.submit(sh("yes 'a line of a log that never ends'", name="flood", deadline=5, grace=1))
    server.wait_for(name, "PROCESSING")
    follower = follow_from_outside(server, name)
    times = []
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        before = time.monotonic()
        assert server.get("/healthz").status == 200
        times.append(time.monotonic() - before)
        time.sleep(0.01)
    server.wait_for(name, "FAILED")
    assert follower.poll() is None, "whoever follows was sent away"
    follower.kill()
    follower.wait()
    p95 = statistics.quantiles(times, n=20)[-1]
    assert p95 < 0.1, f"p95 {p95 * 1000:.0f} ms"
    folder = server.folder(name)
    kept = sum(file.stat().st_size for file in folder.rglob("log.*"))
    assert kept <= 80 << 20
    lines = server.logs(name, tail=5)
    assert lines[-2]["text"] == "a line of a log that never ends"
    first = server.logs(name, offset=0, limit=100_000)[0]
    if first["offset"]:  # the oldest part has been rotated away, and offsets still count from the first byte
        width = len("a line of a log that never ends\n")
        aligned = server.logs(name, offset=(first["offset"] // width + 1) * width, limit=1000)[0]
        assert aligned["text"] == "a line of a log that never ends"
        assert aligned["offset"] % width == 0


def follow_from_outside(server: Server, name: str) -> subprocess.Popen[bytes]:
    """Someone watching the log from another process, until its end."""
    source = (
        "import sys, urllib.request as u; r = u.Request(sys.argv[1], headers={'Authorization': 'Bearer ' + sys.argv[2]});"
        "f = u.urlopen(r)\nwhile f.read1(1 << 20): pass"
    )
    url = f"{server.facts()['address']}/v1/jobs/{name}/logs?follow=true&tail=10"
    return subprocess.Popen([sys.executable, "-c", source, url, server.token])


def test_rotation_drops_the_oldest_and_keeps_offsets(server: Server):
    lines = 2_500_000  # of 40 bytes: 100 MB
    server.run(
        sh(
            f"yes 0123456789012345678901234567890123456 | head -n {lines} | cat -n | cut -c1-39",
            name="rolled",
        ),
        timeout=60,
    )
    kept = server.logs("rolled", offset=0, limit=1000)
    assert kept[0]["offset"] > 0
    last = server.logs("rolled", tail=1)[0]
    assert last["text"].split()[0] == str(lines)
    middle = (last["offset"] + kept[0]["offset"]) // 2 // 40 * 40
    assert server.logs("rolled", offset=middle, limit=1000)[0]["offset"] == middle
    size = sum(file.stat().st_size for file in server.folder("rolled").rglob("log.*"))
    assert 40 << 20 < size <= 80 << 20


def test_a_log_is_there_after_the_server_was_killed_and_restarted(server: Server):
    name = server.submit(sh("echo before; sleep 0.5; echo after", name="crossing"))
    server.printed_line(name, "before")
    server.restart()
    server.wait_for(name, "COMPLETED")
    assert server.text(name) == ["before", "after"]
    server.restart()
    assert server.text(name) == ["before", "after"]


def test_standard_error_is_part_of_the_log_in_order(server: Server):
    server.run(sh("echo a; echo b >&2; echo c; echo d >&2", name="both"))
    assert server.text("both") == ["a", "b", "c", "d"]


def test_many_followers_of_one_job_all_see_all(server: Server, tmp_path):
    go = tmp_path / "go"
    name = server.submit(sh(f"while [ ! -e {go} ]; do sleep 0.01; done; seq 1 200", name="popular"))
    server.wait_for(name, "PROCESSING")
    seen: list[list[str]] = [[] for _ in range(10)]

    def follow(mine: list[str]) -> None:
        for event in server.stream(f"/v1/jobs/{name}/logs"):
            if event.event == "lines":
                mine += [line["text"] for line in event.data["items"]]

    threads = [threading.Thread(target=follow, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    go.touch()
    for thread in threads:
        thread.join(20)
    assert seen == [[str(n) for n in range(1, 201)]] * 10
    until(lambda: server.status(name)["state"] == "COMPLETED", "its end")
