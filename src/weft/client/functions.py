"""A Python function as a job: its file's folder (or its source) to pack, and the command that calls it.

Nothing is pickled: a pickle ties the job to this interpreter and hides what it runs. The code travels as
source and the arguments as JSON, so the job file shows all of it. A function of a notebook has no file;
its source is taken together with the globals that it uses.
"""

from __future__ import annotations

import ast
import inspect
import json
import symtable
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

MAX_ARGUMENTS = 100_000
"""Bytes of JSON; Linux takes at most 128 KiB in one argument of a command."""


def function_call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The arguments as JSON, checked against the function's signature."""
    _check_plain(function)
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError as problem:
        raise TypeError(f"{function.__name__}(): {problem}") from None
    for name, value in bound.arguments.items():
        _check_json(value, name, function.__name__)
    text = json.dumps({"args": list(bound.args), "kwargs": bound.kwargs})
    if len(text.encode()) > MAX_ARGUMENTS:
        raise TypeError(
            f"{function.__name__}(): the arguments are {len(text)} bytes of JSON, at most {MAX_ARGUMENTS}; "
            "put the data into a file and pass its path"
        )
    return text


def function_file(function: Callable[..., Any]) -> tuple[Path, Path] | None:
    """The folder to pack and the file in it, or None for a function of a notebook or of standard input.

    The folder is the one that holds the file's outermost package, so that its imports work in the job.
    """
    source = inspect.getsourcefile(function)
    file = Path(source).absolute() if source else None
    if file is None or file.suffix != ".py" or not file.is_file():
        return None
    folder = file.parent
    while (folder / "__init__.py").exists() and folder.parent != folder:
        folder = folder.parent
    return folder, file.relative_to(folder)


def function_module(function: Callable[..., Any]) -> str:
    """A module's source that defines the function and the globals it uses."""
    taken: dict[str, str] = {}
    _take(function.__name__, function, taken, function.__name__)
    return "from __future__ import annotations\n\n" + "\n\n".join(taken.values()) + "\n"


def _check_plain(function: Callable[..., Any]) -> None:
    name = getattr(function, "__qualname__", repr(function))
    if not inspect.isfunction(function):
        raise TypeError(f"weft.run needs a plain function, a job document or the path of one, not {name}")
    if function.__name__ == "<lambda>":
        raise TypeError("weft.run cannot send a lambda: its source has no name of its own; write a `def`")
    if function.__closure__ or "<locals>" in name:
        inside = ", ".join(function.__code__.co_freevars)
        uses = f" and uses its {inside}" if inside else ""
        raise TypeError(
            f"weft.run cannot send {name}: it is defined inside another function{uses}; "
            "define it at the top of the file and pass what it needs as arguments"
        )


def _check_json(value: Any, argument: str, function: str, depth: int = 0) -> None:
    if depth > 100:
        raise TypeError(f"{function}(): the argument {argument} is nested too deeply (or contains itself)")
    if value is None or isinstance(value, (str, bool, int, float)):
        return
    if isinstance(value, (list, tuple)):
        for item in value:
            _check_json(item, argument, function, depth + 1)
        return
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(
                    f"{function}(): the argument {argument} has the key {key!r}; JSON keys are text"
                )
            _check_json(item, argument, function, depth + 1)
        return
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise TypeError(
        f"{function}(): the argument {argument} is or contains a {kind}, which JSON cannot carry; "
        "pass numbers, text, lists and dictionaries, or the path of a file"
    )


def _take(name: str, value: Any, taken: dict[str, str], root: str) -> None:
    """Add the definition of one global, after those that it needs."""
    if name in taken:
        return
    if isinstance(value, types.ModuleType):
        taken[name] = f"import {value.__name__} as {name}"
    elif _is_here(value, root):
        taken[name] = ""  # a place kept: two functions may need each other
        source = _source(value)
        for used in _globals_used(source):
            if used in _namespace(value):
                _take(used, _namespace(value)[used], taken, root)
        del taken[name]
        taken[name] = source
    elif (
        getattr(value, "__module__", None)
        and getattr(value, "__name__", None)
        and hasattr(value, "__qualname__")
    ):
        taken[name] = f"from {value.__module__} import {value.__name__} as {name}"
    else:
        try:
            _check_json(value, name, root)
        except TypeError:
            raise TypeError(
                f"weft.run cannot send {root}: it uses the global {name}, a {type(value).__name__}; "
                "make it inside the function, or pass what is needed to make it as an argument"
            ) from None
        taken[name] = f"{name} = {value!r}"


def _is_here(value: Any, root: str) -> bool:
    """A function or class that was defined in the notebook itself."""
    plain = inspect.isfunction(value) or inspect.isclass(value)
    return (
        plain and (value.__module__ == "__main__" or value.__name__ == root) and function_file(value) is None
    )


def _namespace(value: Any) -> Mapping[str, Any]:
    if inspect.isfunction(value):
        return value.__globals__
    import sys

    return vars(sys.modules[value.__module__])


def _source(value: Any) -> str:
    try:
        source = textwrap.dedent(inspect.getsource(value))
    except (OSError, TypeError):
        raise TypeError(
            f"weft.run cannot find the source of {value.__name__}: it was typed into a plain Python prompt; "
            "put it into a file or a notebook"
        ) from None
    return _without_own_decorators(source)


def _without_own_decorators(source: str) -> str:
    """The definition without decorators named `weft.…`, which mean something only to the submitter."""
    definition = ast.parse(source).body[0]
    if not isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return source
    lines = source.splitlines(keepends=True)
    for decorator in reversed(definition.decorator_list):
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if ast.unparse(called).startswith("weft."):
            del lines[decorator.lineno - 1 : decorator.end_lineno]
    return "".join(lines)


def _globals_used(source: str) -> list[str]:
    """Names that the source reads and does not make: exact, by the compiler's own table of symbols."""
    found: dict[str, None] = {}
    tables = [symtable.symtable(source, "<function>", "exec")]
    while tables:
        table = tables.pop()
        top = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (symbol.is_global() or (top and not symbol.is_assigned())):
                found[symbol.get_name()] = None
        tables += table.get_children()
    return list(found)
