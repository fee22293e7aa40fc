"""Sizes: what they fill in, what they refuse, and what would have been enough for a job."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.builders import GIB, job_document
from weft.jobtypes.complete import read_job
from weft.model.failures import Code, Failure
from weft.model.job import Resources, Role, TrainingJobSpec
from weft.model.problems import Invalid
from weft.model.quantities import MAX_CPU, MAX_MEMORY, MAX_TASK_GPU
from weft.model.sizes import BUILT_IN, SizeSpec, find, resolve, wrong_with
from weft.model.status import Exit, JobStatus, State, TaskStatus
from weft.model.suggestion import enough_cpu, enough_memory, smallest, suggest

MIB = 2**20
A100 = SizeSpec(cpu=12, memory=96 * GIB, gpu_type="a100", per_gpu=True)
TABLE = {**BUILT_IN, "a100": A100, "a100-4": SizeSpec(cpu=40, memory=300 * GIB, gpu=4, gpu_type="a100")}


def asked(**resources: Any) -> Resources:
    return Resources.model_validate(resources)


def completed(size: str, **more: Any) -> Resources:
    document = job_document(roles={"worker": {"resources": {"size": size, **more}}})
    return read_job(document, "the job", table=TABLE).spec.roles["worker"].resources


# ── completion ──


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_the_sizes_that_come_with_weft_are_right(name: str) -> None:
    spec = BUILT_IN[name]
    assert not list(wrong_with(spec))
    assert spec.gpu_type is None or name == f"{spec.gpu_type}-{spec.gpu}"


def test_a_job_is_completed_from_the_table_and_keeps_the_numbers() -> None:
    found = completed("a100-2")
    assert (found.cpu, found.memory, found.gpu, found.gpu_type) == (24_000, 192 * GIB, 2, "a100")
    assert found.size == "a100-2"
    document = job_document(roles={"worker": {"resources": {"size": "a100-2"}}})
    written = read_job(document, "the job", table=TABLE).spec.model_dump_json(by_alias=True)
    again = TrainingJobSpec.model_validate_json(written).roles["worker"].resources
    assert again == found, "no table is needed to read it back"


def test_a_size_of_the_very_name_goes_before_one_per_gpu() -> None:
    found = completed("a100-4")
    assert (found.cpu, found.memory) == (40_000, 300 * GIB)
    assert completed("a100-8").cpu == 96_000


def test_what_is_written_goes_before_the_size() -> None:
    found = completed("a100-2", cpu=4, memory="1Gi")
    assert (found.cpu, found.memory, found.gpu) == (4000, GIB, 2)


def test_a_size_may_leave_things_open() -> None:
    found, problems = resolve(asked(size="roomy"), "r", {"roomy": SizeSpec(memory=GIB)})
    assert (found.cpu, found.memory, found.gpu, problems) == (1000, GIB, 0, [])


@pytest.mark.parametrize(
    ("size", "told"),
    [
        ("a100", "is for each GPU: write a100-1 for one, a100-2 for two"),
        ("a100-0", "no such size; choose one of small, medium"),
        ("a100-01", "no such size"),
        ("a100-1025", "no such size"),
        ("small-2", "no such size"),
        ("huge", "v100-2, a100-N, a100-4"),
    ],
)
def test_a_size_that_is_none_is_refused_with_those_that_are(size: str, told: str) -> None:
    with pytest.raises(Invalid) as refused:
        completed(size)
    [problem] = refused.value.problems
    assert problem.field == "spec.roles.worker.resources.size"
    assert told in problem.message


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({}, ["spec"]),
        ({"perGpu": True, "gpu": 2, "cpu": 1}, ["spec.gpu"]),
        ({"cpu": 1, "gpuType": "v100"}, ["spec.gpuType"]),
        ({"cpu": 977, "memory": "2Pi", "perGpu": True}, ["spec.cpu", "spec.memory"]),
        ({"cpu": 976, "memory": "1Pi", "perGpu": True}, []),
        ({"gpu": 0.5}, []),
    ],
)
def test_every_mistake_of_a_size_is_told(spec: dict[str, Any], fields: list[str]) -> None:
    assert [problem.field for problem in wrong_with(SizeSpec.model_validate(spec))] == fields


@given(st.integers(0, MAX_CPU), st.integers(0, MAX_MEMORY), st.integers(1, MAX_TASK_GPU))
def test_what_a_right_size_fills_in_can_be_read_back(cpu: int, memory: int, gpus: int) -> None:
    spec = SizeSpec(per_gpu=True).model_copy(update={"cpu": cpu, "memory": memory})
    if not list(wrong_with(spec)):
        found, problems = resolve(asked(size=f"x-{gpus}"), "r", {"x": spec})
        assert not problems
        assert Resources.model_validate_json(found.model_dump_json(by_alias=True)) == found


# ── what would have been enough ──


def ended(name: str, cpu: float | None, memory: int | None, seconds: float = 100.0, **end: Any) -> TaskStatus:
    """A task that used so many CPUs, on average, and so much memory."""
    exit = Exit(0, cpu_seconds=None if cpu is None else cpu * seconds, peak_memory=memory, **end)
    return TaskStatus(name, started=1000.0, finished=1000.0 + seconds, exit=exit)


def role(**resources: Any) -> Role:
    found, _ = resolve(asked(**resources), "r", TABLE)
    return Role(resources=found)


def suggested(of: Role, *tasks: TaskStatus) -> Any:
    [found] = suggest({"worker": of}, JobStatus(State.COMPLETED, tasks), TABLE)
    return found


@pytest.mark.parametrize(
    ("used", "enough"),
    [(0, 100), (10, 100), (101, 100), (110, 200), (999, 1000), (1008, 1000), (1020, 2000), (4020, 4000), (4100, 5000)],
)  # fmt: skip
def test_cpus_are_rounded_up_but_not_for_a_hundredth(used: float, enough: int) -> None:
    assert enough_cpu(used) == enough


@pytest.mark.parametrize(
    ("peak", "enough"),
    [
        (MIB, 64 * MIB),
        (100 * MIB, 128 * MIB),
        (400 * MIB, 512 * MIB),
        (GIB, 1280 * MIB),
        (10 * GIB, 13 * GIB),
    ],
)
def test_memory_has_a_quarter_more_in_round_numbers(peak: int, enough: int) -> None:
    assert enough_memory(peak) == enough


@given(st.integers(0, MAX_MEMORY))
def test_memory_is_never_less_than_the_headroom_nor_much_more(peak: int) -> None:
    wanted = max(peak * 1.25, 64 * MIB)
    assert min(wanted, MAX_MEMORY) <= enough_memory(peak) <= wanted * 1.126 + 16 * MIB


def test_the_largest_task_decides_and_the_smallest_size_is_named() -> None:
    found = suggested(
        role(size="large"), ended("worker-0", 0.5, 300 * MIB), ended("worker-1", 2.5, 5 * GIB, 50.0)
    )
    assert (found.used.measured, found.used.seconds, found.used.memory) == (2, 100.0, 5 * GIB)
    assert (found.cpu, found.memory, found.size) == (3000, 6656 * MIB, "medium")
    assert found.changes
    assert found.notes == ()


def test_roles_are_judged_by_themselves() -> None:
    status = JobStatus(State.COMPLETED, (ended("ps-0", 0.1, MIB), ended("my-ps-0", 3, GIB)))
    ps, mine = suggest({"ps": role(cpu=1), "my-ps": role(cpu=4)}, status, TABLE)
    assert (ps.cpu, mine.cpu) == (100, 3000)


def test_a_job_that_asks_for_what_it_needs_changes_nothing() -> None:
    assert not suggested(role(cpu=2, memory="128Mi"), ended("worker-0", 1.5, 100 * MIB)).changes


@pytest.mark.parametrize(
    ("resources", "cpu", "size"),
    [
        ({"gpu": 1, "gpuType": "v100"}, 3000, "v100-1"),
        ({"gpu": 2, "gpuType": "a100"}, 3000, "a100-2"),
        ({"gpu": 4, "gpuType": "a100"}, 41_000, None),
        ({"gpu": 1}, 3000, None),
        ({"gpu": 0.5, "gpuType": "a100"}, 1000, None),
        ({}, 17_000, None),
    ],
)
def test_a_size_must_have_the_same_gpus(resources: dict[str, Any], cpu: int, size: str | None) -> None:
    assert smallest(cpu, GIB, asked(**resources), TABLE) == size


def test_every_size_that_is_named_can_be_asked_for() -> None:
    for gpus in range(5):
        for kind in (None, "k80", "v100", "a100"):
            if name := smallest(100, GIB, asked(gpu=gpus, **({"gpuType": kind} if kind else {})), TABLE):
                spec = find(name, TABLE)
                assert spec is not None
                assert (spec.gpu or 0, spec.gpu_type) == (gpus, kind)


def test_what_makes_the_numbers_doubtful_is_said() -> None:
    memory = Failure(Code.OUT_OF_MEMORY, "too much", "worker-0")
    found = suggested(
        role(cpu=1, memory="64Mi"),
        ended("worker-0", 0.99, 64 * MIB, 5.0, failure=memory),
        ended("worker-1", None, None),
        TaskStatus("worker-2"),
    )
    assert found.tasks == 2
    assert [note.partition(":")[0] for note in found.notes] == [
        "a task was ended at its memory limit",
        "all CPUs were busy",
        "it ran for 5.0 s only",
        "1 of 2 tasks were measured",
    ]
    assert "largest process" in suggested(role(cpu=2), ended("worker-0", 1, GIB)).notes[0]


@pytest.mark.parametrize(
    "task",
    [
        TaskStatus("worker-0"),
        ended("worker-0", 1.0, None),
        ended("worker-0", None, GIB),
        ended("worker-0", 0, GIB, seconds=0.0),
        ended("ps-0", 1.0, GIB),
    ],
    ids=["never ran", "a container", "no cpu", "no time", "another role"],
)
def test_where_nothing_was_measured_nothing_is_suggested(task: TaskStatus) -> None:
    found = suggested(role(cpu=1), task)
    assert (found.used, found.cpu, found.memory, found.size, found.changes) == (None, None, None, None, False)
