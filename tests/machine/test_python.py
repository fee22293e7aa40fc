"""`import weft` from a script and from a notebook: run a function, wait, read logs, metrics and results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.machine

WEFT = str(Path(sys.executable).parent / "weft")


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "COV_"))}
    found = {**kept, "WEFT_HOME": str(tmp_path / "home")}
    yield found
    subprocess.run([WEFT, "down", "--halt"], env=found, capture_output=True, check=False)


def test_a_function_of_a_script(environment, tmp_path):
    script = tmp_path / "work" / "script.py"
    script.parent.mkdir()
    script.write_text(
        textwrap.dedent("""
        import os
        import weft

        def train(lr):
            print("rank", os.environ["RANK"], "lr", lr)
            for step in range(3):
                weft.log(step=step, loss=lr * step)
            return {"lr": lr, "world": os.environ["WORLD_SIZE"]}

        if __name__ == "__main__":
            job = weft.run(train, kwargs={"lr": 0.5}, replicas=4, cpu=0.5)
            job.wait()
            print(sorted(job.logs()) if not isinstance(job.logs(), str) else sorted(job.logs().splitlines()))
            print(job.metrics("loss"))
            print(job.result())
            print(job.state)
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(4):
        assert f"rank {rank} lr 0.5" in done.stdout
    assert done.stdout.count("(2, 1.0)") == 4, done.stdout
    assert "{'lr': 0.5, 'world': '4'}" in done.stdout
    assert done.stdout.endswith("COMPLETED\n")


def test_a_function_prints_as_a_job_file_that_runs_it(environment, tmp_path):
    script = tmp_path / "work" / "script.py"
    script.parent.mkdir()
    script.write_text(
        textwrap.dedent("""
        import json
        import weft

        def train(lr, steps=1):
            print("lr", lr, "steps", steps)

        if __name__ == "__main__":
            print(json.dumps(weft.dry_run(train, args=[0.5], kwargs={"steps": 3}, replicas=2, cpu=0.5)))
        """)
    )
    printed = _done([sys.executable, str(script)], environment)
    file = tmp_path / "job.json"
    file.write_text(printed)
    document = json.loads(printed)
    assert "name" not in document["metadata"]
    assert document["spec"]["command"][-1] == '{"args": [0.5, 3], "kwargs": {}}'
    assert "status" not in document
    again = _done([WEFT, "run", str(file), "--dry-run", "-o", "json"], environment)
    assert json.loads(again) == document, "it is whole"
    assert _done([WEFT, "run", str(file)], environment).count("lr 0.5 steps 3") == 2


def _done(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_function_that_fails_raises_with_its_last_lines(environment, tmp_path):
    script = tmp_path / "work" / "script.py"
    script.parent.mkdir()
    script.write_text(
        textwrap.dedent("""
        import weft

        def train():
            raise ValueError("no such luck")

        if __name__ == "__main__":
            weft.run(train).wait()
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "JobFailed" in done.stderr
    assert "no such luck" in done.stderr


def test_a_function_of_a_notebook(environment, tmp_path):
    from jupyter_client.manager import start_new_kernel

    manager, kernel = start_new_kernel(kernel_name="python3", env=environment, cwd=str(tmp_path))
    try:
        _cell(kernel, "import weft\nSCALE = 3\ndef half(x):\n    return x / 2")
        _cell(kernel, "def train(x):\n    weft.log(step=0, loss=1.0)\n    return half(x) * SCALE")
        _cell(kernel, "job = weft.run(train, args=[4]); job.wait()")
        assert (
            _cell(kernel, "print(job.result(), job.state, job.metrics('loss'))")
            == "6.0 COMPLETED [(0, 1.0)]\n"
        )
        _cell(kernel, "document = weft.dry_run(train, args=[8])")
        assert _cell(kernel, "print(weft.run(document).result())") == "12.0\n", "its code is kept"
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)


def _cell(kernel, source: str) -> str:
    printed: list[str] = []

    def hear(message):
        content = message["content"]
        assert message["msg_type"] != "error", content.get("traceback")
        if message["msg_type"] == "stream" and content["name"] == "stdout":
            printed.append(content["text"])

    kernel.execute_interactive(source, timeout=60, output_hook=hear)
    return "".join(printed)
