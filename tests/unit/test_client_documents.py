"""Job files: read strictly, blamed with file, line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.client.documents import Document, find_files, load_documents
from weft.client.errors import BadDocument


def load(tmp_path: Path, text: str, name: str = "job.yaml") -> list[Document]:
    path = tmp_path / name
    path.write_text(text)
    return load_documents(str(path))


def message(tmp_path: Path, text: str, name: str = "job.yaml") -> str:
    with pytest.raises(BadDocument) as problem:
        load(tmp_path, text, name)
    return str(problem.value).replace(str(tmp_path) + "/", "")


def test_one_document(tmp_path: Path) -> None:
    (document,) = load(tmp_path, "metadata: {name: a}\nspec: {}\n")
    assert document.value == {"metadata": {"name": "a"}, "spec": {}}
    assert (document.name, document.folder) == ("a", tmp_path)


def test_several_documents_are_told_apart_by_line(tmp_path: Path) -> None:
    documents = load(tmp_path, "---\nspec: {a: 1}\n---\n# nothing\n---\nspec: {b: 2}\n")
    assert [document.value for document in documents] == [{"spec": {"a": 1}}, {"spec": {"b": 2}}]
    assert [document.source.rpartition(":")[2] for document in documents] == ["2", "6"]


def test_syntax_errors_name_file_line_and_column(tmp_path: Path) -> None:
    assert message(tmp_path, "spec:\n  a: [1, 2\n  b: 3\n").startswith("job.yaml:3:4: ")
    assert "tab" in message(tmp_path, "spec:\n\ta: 1\n") or "token" in message(tmp_path, "spec:\n\ta: 1\n")


def test_duplicate_keys_are_refused_with_both_lines(tmp_path: Path) -> None:
    text = "spec:\n  env: {A: 1}\n  command: [x]\n  env: {B: 2}\n"
    assert message(tmp_path, text) == "job.yaml:4:3: the key 'env' is given twice (first on line 2)"


def test_a_merge_key_may_be_overridden(tmp_path: Path) -> None:
    text = "base: &b {a: 1, b: 2}\nspec: {<<: *b, a: 3}\nagain: {<<: *b}\n"
    assert load(tmp_path, text)[0].value["spec"] == {"a": 3, "b": 2}


def test_dates_stay_text(tmp_path: Path) -> None:
    assert load(tmp_path, "spec: {day: 2026-01-02}\n")[0].value == {"spec": {"day": "2026-01-02"}}


def test_unsafe_tags_are_refused(tmp_path: Path) -> None:
    assert "could not determine a constructor" in message(tmp_path, "spec: !!python/name:os.system\n")


@pytest.mark.parametrize(
    ("text", "says"), [("- a\n", "not a list"), ("hello\n", "'hello'"), ("", "no document")]
)
def test_only_mappings_are_documents(tmp_path: Path, text: str, says: str) -> None:
    assert says in message(tmp_path, text)


def test_json_is_read_as_json(tmp_path: Path) -> None:
    assert load(tmp_path, '{"spec":\t{}}', "job.json")[0].value == {"spec": {}}
    assert message(tmp_path, '{"spec": {,}}', "job.json").startswith("job.json:1:11: not JSON")
    assert "'a' is given twice" in message(tmp_path, '{"a": 1, "a": 2}', "job.json")


def test_a_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadDocument, match=r"nope\.yaml: no such file"):
        load_documents("nope.yaml")
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadDocument, match="UTF-8"):
        load_documents(str(tmp_path / "x.yaml"))


def test_folders_are_searched(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.json", "sub/c.yml", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    found = find_files([str(tmp_path), "-"])
    assert [path.replace(str(tmp_path) + "/", "") for path in found] == ["a.json", "b.yaml", "sub/c.yml", "-"]
