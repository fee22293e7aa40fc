"""Functions as jobs: what is packed, how they are called, and what is refused."""

from __future__ import annotations

import json
import linecache
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.client.functions import function_call, function_file, function_module
from weft.client.jobspec import JobOptions
from weft.client.run import function_document, run
from weft.runtime import call

SOURCE = Path(weft.__file__).parent.parent


def load(path: Path, name: str = "sample") -> types.ModuleType:
    module = types.ModuleType(name)
    module.__file__ = str(path)
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


def notebook(source: str, name: str = "<ipython-input-1>") -> dict[str, Any]:
    """A cell as IPython runs it: its source is known to linecache, its module is __main__."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), cell)
    return cell


def run_module(source: str, function: str, tmp_path: Path) -> Any:
    (tmp_path / "module.py").write_text(source)
    return getattr(load(tmp_path / "module.py"), function)()


def called(
    folder: Path, target: str, arguments: dict[str, Any], **env: str
) -> subprocess.CompletedProcess[str]:
    results = folder.parent / "results"
    results.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "weft.runtime.call", target, json.dumps(arguments)],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "RESULT_DIR": str(results), **env},
        capture_output=True,
        text=True,
        check=False,
    )


# ── arguments ──


def sample(lr: float, *, layers: tuple[int, ...] = (), options: dict[str, Any] | None = None) -> None: ...


def test_arguments_are_json() -> None:
    text = function_call(sample, (0.1,), {"layers": (1, 2), "options": {"a": None}})
    assert json.loads(text) == {"args": [0.1], "kwargs": {"layers": [1, 2], "options": {"a": None}}}


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"lr": object()}, "the argument lr is or contains a object, which JSON cannot carry"),
        ({"lr": 1, "layers": [{1, 2}]}, "the argument layers is or contains a set"),
        ({"lr": 1, "options": {1: 2}}, "the argument options has the key 1; JSON keys are text"),
        ({"lr": Path("x")}, r"pathlib\.\w+"),
        ({"lr": 1, "nope": 2}, "unexpected keyword argument 'nope'"),
        ({}, "missing a required argument: 'lr'"),
        ({"lr": "x" * 200_000}, "put the data into a file"),
    ],
)
def test_arguments_that_are_not_are_named(kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        function_call(sample, (), kwargs)


def test_what_cannot_travel_is_refused() -> None:
    outer = 3

    def inner() -> int:
        return outer

    def local() -> None: ...

    refused: list[tuple[Callable[..., Any], str]] = [
        (lambda: 1, "cannot send a lambda"),
        (inner, "inside another function and uses its outer"),
        (local, "inside another function;"),
        (print, "needs a plain function"),
        ("x".upper, "needs a plain function"),
    ]
    for function, says in refused:
        with pytest.raises(TypeError, match=says):
            function_call(function, (), {})


# ── functions of files ──


def test_a_function_of_a_file_takes_its_folder_along(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def train(): ...\n")
    function = load(tmp_path / "train.py").train
    assert function_file(function) == (tmp_path, Path("train.py"))


def test_a_function_of_a_package_takes_the_folder_above_it(tmp_path: Path) -> None:
    package = tmp_path / "a" / "b"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "c.py").write_text("def train(): ...\n")
    assert function_file(load(package / "c.py").train) == (tmp_path, Path("a/b/c.py"))


def test_the_document_says_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def train(lr): ...\n")
    function = load(tmp_path / "train.py").train
    options = JobOptions(replicas=2, cpu=1)
    document = function_document(function, (0.1,), {}, options, tmp_path / "scratch")
    python, *command = document["spec"]["command"]
    assert python in ("python", sys.executable)
    assert command == ["-m", "weft.runtime.call", "train.py:train", '{"args": [0.1], "kwargs": {}}']
    assert document["spec"]["code"] == {"path": str(tmp_path)}
    assert document["metadata"] == {"generateName": "train-"}
    assert document["spec"]["roles"] == {"worker": {"replicas": 2, "resources": {"cpu": 1}}}


# ── functions of notebooks ──


def test_a_function_of_a_notebook_travels_as_source_with_what_it_uses(tmp_path: Path) -> None:
    cell = notebook(
        "import math as m\nfrom os.path import join\nimport weft\nSCALE = 2\n"
        "def helper(x):\n    return later(x) * SCALE\n"
        "def later(x):\n    return m.floor(x)\n"
        "def train(x=1.5):\n    unused = [SCALE for SCALE in (1,)]\n    return [helper(x), join('a', 'b')]\n"
    )
    assert function_file(cell["train"]) is None
    source = function_module(cell["train"])
    assert run_module(source, "train", tmp_path) == [2, "a/b"]
    assert "import weft" not in source


def test_functions_that_need_each_other_both_travel(tmp_path: Path) -> None:
    cell = notebook("def even(n=4): return n == 0 or odd(n - 1)\ndef odd(n): return n != 0 and even(n - 1)\n")
    assert run_module(function_module(cell["even"]), "even", tmp_path) is True


def test_decorators_of_weft_stay_behind(tmp_path: Path) -> None:
    class FakeWeft:
        @staticmethod
        def job(**_: Any) -> Callable[[Any], Any]:
            return lambda function: function

    source = "@weft.job(\n    cpu=1,\n)\ndef train():\n    return 5\n"
    name = "<ipython-input-2>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    cell: dict[str, Any] = {"__name__": "__main__", "weft": FakeWeft}
    exec(compile(source, name, "exec"), cell)
    made = function_module(cell["train"])
    assert "weft" not in made
    assert run_module(made, "train", tmp_path) == 5


def test_a_global_that_cannot_travel_is_named() -> None:
    cell = notebook("data = object()\ndef train():\n    return data\n")
    with pytest.raises(TypeError, match="it uses the global data, a object"):
        function_module(cell["train"])


def test_a_function_without_source_is_refused() -> None:
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("def typed(): ...", "<stdin>", "exec"), cell)
    with pytest.raises(TypeError, match="plain Python prompt"):
        function_module(cell["typed"])


# ── inside the job ──


def test_the_call_returns_through_a_file(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "other.py").write_text("X = 7\n")
    (code / "my-train.py").write_text(
        "import other, sys\n"
        "def train(a, b=0): return [a, b, other.X, __name__]\n"
        "if __name__ == '__main__': sys.exit('ran as a script')\n"
    )
    done = called(code, "my-train.py:train", {"args": [1], "kwargs": {"b": 2}})
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "results" / "return.json").read_text()) == [1, 2, 7, "my-train"]


def test_only_rank_0_keeps_the_value(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "t.py").write_text("def f(): return 1\n")
    assert called(code, "t.py:f", {}, WEFT_RANK="1").returncode == 0
    assert called(code, "t.py:f", {}, WEFT_RANK="0", RANK="1").returncode == 0, "the second process of a task"
    assert not (tmp_path / "results" / "return.json").exists()


def test_a_module_of_a_package_keeps_its_relative_imports(tmp_path: Path) -> None:
    package = tmp_path / "code" / "pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("BASE = 10\n")
    (package / "part.py").write_text("from . import BASE\ndef f(): return BASE + 1\n")
    done = called(tmp_path / "code", "pkg/part.py:f", {})
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "results" / "return.json").read_text() == "11"


def test_a_failure_shows_the_users_lines_only(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "t.py").write_text("def f():\n    return 1 / 0\n")
    done = called(code, "t.py:f", {})
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert "call.py" not in done.stderr


def test_a_value_that_json_cannot_carry_is_only_noted(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "t.py").write_text("def f(): return {1, 2}\n")
    done = called(code, "t.py:f", {})
    assert done.returncode == 0
    assert "return value is not kept" in done.stderr


def test_a_job_does_not_submit_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(call.LOADING, "train.py:train")
    with pytest.raises(RuntimeError, match="if __name__ =="):
        run(sample)


def test_import_weft_is_light() -> None:
    code = (
        "import sys; before = set(sys.modules); import weft; loaded = set(sys.modules) - before;"
        "print(sorted(loaded)); weft.log; weft.run; print('pydantic' in sys.modules, 'yaml' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["['weft']", "False False"]


def test_the_public_names() -> None:
    inside = [
        "active",
        "announce",
        "checkpoint",
        "data",
        "dry_run",
        "heartbeat",
        "log",
        "on_preempt",
        "ps",
        "run",
        "shards",
        "stopping",
    ]
    assert dir(weft) == ["Client", "Job", "__version__", *inside]
    with pytest.raises(AttributeError, match="it offers Client, Job"):
        _ = weft.nope  # type: ignore[attr-defined]
