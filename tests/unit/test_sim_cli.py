"""`weft sim` from the command line to the files it leaves."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from weft.cli.app import dispatch

Captured = pytest.CaptureFixture[str]


@pytest.mark.slow
def test_several_policies_are_one_table_and_one_folder(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    assert (
        dispatch(
            ["sim", "--jobs", "80", "--policy", "default,fifo", "-p", "shortest+oracle", "--out", str(out)]
        )
        == 0
    )
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0].split() == ["METRIC", "DEFAULT", "FIFO", "SHORTEST+ORACLE"]
    for line in (
        "completion, mean",
        "queued over 15 min",
        "GPUs allocated / useful",
        "fairness",
        "deadlocked GPU time",
    ):
        assert line in printed.out
    assert "80 jobs over" in printed.err
    assert f"next: xdg-open {out}" in printed.err
    summary = json.loads((out / "summary.json").read_text())
    assert list(summary["policies"]) == ["default", "fifo", "shortest+oracle"]
    assert summary["policies"]["fifo"]["jobs"] == 80
    with (out / "jobs-fifo.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 80
    assert all(float(row["finished"]) > float(row["submitted"]) for row in rows)
    for name in ("completion", "queueing", "gpus"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (out / f"{name}.svg").read_text()[:1000]
    assert len((out / "summary.csv").read_text().splitlines()) > 40


def test_the_same_command_prints_the_same(capsys: Captured) -> None:
    def once() -> dict[str, object]:
        assert dispatch(["sim", "--jobs", "60", "--mtbf", "2d", "--queues", "-o", "json"]) == 0
        document = json.loads(capsys.readouterr().out)
        del document["policies"]["default"]["decision"]  # the only thing that is measured and not simulated
        return dict(document)

    assert once() == once()


def test_files_of_nodes_and_pods(tmp_path: Path, capsys: Captured) -> None:
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\na,32000,262144,2,V100M16\nb,32000,262144,2,T4\n")
    pods = tmp_path / "pods.csv"
    pods.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        + "".join(f"p{n},1000,1024,1,500,V100M16|V100M32,LS,Running,{n},{n + 600},{n}\n" for n in range(8))
    )
    assert dispatch(["sim", "--cluster", str(nodes), "--workload", str(pods), "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["jobs"], document["gpus"]) == (8, 4)
    completion = document["policies"]["default"]["completion"]
    assert completion["mean"] > 800, "only four halves fit the two GPUs of the right model"
    assert completion["most"] < 1300, "the others do when these have ended"


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--policy", "best"], 2, "no policy best; there are default, expected, fifo"),
        (["--mix", "cats"], 2, "no mix cats; there are philly, gangs"),
        (["--nodes", "0"], 2, "--nodes must be more than 0"),
        (["--cluster", "c.csv", "--nodes", "4"], 2, "leave --nodes and --gpus out"),
        (["--mtbf", "often"], 2, "--mtbf: write a duration with a unit"),
        (["--workload", "none.csv"], 1, "none.csv: no such file"),
        (["--cluster", "none.yaml"], 1, "none.yaml: no such file"),
    ],
)
def test_what_is_wrong_is_named(options: list[str], code: int, text: str, capsys: Captured) -> None:
    assert dispatch(["sim", "--jobs", "5", *options]) == code
    printed = capsys.readouterr().err
    assert text in printed
    assert "next: weft sim --help" in printed


def test_a_bad_cell_is_named_by_file_line_and_column(tmp_path: Path, capsys: Captured) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n1,2,3,6,a\n1,two,3,6,a\n")
    assert dispatch(["sim", "--workload", str(trace)]) == 1
    assert f"weft: {trace}, line 3, column duration: not a number (got 'two')" in capsys.readouterr().err


def test_other_commands_load_neither_numpy_nor_the_simulator() -> None:
    code = "import sys; from weft.cli.app import build; build(['ls']); print([m for m in sys.modules if m in ('numpy', 'weft.sim', 'matplotlib')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
