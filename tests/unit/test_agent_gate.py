"""The gate at which a task's container waits until everything is there that the task needs."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from support.pod import Pod, archive, until

NOWHERE = "never.invalid"


def link(name: str, to: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = tarfile.SYMTYPE
    info.linkname = to
    return info


def is_open(pod: Pod) -> bool:
    return (pod.task / "go").exists()


class TestWhatIsThere:
    def test_folders_and_code_are_there_when_it_opens(self, pod: Pod) -> None:
        (pod.code / "code.tar.gz").write_bytes(archive({"train.py": b"print(1)\n", "lib/a.txt": b"a"}))
        pod.agent(wait=False)
        until(lambda: is_open(pod), "the gate opens")
        assert (pod.root / "code/train.py").read_bytes() == b"print(1)\n"
        assert (pod.root / "code/lib/a.txt").read_bytes() == b"a"
        for name in ("results", "checkpoints", "logs", "data", "home"):
            assert (pod.root / name).is_dir()

    def test_any_interpreter_can_import_weft_from_there(self, pod: Pod, tmp_path: Path) -> None:
        pod.agent(wait=False)
        until(lambda: is_open(pod), "the gate opens")
        offered = (
            "import weft; [getattr(weft, n) for n in weft.__all__ if n != 'ps']; import weft.runtime.mpi"
        )
        subprocess.run(
            [sys.executable, "-S", "-c", f"{offered}; print(weft.__file__)"],
            env={"PYTHONPATH": str(pod.root / "lib")},
            cwd=tmp_path,
            check=True,
        )
        assert not (pod.root / "lib/weft/runtime/agent").exists()

    def test_code_that_reaches_outside_is_refused_and_the_gate_stays_closed(self, pod: Pod) -> None:
        (pod.code / "code.tar.gz").write_bytes(archive({"../../escaped": b"x"}))
        pod.agent()
        with pod.stream() as stream:
            state = stream.until(lambda s: s.states).states[0]
        assert state["state"] == "waiting"
        assert "the code cannot be unpacked" in state["why"] == state["problem"]
        assert not is_open(pod)
        assert not (pod.root.parent / "escaped").exists()
        assert list((pod.root / "code").iterdir()) == []

    def test_an_agent_that_takes_over_changes_nothing_behind_an_open_gate(self, pod: Pod) -> None:
        (pod.code / "code.tar.gz").write_bytes(archive({"train.py": b"old"}))
        first = pod.agent(wait=False)
        until(lambda: is_open(pod), "the gate opens")
        first.kill()
        first.wait()
        (pod.root / "code/train.py").write_bytes(b"mine")
        pod.agent()
        assert (pod.root / "code/train.py").read_bytes() == b"mine"


class TestHosts:
    def test_names_that_are_known_let_it_open(self, pod: Pod) -> None:
        pod.agent(wait=False, **{"await": ["localhost", "127.0.0.1"]})
        until(lambda: is_open(pod), "the gate opens")

    def test_a_name_that_nobody_knows_keeps_it_closed_and_is_told(self, pod: Pod) -> None:
        pod.agent(**{"await": ["localhost", NOWHERE]})
        with pod.stream() as stream:
            stream.until(
                lambda s: s.states and s.states[-1]["why"] == f"waiting for the address of {NOWHERE}"
            )
        assert stream.states[-1]["problem"] is None
        assert not is_open(pod)

    def test_a_task_that_is_stopped_at_the_gate_is_told(self, pod: Pod) -> None:
        pod.agent(**{"await": [NOWHERE]})
        (pod.task / "exit").write_text("143 0\n")
        with pod.stream() as stream:
            state = stream.to_the_end()
        assert (state["code"], state["begun"], state["why"]) == (143, None, None)
        assert not is_open(pod)

    def test_the_addresses_are_replaced_whole(self, pod: Pod) -> None:
        pod.agent()
        for hosts in (b'{"worker": ["a:1", "b:1"]}', b'{"worker": ["a:1"]}'):
            assert pod.ask("PUT", "/v1/hosts", hosts) == (204, b"")
            assert (pod.task / "hosts.json").read_bytes() == hosts
        for bad in (b'{"worker": ', b"[]", b""):
            status, said = pod.ask("PUT", "/v1/hosts", bad)
            assert status == 400
            assert b"problem" in said
        assert (pod.task / "hosts.json").read_bytes() == hosts


class TestPushes:
    def test_it_opens_when_every_folder_was_sent(self, pod: Pod) -> None:
        pod.agent(pushes=["code", "checkpoints"])
        with pod.stream() as stream:
            stream.until(lambda s: s.states)
            assert stream.states[0]["why"] == "waiting to be sent: code, checkpoints"
            assert pod.ask("PUT", "/v1/folder?folder=checkpoints", archive({"step-3/w": b"3"}))[0] == 204
            stream.until(lambda s: s.states[-1]["why"] == "waiting to be sent: code")
            assert not is_open(pod)
            assert pod.ask("PUT", "/v1/folder?folder=code", archive({"train.py": b"1"}))[0] == 204
            until(lambda: is_open(pod), "the gate opens")
        assert (pod.root / "checkpoints/step-3/w").read_bytes() == b"3"
        assert (pod.root / "code/train.py").read_bytes() == b"1"

    def test_half_an_archive_is_refused_and_the_gate_stays_closed(self, pod: Pod) -> None:
        pod.agent(pushes=["code"])
        whole = archive({"train.py": os.urandom(5000), "more.py": os.urandom(5000)})
        for half in (whole[: len(whole) // 2], whole[:-4], b"", b"text", io.BytesIO(whole).read(20)):
            status, said = pod.ask("PUT", "/v1/folder?folder=code", half)
            assert (status, b"cannot be unpacked" in said) == (400, True), half[:30]
        assert list((pod.root / "code").iterdir()) == []
        assert not is_open(pod)
        assert pod.ask("PUT", "/v1/folder?folder=code", whole)[0] == 204
        until(lambda: is_open(pod), "the gate opens")
        assert {path.name for path in (pod.root / "code").iterdir()} == {"train.py", "more.py"}
        assert not list(pod.root.glob("incoming*"))

    def test_an_archive_that_reaches_outside_is_refused_as_a_whole(self, pod: Pod) -> None:
        pod.agent(pushes=["code"])
        for bad in (
            {"good": b"", "../bad": b"x"},
            {"good": b"", "bad": link("bad", "/etc/passwd")},
            {"good": b"", "bad": link("bad", "../../..")},
            {"bad": link("bad", ".."), "bad/x": b"x"},
        ):
            status, _ = pod.ask("PUT", "/v1/folder?folder=code", archive(bad))
            assert status == 400, bad
        assert list((pod.root / "code").iterdir()) == []
        assert not list(pod.root.glob("**/bad"))
        assert not is_open(pod)

    def test_what_was_sent_is_known_to_an_agent_that_takes_over(self, pod: Pod) -> None:
        first = pod.agent(pushes=["code", "checkpoints"])
        assert pod.ask("PUT", "/v1/folder?folder=code", archive({"train.py": b"1"}))[0] == 204
        first.kill()
        first.wait()
        pod.agent(pushes=["code", "checkpoints"])
        assert pod.ask("PUT", "/v1/folder?folder=checkpoints", archive({}))[0] == 204
        until(lambda: is_open(pod), "the gate opens")
        assert (pod.root / "code/train.py").read_bytes() == b"1"

    def test_what_is_sent_again_changes_nothing_once_the_task_has_begun(self, pod: Pod) -> None:
        pod.agent(pushes=["code"])
        for content in (b"1", b"2"):
            assert pod.ask("PUT", "/v1/folder?folder=code", archive({"train.py": content}))[0] == 204
            until(lambda: is_open(pod), "the gate opens")
        assert (pod.root / "code/train.py").read_bytes() == b"1"
        assert pod.ask("PUT", "/v1/folder?folder=checkpoints", archive({}))[0] == 409
