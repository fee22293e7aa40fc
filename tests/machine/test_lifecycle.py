"""A job's life on a real server, from submitted to finished."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from harness import Server, alive, package, python, sh, until

pytestmark = pytest.mark.machine

WHOLE_STORY = ["PENDING", "QUEUED", "DEPLOYING", "PROCESSING", "STORING", "COMPLETED"]


def test_a_job_goes_through_every_state_once_and_keeps_its_history(server: Server):
    done = server.run(sh("echo hello", name="hello"))
    assert done["status"]["state"] == "COMPLETED"
    assert server.states("hello") == WHOLE_STORY
    history = server.history("hello")
    assert [event["seq"] for event in history] == sorted(event["seq"] for event in history)
    assert [event["time"] for event in history] == sorted(event["time"] for event in history)
    assert all(event["cause"] and event["actor"] for event in history)
    assert server.text("hello") == ["hello"]
    (task,) = done["status"]["tasks"]
    assert task["state"] == "SUCCEEDED"
    assert task["exit"]["code"] == 0
    assert server.reserved() == []


def test_a_job_with_code_downloads_it_and_runs_in_it(server: Server):
    digest = server.put_package(
        package({"sub/run.sh": "#!/bin/sh\npwd; cat words", "sub/words": "from the package"})[1]
    )
    code = {"package": digest, "subdir": "sub"}
    done = server.run(sh("./run.sh", name="coded", code=code))
    assert done["status"]["state"] == "COMPLETED"
    assert server.states("coded") == [*WHOLE_STORY[:3], "DOWNLOADING", *WHOLE_STORY[3:]]
    assert server.text("coded") == [f"{server.folder('coded')}/code/sub", "from the package"]


def test_every_variable_of_the_contract_is_there(server: Server):
    show = "import os, json; print(json.dumps(dict(os.environ)))"
    roles = {"ps": {"service": True}, "worker": {"replicas": 2}}
    document = python(show, name="vars", roles=roles, env={"MINE": "yes", "NUMBER": 3})
    uid = server.run(document)["metadata"]["uid"]
    folder = f"{server.home}/jobs/{uid}"
    environments = {line["task"]: json.loads(line["text"]) for line in server.logs("vars")}
    assert set(environments) >= {"worker-0", "worker-1"}
    for index in (0, 1):
        found = environments[f"worker-{index}"]
        hosts = json.loads(found["WEFT_HOSTS"])
        assert {role: len(places) for role, places in hosts.items()} == {"ps": 1, "worker": 2}
        assert len({*hosts["ps"], *hosts["worker"]}) == 3
        expected = {
            "WEFT_JOB": "vars",
            "WEFT_JOB_UID": uid,
            "WEFT_TASK": f"worker-{index}",
            "WEFT_ROLE": "worker",
            "WEFT_INDEX": str(index),
            "WEFT_RANK": str(index),
            "WEFT_WORLD_SIZE": "3",
            "WEFT_RESTARTS": "0",
            "WEFT_LAUNCH": "1",
            "WEFT_NODE": "local",
            "WEFT_GPUS": "",
            "DATA_DIR": f"{server.home}/data",
            "RESULT_DIR": f"{folder}/results",
            "CHECKPOINT_DIR": f"{folder}/checkpoints",
            "MODEL_DIR": f"{folder}/code",
            "LOG_DIR": f"{folder}/logs",
            "RANK": str(index),
            "WORLD_SIZE": "3",
            "LOCAL_RANK": str(index),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": hosts["worker"][0].rpartition(":")[2],
            "LEARNER_ID": str(index + 1),
            "NUM_LEARNERS": "3",
            "GPU_COUNT": "0",
            "TRAINING_ID": "vars",
            "MINE": "yes",
            "NUMBER": "3",
        }
        assert {name: found.get(name) for name in expected} == expected
        assert Path(found["WEFT_METRICS_FILE"]).parent.parent == Path(folder)
        assert "WEFT_HOME" not in found


def test_the_servers_own_environment_stays_with_the_server(new_server):
    server = new_server("--cpu", "4", AWS_SECRET_ACCESS_KEY="do-not-leak")
    server.run(sh("env", name="env"))
    assert "do-not-leak" not in "\n".join(server.text("env"))


def test_a_process_has_its_own_session_no_input_a_sane_umask_and_default_signals(server: Server):
    source = (
        "import os, signal, sys; print(os.getsid(0) == os.getpgid(0) == os.getpid(), sys.stdin.read() == '', "
        "oct(os.umask(0)), signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, os.getcwd());"
        "print(sorted(os.listdir('/proc/self/fd')))"
    )
    server.run(python(source, name="self"))
    facts, files = server.text("self")
    assert facts == f"True True 0o22 True {server.folder('self')}/code"
    assert files == str(["0", "1", "2", "3"])  # 3 is the listing itself: nothing of the supervisor leaks in
    blocked = next(line for line in _proc_status(server) if line.startswith("SigBlk"))
    assert int(blocked.split()[1], 16) == 0


def _proc_status(server: Server) -> list[str]:
    server.run(sh("cat /proc/self/status", name="signals"))
    return server.text("signals")


def test_tmpdir_is_private_to_a_task_and_emptied_after_it(server: Server):
    script = "echo $TMPDIR; ls -A $TMPDIR; touch $TMPDIR/mine $TMPDIR/.hidden; mkdir -p $TMPDIR/a/b"
    server.run(sh(script, name="first", roles={"worker": {"replicas": 2}}))
    found = {task: server.text("first", task=task) for task in ("worker-0", "worker-1")}
    assert [lines[1:] for lines in found.values()] == [[], []]
    assert server.home.stat().st_mode & 0o777 == 0o700
    folders = {lines[0] for lines in found.values()}
    assert len(folders) == 2
    assert not any(Path(folder).is_dir() and any(Path(folder).iterdir()) for folder in folders)
    server.run(sh(script, name="second"))
    assert server.text("second")[1:] == []


def test_background_children_end_with_their_task(server: Server):
    script = "sleep 1000 & echo $!; (sleep 1001 & echo $!); exec 1>&- 2>&-"
    done = server.run(sh(script, name="parent"))
    assert done["status"]["state"] == "COMPLETED"
    children = [int(line) for line in server.text("parent")]
    assert len(children) == 2
    until(lambda: not any(alive(pid) for pid in children), "the children to be gone", 5)


def test_children_that_hold_the_output_do_not_hold_the_job(server: Server):
    """A daemon keeps the task's stdout open; the task is over all the same."""
    done = server.run(sh("sleep 1000 & echo bye", name="holder"), timeout=90)
    assert done["status"]["state"] == "COMPLETED"
    assert server.text("holder") == ["bye"]


