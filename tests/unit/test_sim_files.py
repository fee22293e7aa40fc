"""Traces and cluster files: what is read, and how a bad cell is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.sim import alibaba
from weft.sim.badfile import BadFile
from weft.sim.clusterfile import equal_nodes, read_cluster
from weft.sim.workload import at_load, gang_of_gpus, load_on, nodes_for
from weft.sim.workloadfile import read_workload

PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
PODS = ",".join(alibaba.POD_COLUMNS) + "\n"
NODES = ",".join(alibaba.NODE_COLUMNS) + "\n"


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def problem(folder: Path, text: str, name: str = "trace.csv") -> BadFile:
    path = written(folder, text, name)
    read = read_cluster if name.startswith("cluster") else read_workload
    with pytest.raises(BadFile) as caught:
        read(path)  # type: ignore[operator]
    assert caught.value.file == str(path)
    return caught.value


def test_a_philly_row_is_a_gang_of_tasks_of_up_to_8_gpus(tmp_path: Path) -> None:
    rows = "2017-10-09 07:01:55,66.0,1,66.0,vc-b\n2017-10-09 07:00:55,100,20,2000,vc-a\n"
    first, second = read_workload(written(tmp_path, PHILLY + rows))
    assert [task.request.gpu for task in first.gang.tasks] == [8, 8, 4]
    assert (first.time, first.seconds, first.owner) == (0.0, 100.0, "vc-a")
    assert (second.time, second.seconds, second.owner) == (60.0, 66.0, "vc-b")


def test_a_limit_takes_the_first_to_arrive(tmp_path: Path) -> None:
    rows = "200,1,1,1,late\n100,1,1,1,early\n"
    assert [job.owner for job in read_workload(written(tmp_path, PHILLY + rows), 1)] == ["early"]


@pytest.mark.parametrize(
    ("row", "line", "column", "cause"),
    [
        ("2017-10-09 07:01:55,soon,1,66,vc\n", 2, "duration", "not a number (got 'soon')"),
        ("yesterday,66,1,66,vc\n", 2, "timestamp", "neither a number of seconds nor a date"),
        ("100,66,1,66,vc\n100,66,0,66,vc\n", 3, "num_gpus", "must be at least 1 (got '0')"),
        ("100,66,1.5,66,vc\n", 2, "num_gpus", "not a whole number"),
        ("100,-1,1,66,vc\n", 2, "duration", "must be at least 0"),
        ("100,nan,1,66,vc\n", 2, "duration", "not a finite number"),
        ("100,66,1\n", 2, None, "3 cells where there are 5 columns"),
        ("", 1, None, "holds no job"),
    ],
)
def test_a_bad_row_names_file_line_column_and_cause(
    tmp_path: Path, row: str, line: int, column: str | None, cause: str
) -> None:
    found = problem(tmp_path, PHILLY + row)
    assert (found.line, found.column) == (line, column)
    assert cause in found.cause
    assert f"line {line}" in str(found)


def test_a_file_of_another_shape_is_told_what_shapes_there_are(tmp_path: Path) -> None:
    found = problem(tmp_path, "when,what\n1,2\n")
    assert "no known shape: its columns are when,what" in found.cause
    assert "timestamp,duration,num_gpus" in found.cause


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no such file"):
        read_workload(tmp_path / "none.csv")


def test_a_pod_may_share_a_gpu_or_choose_among_models(tmp_path: Path) -> None:
    rows = (
        "p0,4000,1024,1,460,,LS,Running,10,110,20\n"
        "p1,4000,1024,2,1000,V100M32|V100M16,BE,Running,5,50,5\n"
        "p2,1000,1024,0,0,,BE,Pending,6,50,\n"
    )
    whole, shared = read_workload(written(tmp_path, PODS + rows))
    assert (shared.gang.tasks[0].request.gpu_share, shared.gang.gpus, shared.seconds) == (460, 0.46, 90.0)
    assert whole.gang.tasks[0].request.gpu == 2
    nodes = alibaba.read_nodes(
        written(
            tmp_path, NODES + "a,32000,262144,8,V100M16\nb,32000,262144,8,T4\nc,32000,1024,0,\n", "nodes.csv"
        )
    )
    labels = [dict(node.labels) for node in alibaba.labelled(nodes, [whole, shared])]
    assert labels == [{"gpu:V100M16|V100M32": "yes"}, {}, {}]
    assert dict(whole.gang.selector) == labels[0]


@pytest.mark.parametrize(
    ("row", "column", "cause"),
    [
        ("p0,4000,1024,2,500,,LS,Running,0,9,0\n", "gpu_milli", "only a part of one GPU"),
        ("p0,4000,1024,1,1500,,LS,Running,0,9,0\n", "gpu_milli", "more than 1000"),
        ("p0,4000,1024,1,500,,LS,Running,0,5,9\n", "deletion_time", "before its scheduled_time, 9"),
        ("p0,4,1,0,0,,LS,Running,0,5,0\np0,4,1,0,0,,LS,Running,0,5,0\n", "name", "a second pod"),
    ],
)
def test_a_bad_pod_is_named(tmp_path: Path, row: str, column: str, cause: str) -> None:
    found = problem(tmp_path, PODS + row)
    assert found.column == column
    assert cause in found.cause


def test_a_cluster_of_kinds_and_queues(tmp_path: Path) -> None:
    text = """
