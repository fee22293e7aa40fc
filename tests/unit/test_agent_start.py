"""The script that runs a user's command in its own image, in the shells that images have."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from support.pod import SHELLS, Pod, until

pytestmark = pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])


def ended(pod: Pod, shell: list[str], *argv: str, **environ: str) -> str:
    """What the script says of a command; it has let nobody wait and ended well itself."""
    pod.open_gate()
    assert pod.start(*argv, shell=shell, environ=environ).wait(30) == 0
    return pod.exit()


@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_exit_code_of_the_command_is_noted(pod: Pod, shell: list[str], code: int) -> None:
    assert ended(pod, shell, "sh", "-c", f"echo out; echo err >&2; exit {code}") == f"{code} 0\n"
    assert pod.output() == b"out\nerr\n"
    assert (pod.task / "begun").exists()


def test_a_command_that_does_not_exist_is_127(pod: Pod, shell: list[str]) -> None:
    assert ended(pod, shell, "no-such-command") == "127 0\n"
    assert b"no-such-command" in pod.output()


def test_a_file_that_cannot_be_executed_is_126(pod: Pod, shell: list[str], tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("text")
    assert ended(pod, shell, str(plain)) == "126 0\n"


def test_words_that_the_shell_knows_are_commands_all_the_same(pod: Pod, shell: list[str]) -> None:
    assert ended(pod, shell, "exit", "3") == "127 0\n"


def test_arguments_arrive_as_they_are(pod: Pod, shell: list[str]) -> None:
    assert ended(pod, shell, "printf", "%s|", "a b", "*", "$HOME", "", 'q"\n') == "0 0\n"
    assert pod.output() == b'a b|*|$HOME||q"\n|'


def test_a_command_that_a_signal_killed_has_its_number(pod: Pod, shell: list[str]) -> None:
    assert ended(pod, shell, "sh", "-c", "kill -SEGV $$") == "139 0\n"
    assert pod.output() == b""


def test_a_command_runs_in_its_folder_with_its_own_environment(
    pod: Pod, shell: list[str], tmp_path: Path
) -> None:
    said = ended(pod, shell, "sh", "-c", 'pwd; echo "$code"; cat', WEFT_CWD=str(tmp_path), code="mine")
    assert said == "0 0\n"
    assert pod.output() == f"{tmp_path}\nmine\n".encode()


def test_a_folder_that_is_missing_is_126_and_named(pod: Pod, shell: list[str]) -> None:
    assert ended(pod, shell, "true", WEFT_CWD="/no/such/folder") == "126 0\n"
    assert b"/no/such/folder" in pod.output()


def test_what_a_command_leaves_running_is_killed_before_its_end_is_told(pod: Pod, shell: list[str]) -> None:
    assert ended(pod, shell, "sh", "-c", "sleep 100 & echo $!; exit 4") == "4 0\n"
    assert _gone(int(pod.output()))


def test_a_command_that_is_stopped_may_end_in_its_own_time(pod: Pod, shell: list[str]) -> None:
    pod.open_gate()
    script = pod.start(
        "sh", "-c", "trap 'echo saved; exit 7' TERM; echo ready; while :; do sleep 0.01; done", shell=shell
    )
    until(lambda: pod.output() == b"ready\n", "ready")
    script.terminate()
    assert script.wait(30) == 0
    assert pod.exit() == "7 0\n"
    assert pod.output().endswith(b"saved\n")


@pytest.mark.parametrize("grace", ["20", "0.1"])
def test_a_shell_that_leads_no_session_stops_its_command_and_no_stranger(
    pod: Pod, shell: list[str], grace: str
) -> None:
    pod.open_gate()
    stranger = subprocess.Popen(["sleep", "100"])
    ignore = "trap '' TERM; " if grace == "0.1" else ""
    script = pod.start(
        "sh",
        "-c",
        f"{ignore}echo $$; exec sleep 100",
        shell=shell,
        environ={"WEFT_GRACE": grace},
        leads=False,
    )
    until(lambda: pod.output().endswith(b"\n"), "ready")
    script.terminate()
    assert script.wait(30) == 0
    assert pod.exit() == ("137 0\n" if ignore else "143 0\n")
    until(lambda: _gone(int(pod.output())), "the command is gone")
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_the_children_of_a_command_are_stopped_with_it(pod: Pod, shell: list[str]) -> None:
    pod.open_gate()
    inner = "trap 'echo inner; exit' TERM; echo ready; while :; do sleep 0.01; done"
    script = pod.start("sh", "-c", f'trap : TERM; sh -c "{inner}" & wait; wait; exit 5', shell=shell)
    until(lambda: pod.output() == b"ready\n", "ready")
    script.terminate()
    assert script.wait(30) == 0
    assert pod.exit() == "5 0\n"
    assert pod.output().endswith(b"inner\n")


def test_a_command_that_will_not_stop_is_killed_after_the_grace(pod: Pod, shell: list[str]) -> None:
    pod.open_gate()
    script = pod.start(
        "sh",
        "-c",
        "trap '' TERM; sleep 100 & echo ready; wait",
        shell=shell,
        environ={"WEFT_GRACE": "0.1"},
    )
    until(lambda: pod.output() == b"ready\n", "ready")
    script.terminate()
    assert script.wait(30) == 0
    assert pod.exit() == "137 0\n"


def test_a_task_that_is_stopped_at_the_gate_never_begins(pod: Pod, shell: list[str]) -> None:
    pod.task.mkdir(parents=True)
    script = pod.start("touch", str(pod.root / "ran"), shell=shell)
    until(lambda: _catches_term(script.pid), "the script waits")
    script.terminate()
    assert script.wait(30) == 0
    assert pod.exit() == "143 0\n"
    assert not (pod.task / "begun").exists()
    assert not (pod.root / "ran").exists()


def test_a_container_that_is_started_again_says_that_it_was_killed(pod: Pod, shell: list[str]) -> None:
    pod.open_gate()
    script = pod.start("sh", "-c", "echo ready; sleep 100", shell=shell)
    until(lambda: pod.output() == b"ready\n", "ready")
    script.kill()
    script.wait(30)
    assert ended(pod, shell, "touch", str(pod.root / "ran")).startswith("killed ")
    assert not (pod.root / "ran").exists()


def test_how_it_ended_is_not_told_twice(pod: Pod, shell: list[str]) -> None:
    assert ended(pod, shell, "sh", "-c", "exit 3") == "3 0\n"
    assert ended(pod, shell, "sh", "-c", "exit 4") == "3 0\n"


def _catches_term(pid: int) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) & 1 << signal.SIGTERM - 1)
    return False


def _gone(pid: int) -> bool:
    """It has ended; somebody may have to reap it yet."""
    try:
        return b") Z" in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return not os.path.exists(f"/proc/{pid}")
