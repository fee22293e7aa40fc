"""The published experiments, small: what they are to show holds."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from weft.sim.generate import PHILLY, Owner, Shape, generate

FOLDER = Path(__file__).parents[2] / "benchmarks" / "experiments"


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def test_pack_queues_fewer_jobs_than_spread_and_strands_fewer_gpus(experiment: Any) -> None:
    pack_spread = experiment("pack_spread")
    # few kinds of job, and none that runs for weeks: so small a workload would be decided by one of those
    sizes = (Owner("vc", 1.0, {1: 0.9, 8: 0.1}),)
    shape = Shape(sizes, gap=60.0, burst=1.0, durations=((0.01, 600.0), (0.99, 7200.0)), larger_longer=0.0)
    arrivals = generate(shape, 1000, seed=2)
    for order in pack_spread.ORDERS:
        found = pack_spread.compared([pack_spread.run(arrivals, 0.6, order)])
        assert found["queuedLong"]["pack"] < found["queuedLong"]["spread"]
        assert found["wideWaitMean"]["pack"] < found["wideWaitMean"]["spread"]
        assert found["stranded"]["pack"] <= found["stranded"]["spread"]


def test_gangs_are_never_in_deadlock_and_leave_no_gpu_idle_while_tasks_alone_do(experiment: Any) -> None:
    gang_deadlock = experiment("gang_deadlock")
    for schedulers in gang_deadlock.run(runs=5).values():
        scattered, job_by_job, gangs = (schedulers[name] for name in gang_deadlock.SCHEDULERS)
        assert all(run.deadlocked == 0 and run.idle == 0 for run in gangs)
        assert all(run.deadlocked > 0.2 for run in scattered)
        assert any(run.deadlocked > 0 for run in job_by_job)


@pytest.mark.slow
def test_a_light_load_queues_nobody_and_under_a_heavy_one_the_default_is_ahead_of_fifo(
    experiment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    light_heavy = experiment("light_heavy")
    monkeypatch.setattr(light_heavy, "SEEDS", 1)
    asked = [task.request.gpu_type for job in light_heavy.workload(700, 1) for task in job.gang.tasks]
    assert {*asked} == {"k80", "p100", "v100"}
    assert sum(len(node.gpus) for node in light_heavy.cluster()) == 680
    light = light_heavy.run(70, 1, ("fifo", "default"))
    assert all(record.waited < light_heavy.TICK + 1 for records in light.values() for record in records)
    heavy = light_heavy.run(700, 1, ("fifo", "default"))
    found = {name: light_heavy.numbers(records, 700) for name, records in heavy.items()}
    assert found["default"]["completionMean"] < 0.95 * found["fifo"]["completionMean"]
    assert found["default"]["makespan"] <= 1.1 * found["fifo"]["makespan"]


def test_the_experiment_keeps_50_gpus_and_grows_back_to_100(experiment: Any) -> None:
    elastic = experiment("elastic")
    story = elastic.run()
    sizes = [(size, other) for _, size, other in elastic.changes(story) if size or other]
    assert sizes == [(100, 0), (50, 50), (100, 0)]
    experiment_job, production = story.outcome.records
    assert experiment_job.preemptions == 0
    assert production.first_wait <= 2.0
    assert elastic.result(story).data["backAfter"] <= 2.0


@pytest.mark.slow
def test_the_default_is_ahead_of_all_that_know_no_durations_and_large_jobs_wait_no_longer_than_under_fifo(
    experiment: Any,
) -> None:
    policies = experiment("policies")
    arrivals = generate(PHILLY, 2000, seed=1)
    found = {
        name: policies.once(arrivals, 1.0, name) for name in ("default", "fifo", "fair", "least-attained")
    }
    ours = found.pop("default")
    for name, other in found.items():
        assert ours["completionMean"] < other["completionMean"], name
    for wait in ("wideFirstWaitP99", "wideTotalWaitP99"):
        assert ours[wait] <= found["fifo"][wait]


def test_a_comparison_of_policies_is_kept_pair_by_pair(
    experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies, lab = experiment("policies"), experiment("lab")
    monkeypatch.setattr(lab, "RESULTS", tmp_path)
    monkeypatch.setattr(lab, "HERE", tmp_path / "benchmarks" / "experiments")
    drawn: list[Path] = []
    monkeypatch.setattr(policies, "picture", lambda path, runs: drawn.append(path))
    for names in ("fifo", "default"):
        line = ["policies.py", "--jobs", "100", "--loads", "1.0", "--policies", names]
        monkeypatch.setattr("sys.argv", line)
        policies.main()
    document = json.loads((tmp_path / "quick" / "policies.generated.json").read_text())
    assert [run["policy"] for run in document["runs"]] == ["fifo", "default"]
    assert "load 1: mean completion" in document["cameOut"]
    assert drawn == [tmp_path / "quick" / "policies.generated"] * 2
    assert len((tmp_path / "quick" / "policies.generated.csv").read_text().splitlines()) == 3


def test_policies_are_compared_again_without_a_few_jobs_beside_the_table(
    experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies, lab = experiment("policies"), experiment("lab")
    monkeypatch.setattr(lab, "RESULTS", tmp_path)
    monkeypatch.setattr(lab, "HERE", tmp_path / "benchmarks" / "experiments")
    monkeypatch.setattr(policies, "picture", lambda path, runs: None)
    for rest in ([], ["--without", "0,1"]):
        line = ["policies.py", "--jobs", "100", "--loads", "1.0", "--policies", "fifo,least-attained,default"]
        monkeypatch.setattr("sys.argv", [*line, *rest])
        policies.main()
    document = json.loads((tmp_path / "quick" / "policies.generated.json").read_text())
    assert [(run["without"], run["jobs"]) for run in document["runs"] if run["policy"] == "default"] == [
        (None, 100),
        (0, 98),
        (1, 98),
    ]
    assert len(document["table"]["rows"]) == 3
    assert "load 1 again, each time without another fiftieth" in document["cameOut"]


def test_every_committed_result_has_its_files_and_names_no_machine() -> None:
    results = sorted((FOLDER / "results").glob("*.json"))
    assert len(results) >= 4
    for path in results:
        document = json.loads(path.read_text())
        assert f"{document['name']}.{document['source']}" == path.stem
        for suffix in (".csv", ".svg", ".png"):
            assert path.with_suffix(suffix).exists()
        assert "/home" not in path.read_text()
        assert "/work" not in path.read_text()


@pytest.mark.slow
def test_without_replacement_a_cache_answers_its_part_of_the_reads_and_the_others_less(
    experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_policies, lab = experiment("cache_policies"), experiment("lab")
    monkeypatch.setattr(lab, "RESULTS", tmp_path)
    monkeypatch.setattr(lab, "HERE", tmp_path / "benchmarks" / "experiments")
    monkeypatch.setattr("sys.argv", ["cache_policies.py", "--parts", "160", "--epochs", "5"])
    cache_policies.main()
    document = json.loads((tmp_path / "cache_policies.generated.json").read_text())
    for run in document["runs"]:
        assert run["NR"] == run["Belady"] == run["c"]
        assert max(run[name] for name in ("LRU", "FIFO", "random")) < run["c"]
        assert run["order"] == "shuffled" or run["LRU"] == run["FIFO"] == 0
    assert [line["NR"] for line in document["published"]] == [6.25, 31.25, 62.5, 100, 100]
    assert "The published table is met to 0.00 points." in document["cameOut"]


@pytest.mark.slow
def test_an_epoch_takes_as_long_as_what_is_far_away(
    experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By bytes: how long they take on a busy machine is for the experiment itself."""
    epoch_times, lab = experiment("epoch_times"), experiment("lab")
    monkeypatch.setattr(lab, "RESULTS", tmp_path)
    monkeypatch.setattr(lab, "HERE", tmp_path / "benchmarks" / "experiments")
    monkeypatch.setattr("sys.argv", ["epoch_times.py", "--parts", "60", "--epochs", "3", "--rate", "1000"])
    epoch_times.main()
    runs = json.loads((tmp_path / "epoch_times.generated.json").read_text())["runs"]
    far = {(run["order"], run["how"], run["epoch"]): run["far"] for run in runs}
    for order in ("the same order", "a fresh shuffle"):
        assert [far[order, "NR 65 %", epoch] for epoch in (1, 2, 3)] == [1.0, 0.35, 0.35]
        assert far[order, "no cache", 3] == 1.0
        assert far[order, "LRU 65 %", 3] > 0.35
