"""What a control plane hears of a task: output, metrics and state, from any offset, through agents that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.pod import Pod, until

MIB = 1 << 20
GO_ON = "while [ ! -e go-on ]; do sleep 0.01; done"


def begin(pod: Pod, command: str) -> subprocess.Popen[bytes]:
    return pod.start("sh", "-c", command, environ={"WEFT_CWD": str(pod.root)})


def go_on(pod: Pod) -> None:
    (pod.root / "go-on").touch()


class TestAnEnd:
    def test_a_task_is_told_from_its_begin_to_its_end(self, pod: Pod) -> None:
        before = time.time()
        pod.agent()
        script = begin(pod, f"echo one; {GO_ON}; echo two; exit 3")
        with pod.stream() as stream:
            stream.until(lambda s: s.log == b"one\n" and s.states[-1]["state"] == "running")
            go_on(pod)
            end = stream.to_the_end()
        assert stream.log == b"one\ntwo\n"
        assert (end["code"], end["oom"], end["killed"], end["notes"]) == (3, False, False, [])
        assert before - 1 <= end["begun"] <= end["ended"] <= time.time()
        assert end["heard"] >= end["begun"]
        assert stream.frames[0]["kind"] == "state"
        assert {frame["time"] >= before for frame in stream.frames if frame["kind"] == "log"} == {True}
        assert script.wait(30) == 0

    def test_one_that_was_killed_with_its_container_says_so(self, pod: Pod) -> None:
        pod.agent()
        script = begin(pod, "echo ready; sleep 100")
        with pod.stream() as stream:
            stream.until(lambda s: s.log == b"ready\n")
            script.kill()
            script.wait()
            begin(pod, "true")
            end = stream.to_the_end()
        assert (end["code"], end["killed"]) == (None, True)

    def test_kills_for_want_of_memory_are_told(self, pod: Pod) -> None:
        pod.agent()
        (pod.task / "begun").touch()
        (pod.task / "exit").write_text("137 2\n")
        with pod.stream() as stream:
            end = stream.to_the_end()
        assert (end["code"], end["oom"]) == (137, True)

    @pytest.mark.parametrize(
        ("used", "told"),
        [("1048576 2500000\n", (1048576, 2.5)), ("0 0\n", (None, None)), ("what?\n", (None, None))],
    )
    def test_what_the_container_used_is_told_at_the_end(
        self, pod: Pod, used: str, told: tuple[int | None, float | None]
    ) -> None:
        pod.agent()
        (pod.task / "begun").touch()
        (pod.task / "used").write_text(used)
        (pod.task / "exit").write_text("0 0\n")
        with pod.stream() as stream:
            end = stream.to_the_end()
        assert (end.get("peak"), end.get("seconds")) == told

    def test_half_a_line_is_no_exit_and_nonsense_is_no_code(self, pod: Pod) -> None:
        pod.agent()
        (pod.task / "begun").touch()
        (pod.task / "exit").write_text("1")
        with pod.stream() as stream:
            stream.until(lambda s: s.states[-1:] and s.states[-1]["state"] == "running")
            (pod.task / "exit").write_text("what?\n")
            assert stream.to_the_end()["code"] is None

    def test_the_agent_stays_until_it_is_told_that_all_is_done(self, pod: Pod) -> None:
        agent = pod.agent()
        agent.terminate()
        begin(pod, "echo out")
        with pod.stream() as stream:
            stream.to_the_end()
            agent.terminate()
            assert pod.ask("POST", "/v1/done") == (204, b"")
        assert agent.wait(30) == 0
        assert pod.printed.read_bytes() == b"out\n"


class TestOutput:
    def test_it_can_be_read_from_any_offset(self, pod: Pod) -> None:
        pod.agent()
        begin(pod, "seq 1000")
        with pod.stream() as stream:
            stream.to_the_end()
        whole = "".join(f"{n}\n" for n in range(1, 1001)).encode()
        assert stream.log == whole
        for offset in (1, 1000, len(whole) - 1, len(whole)):
            with pod.stream(log=offset) as again:
                again.to_the_end()
            assert again.log == whole[offset:]
            assert [f["offset"] for f in again.frames if f["kind"] == "log"][:1] in ([offset], [])

    def test_nothing_is_missing_or_twice_when_agents_are_killed(self, pod: Pod) -> None:
        program = (
            "import os, sys, time\n"
            "for n in range(40000):\n"
            "    print(n, 'x' * 20)\n"
            "    if n % 10000 == 9999:\n"
            "        sys.stdout.flush()\n"
            "        while not os.path.exists(f'go-{n}'): time.sleep(0.002)\n"
        )
        agent = pod.agent()
        pod.start(sys.executable, "-S", "-c", program, environ={"WEFT_CWD": str(pod.root)})
        read = bytearray()
        for n in (9999, 19999, 29999):
            with pod.stream(log=len(read)) as stream:
                stream.until(lambda s: len(s.log) > 20000)
                (pod.root / f"go-{n}").touch()
                agent.kill()
                agent.wait()
            read += stream.log
            agent = pod.agent()
        (pod.root / "go-39999").touch()
        with pod.stream(log=len(read)) as stream:
            stream.to_the_end()
        assert read + stream.log == "".join(f"{n} {'x' * 20}\n" for n in range(40000)).encode()

    def test_what_was_sent_is_freed_on_the_disk(self, pod: Pod) -> None:
        agent = pod.agent()
        begin(pod, f"head -c {24 * MIB} /dev/zero | tr '\\0' x; echo; {GO_ON}; echo end")
        output = pod.task / "output"
        with pod.stream() as stream:
            stream.until(lambda s: len(s.log) == 24 * MIB + 1)
            until(lambda: output.stat().st_blocks * 512 <= 10 * MIB, "the disk has it back")
        assert output.stat().st_size == 24 * MIB + 1
        assert stream.log.count(b"x") == 24 * MIB
        agent.kill()
        agent.wait()
        pod.agent()
        go_on(pod)
        with pod.stream(log=5 * MIB) as late:
            late.to_the_end()
        first = next(frame for frame in late.frames if frame["kind"] == "log")
        assert first["offset"] >= 15 * MIB
        assert set(late.log) == set(b"xend\n")

    def test_the_oldest_is_left_out_when_too_much_waits(self, pod: Pod) -> None:
        kept = 1 * MIB
        pod.agent(output={"kept": kept, "rate": MIB})
        begin(pod, "seq 400000")
        size = sum(len(f"{n}\n") for n in range(1, 400001))
        until(lambda: pod.exit(), "the task has ended")
        with pod.stream() as stream:
            stream.to_the_end()
        first = next(frame for frame in stream.frames if frame["kind"] == "log")
        assert size - kept <= first["offset"] <= size - kept // 2
        lines = stream.log.splitlines()
        assert lines == [b"%d" % n for n in range(400001 - len(lines), 400001)]

    def test_an_agent_whose_own_output_nobody_reads_goes_on(self, pod: Pod) -> None:
        agent = pod.agent(stdout=subprocess.PIPE)
        begin(pod, "seq 100000")
        with pod.stream() as stream:
            stream.to_the_end()
        assert agent.stdout is not None
        agent.stdout.close()
        assert stream.log.endswith(b"100000\n")


class TestMetrics:
    def test_only_whole_lines_are_sent_and_from_any_offset(self, pod: Pod) -> None:
        pod.agent()
        line = b'{"step":1,"time":1.0,"values":{"loss":0.5}}\n'
        begin(pod, GO_ON)
        with pod.stream() as stream, (pod.task / "metrics.jsonl").open("ab", buffering=0) as file:
            file.write(line + line[:10])
            stream.until(lambda s: s.metrics == line)
            file.write(line[10:] + line[:5])
            stream.until(lambda s: len(s.metrics) >= 2 * len(line))
            go_on(pod)
            stream.to_the_end()
        assert stream.metrics == 2 * line
        with pod.stream(metrics=len(line)) as again:
            again.to_the_end()
        assert again.metrics == line

    def test_a_line_too_long_for_a_metric_is_left_out(self, pod: Pod) -> None:
        pod.agent()
        (pod.task / "metrics.jsonl").write_bytes(b"{}\n" + b"x" * (5 * MIB // 2) + b"\n{}\n")
        begin(pod, "true")
        with pod.stream() as stream:
            stream.to_the_end()
        assert stream.metrics == b"{}\n{}\n"
        last = [frame for frame in stream.frames if frame["kind"] == "metrics"][-1]
        assert last["offset"] + last["size"] == (pod.task / "metrics.jsonl").stat().st_size

    def test_they_are_collected_from_output_and_files_until_the_end(self, pod: Pod) -> None:
        sources = [
            {"source": "log"},
            {"source": "file", "path": "m.jsonl"},
            {"source": "regex", "pattern": "("},
        ]
        pod.agent(metrics=sources)
        begin(
            pod,
            "echo step=1 loss=0.5; echo '{\"step\": 2, \"acc\": 1}' > logs/m.jsonl; printf 'step=3 loss=0.25'",
        )
        with pod.stream() as stream:
            end = stream.to_the_end()
        points = [json.loads(line) for line in stream.metrics.splitlines()]
        assert {(p["step"], *p["values"].items()) for p in points} == {
            (1, ("loss", 0.5)),
            (2, ("acc", 1)),
            (3, ("loss", 0.25)),
        }
        assert len(end["notes"]) == 1
        assert "not collected" in end["notes"][0]

    def test_an_agent_that_takes_over_collects_on_from_the_same_line(self, pod: Pod) -> None:
        sources = [{"source": "log"}]
        agent = pod.agent(metrics=sources)
        begin(pod, f"echo loss=1; printf 'lo'; {GO_ON}; echo ss=2")
        until(lambda: pod.output() == b"loss=1\nlo", "half a line")
        until(lambda: (pod.task / "collected").read_bytes() == b"%020d\n" % 7, "the first was collected")
        agent.kill()
        agent.wait()
        go_on(pod)
        pod.agent(metrics=sources)
        with pod.stream() as stream:
            stream.to_the_end()
        values = [json.loads(line)["values"] for line in stream.metrics.splitlines()]
        assert values == [{"loss": 1}, {"loss": 2}]


class TestState:
    def test_the_url_and_the_use_of_a_task_are_told(self, pod: Pod) -> None:
        pod.agent()
        begin(pod, GO_ON)
        with pod.stream() as stream:
            stream.until(lambda s: s.states[-1:] and s.states[-1]["state"] == "running")
            assert (stream.states[-1]["url"], stream.states[-1]["active"]) == (None, 0)
            (pod.task / "active").touch()
            os.utime(pod.task / "active", (1000, 1000))
            (pod.task / "url.part").write_text("http://here:1/?token=t")
            (pod.task / "url.part").rename(pod.task / "url")
            stream.until(lambda s: s.states[-1]["url"])
            assert stream.states[-1]["url"] == "http://here:1/?token=t"
            assert stream.states[-1]["active"] == 1000
            go_on(pod)
            stream.to_the_end()

    def test_what_a_task_puts_in_the_place_of_weft_files_harms_nobody(self, pod: Pod) -> None:
        pod.agent()
        secret = Path(pod.token / "token")
        begin(
            pod,
            f"mkfifo task/metrics.jsonl; ln -s {secret} task/url; ln -s {secret} task/hosts.json;"
            f" rm task/output; ln -s {secret} task/output; echo unheard; exit 2",
        )
        with pod.stream() as stream:
            end = stream.to_the_end()
        assert (end["code"], end["url"], stream.metrics) == (2, None, b"")
        assert pod.ask("PUT", "/v1/hosts", b"{}")[0] == 204
        assert secret.read_text() == "right\n"

    def test_an_agent_can_be_stopped_for_a_while(self, pod: Pod) -> None:
        agent = pod.agent()
        begin(pod, f"seq 1000; {GO_ON}; seq 1000")
        with pod.stream() as stream:
            stream.until(lambda s: s.log.count(b"\n") == 1000)
            agent.send_signal(signal.SIGSTOP)
            go_on(pod)
            until(lambda: pod.exit(), "the task ends by itself")
            agent.send_signal(signal.SIGCONT)
            stream.to_the_end()
        assert stream.log.count(b"\n") == 2000