def test_results_are_listed_and_fetched_as_one_archive(server: Server):
    script = (
        "cd $RESULT_DIR; mkdir -p deep/er; echo model > model.bin; echo x > deep/er/file.txt;"
        "echo no > scratch.tmp; ln -s /etc/passwd link"
    )
    done = server.run(sh(script, name="keeps", results={"include": ["*.bin", "deep/**"]}))
    assert done["status"]["results"] == {"files": 2, "bytes": 8}
    found = server.get("/v1/jobs/keeps/results").json
    assert [item["path"] for item in found["items"]] == ["model.bin", "deep/er/file.txt"]
    assert found["bytes"] == 8
    archive = server.get("/v1/jobs/keeps/results.tar")
    assert archive.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(archive.body)) as tar:
        assert {m.name: tar.extractfile(m).read() for m in tar} == {
            "deep/er/file.txt": b"x\n",
            "model.bin": b"model\n",
        }


def test_results_and_checkpoints_outlive_restarts_of_task_and_server(server: Server):
    script = (
        "echo $WEFT_LAUNCH/$WEFT_RESTARTS >> $CHECKPOINT_DIR/seen; echo $WEFT_LAUNCH >> $RESULT_DIR/out;"
        '[ "$WEFT_RESTARTS" = 2 ] || exit 7; cat $CHECKPOINT_DIR/seen'
    )
    restart = {"policy": "on-failure", "max": 3, "backoff": 0.05}
    done = server.run(sh(script, name="again", restart=restart))
    assert done["status"]["state"] == "COMPLETED"
    assert done["status"]["restarts"] == 2
    assert server.text("again") == ["1/0", "2/1", "3/2"]
    server.restart()
    archive = server.get("/v1/jobs/again/results.tar").body
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert tar.extractfile("out").read() == b"1\n2\n3\n"


def test_the_interpreter_of_the_server_is_python_and_imports_weft(server: Server):
    server.run(python("import sys, weft; print(sys.prefix); print(weft.__name__)", name="imports"))
    assert server.text("imports")[1] == "weft"
    assert Path(server.text("imports")[0]) == Path(os.sys.prefix)


def test_top_shows_what_a_running_task_uses(server: Server):
    source = "x = bytearray(50_000_000); print('ready', flush=True)\nwhile True: pass"
    name = server.submit(python(source, name="busy", grace=0.1))
    server.printed_line(name, "ready")
    (task,) = until(lambda: [t for t in server.get("/v1/top").json["items"] if t["memory"] > 5e7], "usage")
    assert (task["job"], task["task"], task["pid"]) == ("busy", "worker-0", server.pid_of("busy"))
    assert until(lambda: server.get("/v1/top").json["items"][0]["cpu"] > 0.3, "CPU use", every=0.2)
    server.ask(name, "cancel")
    server.wait_for(name, "CANCELLED")