nodes:
  - {count: 2, gpus: 8, gpuType: v100, gpuMemory: 32Gi, cpu: 96, memory: 512Gi, name: big}
  - {count: 1, cpu: 16}
queues:
  - {name: vision, weight: 2, guarantee: {gpu: 8}, limit: {gpu: 12, cpu: 64}}
"""
    found = read_cluster(written(tmp_path, text, "cluster.yaml"))
    assert [(node.name, node.cpu, len(node.gpus)) for node in found.nodes] == [
        ("big-00000", 96000, 8),
        ("big-00001", 96000, 8),
        ("kind-1-00000", 16000, 0),
    ]
    assert found.nodes[0].gpus[0].memory == 32 * 2**30
    (queue,) = found.queues
    assert (queue.weight, queue.guarantee, queue.limit) == (2.0, {"gpu": 8000}, {"gpu": 12000, "cpu": 64000})


@pytest.mark.parametrize(
    ("text", "line", "column", "cause"),
    [
        ("nodes:\n  - {count: 2, gpu: 8}\n", 2, 16, "no field gpu; there are count"),
        ("nodes:\n  - {count: none}\n", 2, 13, "not a number: none"),
        ("nodes:\n  - {count: 0}\n", 2, 13, "must be at least 1 (got 0)"),
        ("nodes: 4\n", 1, 8, "expected a list"),
        ("nodes: [{memory: lots}]\n", 1, 18, ""),
        ("nodes: [{gpus: 8}]\nqueues: [{weight: 1}]\n", 2, 10, "a queue needs a name"),
        ("nodes: [\n", 2, 1, "not YAML"),
        ("queues: []\n", None, None, "has no nodes"),
    ],
)
def test_a_bad_cluster_file_names_line_and_column(
    tmp_path: Path, text: str, line: int | None, column: int | None, cause: str
) -> None:
    found = problem(tmp_path, text, "cluster.yaml")
    assert (found.line, found.column) == (line, column)
    assert cause in found.cause


def test_load_sets_the_number_of_nodes_or_how_close_jobs_come(tmp_path: Path) -> None:
    rows = "".join(f"{100 * n},800,8,6400,vc\n" for n in range(100))
    jobs = read_workload(written(tmp_path, PHILLY + rows))
    nodes = nodes_for(jobs, 1.0)
    assert load_on(jobs, 8 * nodes) == pytest.approx(1.0, abs=0.07)
    assert load_on(at_load(jobs, 8 * nodes, 0.5), 8 * nodes) == pytest.approx(0.5, rel=0.01)
    with pytest.raises(ValueError, match="100 jobs are too few for a load of 1 on 10000 GPUs"):
        at_load(jobs, 10_000, 1.0)
    assert len(equal_nodes(nodes)) == nodes
    assert gang_of_gpus(8) is gang_of_gpus(8)
