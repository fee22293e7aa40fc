"""What `weft run` is asked to run, as a job document. Pure but for looking at the files it is given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from weft.client.documents import STANDARD_INPUT, SUFFIXES, Document, load_documents
from weft.client.errors import BadDocument
from weft.client.jobspec import BadOption, JobOptions, job_document, overlay

FORMS = "weft run train.py   weft run job.yaml   weft run -- COMMAND"


def job_of(
    target: str | None, rest: Sequence[str], options: JobOptions, *, code: str | None, python: str, here: Path
) -> Document:
    """The job of one command line: a job file, a script in its folder, any command after `--`, or its type's own."""
    if target is None:
        return _command_job(rest, options, code, here)
    if target in STANDARD_INPUT or target.endswith(SUFFIXES):
        return _file_job(target, rest, options, code)
    return _script_job(target, rest, options, code=code, python=python, here=here)


def _command_job(rest: Sequence[str], options: JobOptions, code: str | None, here: Path) -> Document:
    if not rest and options.type is None:
        raise BadOption(f"say what to run: {FORMS}")
    folder = None if code is None else str(_folder(code, here))
    return Document(
        job_document(rest, options, code=folder, base=Path(rest[0]).stem if rest else str(options.type)),
        "",
        here,
    )


def _file_job(target: str, rest: Sequence[str], options: JobOptions, code: str | None) -> Document:
    documents = load_documents(target)
    if len(documents) != 1:
        raise BadDocument(
            target, f"{len(documents)} documents in it; weft run follows one", f"weft apply -f {target}"
        )
    document = documents[0]
    if not isinstance(document.value.get("spec"), dict):
        return document  # the server says best what is missing
    value = overlay(document.value, options, args=rest)
    if code is not None:
        value["spec"]["code"] = {"path": os.path.abspath(code)}  # noqa: PTH100
    return replace(document, value=value)


def _script_job(
    target: str, rest: Sequence[str], options: JobOptions, *, code: str | None, python: str, here: Path
) -> Document:
    script = Path(os.path.normpath(here / Path(target).expanduser()))
    if not script.is_file():
        cause = "it is a folder" if script.is_dir() else "there is no such file"
        raise BadOption(f"cannot run {target}: {cause}; for a command write: weft run -- {target}")
    folder = _folder(code, here) if code is not None else _script_folder(script, here)
    if not script.is_relative_to(folder):
        raise BadOption(f"the script {target} is not inside --code {code}")
    inside = script.relative_to(folder).as_posix()
    command = _interpreted(script, inside, python)
    code_path = "." if folder == here else str(folder)
    value = job_document(command, options, args=rest, code=code_path, base=script.stem)
    return Document(value, "", here)


def _folder(code: str, here: Path) -> Path:
    return Path(os.path.normpath(here / Path(code).expanduser()))


def _script_folder(script: Path, here: Path) -> Path:
    """The current folder if the script is in it, because that is where its imports and files are; but not
    a home folder with everything in it."""
    whole = script.is_relative_to(here) and here not in (Path.home(), Path("/"))
    return here if whole else script.parent


def _interpreted(script: Path, inside: str, python: str) -> list[str]:
    if script.suffix == ".py":
        return [python, inside]
    if os.access(script, os.X_OK):
        return [f"./{inside}"]
    if script.suffix == ".sh":
        return ["sh", inside]
    raise BadOption(
        f"cannot tell how to run {script.name}: it is neither .py, .sh, a job file nor executable; {FORMS}"
    )
