"""The published experiments, small: what they are to show holds."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from weft.sim.generate import Owner, Shape, generate

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


def test_the_experiment_keeps_50_gpus_and_grows_back_to_100(experiment: Any) -> None:
    elastic = experiment("elastic")
    story = elastic.run()
    sizes = [(size, other) for _, size, other in elastic.changes(story) if size or other]
    assert sizes == [(100, 0), (50, 50), (100, 0)]
    experiment_job, production = story.outcome.records
    assert experiment_job.preemptions == 0
    assert production.first_wait <= 2.0
    assert elastic.result(story).data["backAfter"] <= 2.0


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


def test_a_bound_on_waiting_is_told_with_what_it_costs(
    experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds, lab = experiment("bounds"), experiment("lab")
    monkeypatch.setattr(lab, "RESULTS", tmp_path)
    monkeypatch.setattr(lab, "HERE", tmp_path / "benchmarks" / "experiments")
    monkeypatch.setattr(bounds, "BOUNDS", ((50, 1.0),))
    monkeypatch.setattr("sys.argv", ["bounds.py", "--jobs", "100"])
    bounds.main()
    document = json.loads((tmp_path / "quick" / "bounds.generated.json").read_text())
    default, bounded, _, fifo = document["runs"]
    assert {**bounded, "bound": ""} == {**default, "bound": ""}, "nobody waits so long in so short a workload"
    assert default["completionMean"] < fifo["completionMean"]
    assert "50 days, 100%: mean +0%" in document["cameOut"]
    assert (tmp_path / "quick" / "bounds.generated.svg").exists()


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
