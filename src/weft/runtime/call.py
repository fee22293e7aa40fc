"""Call one function of a file inside a job: `python -m weft.runtime.call FILE.py:function '{"args": []}'`.

This is what `weft.run(function)` submits. The file is loaded under its own name, never as `__main__`, so
that what stands under `if __name__ == "__main__"` does not run again. What the function returns on rank 0
goes to RESULT_DIR/return.json if JSON can carry it. Standard library only.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys

LOADING = "WEFT_LOADING"
"""Set while the file is loaded: `weft.run` refuses then, or each job would submit the next."""


def main(argv: list[str]) -> None:
    target, arguments = argv[0], json.loads(argv[1]) if len(argv) > 1 else {}
    path, _, name = target.rpartition(":")
    os.environ[LOADING] = target
    try:
        module = load(path)
    finally:
        del os.environ[LOADING]
    function = module
    for part in name.split("."):
        function = getattr(function, part)
    result = function(*arguments.get("args", ()), **arguments.get("kwargs", {}))  # type: ignore[operator]
    if rank() == "0":
        keep(result)


def rank() -> str:
    """Of this process: a launcher such as torchrun or mpirun may start several in a task, and gives each its own."""
    names = ("OMPI_COMM_WORLD_RANK", "RANK", "WEFT_RANK")
    return next((os.environ[name] for name in names if os.environ.get(name)), "0")


def report(problem: BaseException) -> None:
    """Print the traceback from the user's first line on: what led there is Weft's and Python's."""
    import traceback

    trace = whole = problem.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((__file__, "<frozen ")):
        trace = trace.tb_next
    traceback.print_exception(type(problem), problem, trace or whole)


def load(path: str) -> object:
    """The file as a module, by its dotted name where it is part of a package below the working folder."""
    parts = os.path.normpath(path).removesuffix(".py").split(os.sep)
    root = os.getcwd()
    if sys.path[:1] != [root]:
        sys.path.insert(0, root)
    packages = parts[:-1]
    if all(
        os.path.exists(os.path.join(root, *packages[: n + 1], "__init__.py")) for n in range(len(packages))
    ):
        name = ".".join(parts)
    else:
        sys.path.insert(0, os.path.join(root, *packages))
        name = parts[-1]
    spec = importlib.util.spec_from_file_location(name, os.path.join(root, path))
    if spec is None or spec.loader is None or not os.path.exists(path):
        sys.exit(f"weft: there is no Python file {path} in {root}")
    for n in range(1, name.count(".") + 1):
        importlib.import_module(name.rsplit(".", n)[0])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that modules which import this file get this very one
    spec.loader.exec_module(module)
    return module


def keep(result: object) -> None:
    """Write the return value, whole or not at all; a value that JSON cannot carry only earns a note."""
    folder = os.environ.get("RESULT_DIR")
    if not folder:
        return
    try:
        text = json.dumps(result)
    except (TypeError, ValueError, RecursionError) as problem:
        print(f"weft: the return value is not kept: {problem}", file=sys.stderr)
        return
    target = os.path.join(folder, "return.json")
    with open(target + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(target + ".part", target)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Exception as problem:
        report(problem)
        sys.exit(1)
