"""`weft.on_preempt` and `weft.stopping`: what a process does when it is told to stop. Each case is a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from weft.runtime import preempt

SOURCE = Path(__file__).parents[2] / "src"
BEGIN = "import os, signal, sys, time\nfrom weft.runtime.preempt import on_preempt, stopping\n"
TERM = "os.kill(os.getpid(), signal.SIGTERM)\n"


def script(code: str, first: str = "") -> tuple[int, list[str], str]:
    done = subprocess.run(
        [sys.executable, "-c", first + BEGIN + code],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    return done.returncode, done.stdout.split(), done.stderr


def test_the_function_runs_and_the_process_exits_with_143() -> None:
    assert script(f"on_preempt(lambda: print('saved'))\n{TERM}print('never')") == (143, ["saved"], "")


def test_all_functions_run_in_order_whatever_one_of_them_raises() -> None:
    code, said, errors = script(
        "on_preempt(lambda: print('a'))\n"
        "@on_preempt\ndef b(): print('b'); raise OSError('disk full')\n"
        "on_preempt(lambda: print('c'))\n" + TERM
    )
    assert (code, said) == (143, ["a", "b", "c"])
    assert "OSError: disk full" in errors


@pytest.mark.parametrize(("raised", "code"), [("sys.exit(0)", 0), ("sys.exit(7)", 7), ("sys.exit()", 0)])
def test_a_function_may_choose_the_exit_code(raised: str, code: int) -> None:
    said = script(f"on_preempt(lambda: {raised})\non_preempt(lambda: print('also'))\n{TERM}")
    assert said == (code, ["also"], "")


def test_a_second_sigterm_does_not_interrupt() -> None:
    code, said, errors = script(f"@on_preempt\ndef save():\n    {TERM}    print('whole')\n{TERM}")
    assert (code, said, errors) == (143, ["whole"], "")


def test_finally_blocks_and_exit_functions_still_run() -> None:
    code, said, _ = script(
        "import atexit; atexit.register(print, 'atexit')\non_preempt(lambda: print('saved'))\n"
        f"try:\n    {TERM}finally: print('finally')"
    )
    assert (code, said) == (143, ["saved", "finally", "atexit"])


def test_a_script_that_catches_everything_is_ended_all_the_same() -> None:
    code, said, _ = script(
        "from weft.runtime import preempt; preempt.LEAVING_SECONDS = 0.05\n"
        f"on_preempt(lambda: print('saved', flush=True))\ntry:\n    {TERM}except BaseException: pass\ntime.sleep(20)"
    )
    assert (code, said) == (143, ["saved"])


def test_a_blocking_call_is_interrupted_and_a_long_c_call_is_waited_for() -> None:
    asleep = "import threading\nthreading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()\n"
    assert script(f"on_preempt(lambda: print('saved'))\n{asleep}time.sleep(20)") == (143, ["saved"], "")
    counting = "data = [1] * 20_000_000\nfor _ in range(1000): sum(data)"
    assert script(f"on_preempt(lambda: print('saved'))\n{asleep}{counting}") == (143, ["saved"], "")


@pytest.mark.parametrize("start", ["os.fork()", "multiprocess()"])
def test_forked_children_do_not_run_the_parents_function(start: str) -> None:
    code, said, _ = script(
        "import multiprocessing\n"
        "on_preempt(lambda: print('saved', os.getpid() == parent))\n"
        "parent = os.getpid()\n"
        "def multiprocess():\n"
        "    child = multiprocessing.get_context('fork').Process(target=time.sleep, args=(20,))\n"
        "    child.start()\n    return child.pid\n"
        f"child = {start}\n"
        "if child == 0: time.sleep(20); os._exit(1)\n"
        "os.kill(child, signal.SIGTERM)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)\n" + TERM
    )
    assert (code, said) == (143, ["-15", "saved", "True"])


def test_a_signal_in_the_middle_of_a_fork_is_not_lost() -> None:
    first = "import os, signal\nos.register_at_fork(before=lambda: os.kill(os.getpid(), signal.SIGTERM))\n"
    code, said, errors = script(
        "on_preempt(lambda: print('saved'))\nif os.fork() == 0: os._exit(0)\ntime.sleep(20)", first
    )
    assert (code, said, errors) == (143, ["saved"], "")


def test_data_loaders_that_die_of_the_same_signal_do_not_break_the_save() -> None:
    """torch watches its loaders with a handler of SIGCHLD that raises."""
    code, said, errors = script(
        "def lost(*_): raise RuntimeError('DataLoader worker is killed')\n"
        "signal.signal(signal.SIGCHLD, lost)\n"
        "child = os.fork()\n"
        "if child == 0: time.sleep(20); os._exit(1)\n"
        "@on_preempt\ndef save():\n    os.kill(child, signal.SIGTERM); os.waitpid(child, 0); print('saved')\n"
        + TERM
    )
    assert (code, said, errors) == (143, ["saved"], "")


def test_other_threads_are_refused() -> None:
    refused: list[str] = []
    before = signal.getsignal(signal.SIGTERM)

    def register() -> None:
        with pytest.raises(RuntimeError, match="only the main thread handles signals") as caught:
            preempt.on_preempt(print)
        refused.append(str(caught.value))

    thread = threading.Thread(target=register, name="loader")
    thread.start()
    thread.join()
    assert refused == [
        "weft.on_preempt() in thread loader: only the main thread handles signals; call it there"
    ]
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_is_not_a_function_is_refused() -> None:
    with pytest.raises(TypeError, match=r"weft\.on_preempt\(save\), without \(\)"):
        preempt.on_preempt(None)  # type: ignore[type-var]


# ── a loop that asks ──


def test_a_loop_asks_and_ends_where_it_likes() -> None:
    code, said, _ = script(
        "on_preempt(lambda: print('function'))\n"
        "with stopping() as asked:\n"
        "    for step in range(5):\n"
        f"        if step == 2: {TERM}"
        "        print(step)\n"
        "        if asked(): break\n"
        "    print('saved')\n"
        "print('never')"
    )
    assert (code, said) == (143, ["0", "1", "2", "saved", "function"])


def test_a_loop_that_nobody_asks_goes_on_after_its_block() -> None:
    assert script("with stopping() as asked: print(asked())\nprint('on')") == (0, ["False", "on"], "")


def test_outside_the_block_a_sigterm_ends_the_process_at_once() -> None:
    assert script(f"with stopping(): pass\n{TERM}print('never')") == (143, [], "")


def test_an_error_after_the_order_does_not_keep_the_functions_from_saving() -> None:
    code, said, errors = script(
        f"on_preempt(lambda: print('saved'))\nwith stopping():\n    {TERM}    raise OSError('loader gone')"
    )
    assert (code, said) == (143, ["saved"])
    assert "OSError: loader gone" in errors


def test_an_error_without_an_order_is_an_error() -> None:
    code, said, errors = script(
        "on_preempt(lambda: print('saved'))\nwith stopping(): raise OSError('broken')"
    )
    assert (code, said) == (1, [])
    assert "OSError: broken" in errors


# ── together ──


def test_the_example_in_the_documentation_survives_being_stopped(tmp_path: Path) -> None:
    guide = (SOURCE.parent / "docs" / "surviving.md").read_text()
    example = guide.split("```python\n")[1].split("```")[0]
    script_file = tmp_path / "train.py"
    script_file.write_text(example)
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    command = [sys.executable, "-u", str(script_file)]
    first = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    assert first.stdout.readline().startswith("step=100 ")
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=90)
    assert first.returncode == 143
    second = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=True)
    assert "step=100 " not in second.stdout
    assert "step=200 " in second.stdout
    kept = max((tmp_path / "checkpoints").glob("step-*")).name
    assert int(kept.removeprefix("step-")) in (3 * 98, 3 * 98 + 1), (
        "one shard may have been learned and not marked"
    )
