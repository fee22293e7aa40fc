"""`weft sim`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from weft.cli import moments, terminal
from weft.cli.meter import meter
from weft.cli.output import PageForm, print_table, print_whole
from weft.cli.table import Column
from weft.client.errors import BadDocument
from weft.client.jobspec import BadOption

if TYPE_CHECKING:
    from weft.model.node import Node
    from weft.scheduler.queues import QueueRule
    from weft.sim.metrics import Metrics
    from weft.sim.outcome import Outcome
    from weft.sim.workload import Arrival

GENERATED = "generated"


def sim(
    *,
    workload: str = GENERATED,
    policy: Annotated[list[str] | None, Parameter(name=["--policy", "-p"])] = None,
    nodes: int | None = None,
    gpus: int | None = None,
    cluster: Path | None = None,
    load: float | None = None,
    jobs: int | None = None,
    seed: int = 1,
    mix: str = "philly",
    queues: bool = False,
    mtbf: str | None = None,
    out: Path | None = None,
    output: PageForm = None,
) -> int:
    """Simulate a cluster: what a workload would have met under one or several policies. Needs no server.

    It decides with the same function as the server, in virtual time. The same arguments give the same outcome.

    For example:
      weft sim
      weft sim --policy default,fifo,least-attained --load 1.2 --out DIR
      weft sim --workload philly.csv --nodes 40 --gpus 8
      weft sim --cluster openb_nodes.csv --workload openb_pods.csv --mtbf 30d

    Parameters
    ----------
    workload
        A CSV file of the shape of the Philly or the Alibaba trace, or `generated` (the default).
    policy
        Names, with commas between: default, expected, fifo, fifo-backfill, shortest, least-attained, fair. With
        +oracle at its end a policy is told how long every job will run. Repeatable.
    nodes
        So many equal nodes. Where it is left out, as many as make the load.
    gpus
        GPUs of each of these nodes; 8 where nothing is said.
    cluster
        A file of nodes instead: CSV of the shape of the Alibaba trace, or YAML with `nodes` and `queues`.
    load
        GPU time asked for, of the GPU time there is. Sets the number of nodes (1.0 where nothing is said); with
        --nodes or --cluster, how close together the jobs come.
    jobs
        Only the first so many; of a generated workload, how many to make (2000).
    seed
        Of all that is left to chance.
    mix
        What is generated: philly, or gangs (more large jobs).
    queues
        Every owner (virtual cluster) gets a queue of its own. The policy fair always has them.
    mtbf
        Nodes fail, each once in so long on average, like 30d; they are back after an hour on average.
    out
        A folder to write summary.json, CSV files of jobs and samples, and pictures into.
    output
        json or yaml: all numbers (and no pictures).
    """
    from weft.sim.badfile import BadFile
    from weft.sim.compare import policy_of

    names = [name for text in policy or ["default"] for name in text.split(",") if name]
    if cluster is not None and (nodes is not None or gpus is not None):
        raise BadOption("--cluster says what the nodes are: leave --nodes and --gpus out")
    for option, value in (("--nodes", nodes), ("--gpus", gpus), ("--jobs", jobs), ("--load", load)):
        if value is not None and value <= 0:
            raise BadOption(f"{option} must be more than 0 (got {value:g})")
    try:
        for name in names:
            policy_of(name)
        between = _seconds(mtbf) if mtbf is not None else None
        arrivals = _workload(workload, jobs, seed, mix)
    except BadFile as problem:
        raise BadDocument(str(problem), next="weft sim --help") from None
    except ValueError as problem:
        raise BadOption(str(problem)) from None
    try:
        machines, rules, arrivals = _cluster(cluster, nodes, gpus, load, arrivals)
    except BadFile as problem:
        raise BadDocument(str(problem), next="weft sim --help") from None
    except ValueError as problem:
        raise BadOption(f"--load: {problem}") from None
    about = _about(workload, machines, arrivals, seed)
    if output is None:
        terminal.note(
            f"{about['jobs']:,} jobs over {moments.span(about['span'])} on {about['nodes']:,} nodes with {about['gpus']:,} GPUs, "
            f"load {about['load']:.2f}"
        )
    outcomes, metrics = _run(names, machines, arrivals, rules, queues, between, seed)
    if out is not None:
        from weft.sim.report import write_numbers

        write_numbers(out, about, outcomes, metrics)
    if output is not None:
        from weft.sim.report import dump

        print_whole({**about, "policies": {name: dump(found) for name, found in metrics.items()}}, output)
        return 0
    print_table(*_table(metrics))
    if out is not None:
        _draw(out, outcomes, metrics)
    else:
        terminal.next_step("weft sim --policy default,fifo,least-attained,fair --out DIR")
    return 0


# ── what goes in ──


def _seconds(text: str) -> float:
    from weft.model.quantities import parse_duration

    try:
        seconds = parse_duration(text)
    except ValueError as problem:
        raise BadOption(f"--mtbf: {problem}") from None
    if seconds <= 0:
        raise BadOption("--mtbf must be more than 0")
    return seconds


def _workload(workload: str, jobs: int | None, seed: int, mix: str) -> list[Arrival]:
    from weft.sim.generate import SHAPES, generate
    from weft.sim.workloadfile import read_workload

    if workload != GENERATED:
        return read_workload(Path(workload), jobs)
    if mix not in SHAPES:
        raise BadOption(f"no mix {mix}; there are {', '.join(SHAPES)}")
    return generate(SHAPES[mix], jobs or 2000, seed)


def _cluster(
    file: Path | None, nodes: int | None, gpus: int | None, load: float | None, arrivals: list[Arrival]
) -> tuple[list[Node], tuple[QueueRule, ...], list[Arrival]]:
    from weft.sim.alibaba import labelled
    from weft.sim.clusterfile import equal_nodes, read_cluster
    from weft.sim.workload import GPUS_A_TASK, at_load, nodes_for

    rules: tuple[QueueRule, ...] = ()
    if file is not None:
        found = read_cluster(file)
        machines, rules = list(found.nodes), found.queues
    else:
        each = gpus or GPUS_A_TASK
        machines = equal_nodes(nodes or nodes_for(arrivals, load or 1.0, each), each)
    if load is not None and (file is not None or nodes is not None):
        arrivals = at_load(arrivals, sum(len(machine.gpus) for machine in machines), load)
    return labelled(machines, arrivals), rules, arrivals


def _about(workload: str, machines: Sequence[Node], arrivals: Sequence[Arrival], seed: int) -> dict[str, Any]:
    from weft.sim.workload import load_on, span_of

    gpus = sum(len(machine.gpus) for machine in machines)
    return {
        "workload": Path(workload).name,
        "seed": seed,
        "jobs": len(arrivals),
        "span": round(span_of(arrivals)),
        "nodes": len(machines),
        "gpus": gpus,
        "load": round(load_on(arrivals, gpus), 4),
    }


# ── what comes out ──


def _run(
    names: Sequence[str],
    machines: Sequence[Node],
    arrivals: Sequence[Arrival],
    rules: Sequence[QueueRule],
    queues: bool,
    mtbf: float | None,
    seed: int,
) -> tuple[dict[str, Outcome], dict[str, Metrics]]:
    from weft.sim.compare import simulate
    from weft.sim.failures import failures
    from weft.sim.metrics import measure

    outcomes: dict[str, Outcome] = {}
    metrics: dict[str, Metrics] = {}
    for name in names:
        lost = failures(machines, mtbf, seed=seed) if mtbf else ()
        with meter("{:,} jobs".format) as progress:

            def told(ended: int, total: int, name: str = name, progress: Any = progress) -> None:
                progress(name, ended, total)

            outcomes[name] = simulate(
                name,
                machines,
                arrivals,
                rules=rules,
                failures=lost,
                queues=queues,
                progress=told if progress is not None else None,
            )
        metrics[name] = measure(outcomes[name])
    return outcomes, metrics


def _table(metrics: dict[str, Metrics]) -> tuple[list[Column], list[list[str]]]:
    span = moments.span

    def wait(found: Metrics, size: str) -> str:
        total = found.queueing[size].total
        return f"{span(total.mean)} / {span(total.p99)}" if found.queueing[size].jobs else "-"

    some = next(iter(metrics.values()))
    rows: list[list[str]] = [
        ["completion, mean", *(span(m.completion.mean) for m in metrics.values())],
        ["completion, p50", *(span(m.completion.p50) for m in metrics.values())],
        ["completion, p99", *(span(m.completion.p99) for m in metrics.values())],
    ]
    for size in some.queueing:
        rows.append([f"wait, {size}: mean / p99", *(wait(m, size) for m in metrics.values())])
    rows += [
        ["queued over 15 min", *(f"{m.queued_long:.1%}" for m in metrics.values())],
        ["makespan", *(span(m.makespan) for m in metrics.values())],
        ["GPUs allocated / useful", *(f"{m.allocated:.1%} / {m.useful:.1%}" for m in metrics.values())],
        ["GPUs stranded", *(f"{m.stranded:.1%}" for m in metrics.values())],
        ["deadlocked GPU time", *(span(m.deadlocked) if m.deadlocked else "0" for m in metrics.values())],
        [
            "preemptions / restarts a job",
            *(f"{m.preemptions:.2f} / {m.restarts:.2f}" for m in metrics.values()),
        ],
        [
            "fairness, mean / p99",
            *(f"{m.fairness.mean:.2f} / {m.fairness.p99:.1f}" for m in metrics.values()),
        ],
        [
            "decision, p50 / p99 ms",
            *(f"{1e3 * m.decision.p50:.2f} / {1e3 * m.decision.p99:.1f}" for m in metrics.values()),
        ],
    ]
    if any(m.unfinished for m in metrics.values()):
        rows.append(["never finished", *(f"{m.unfinished:,}" for m in metrics.values())])
    return [Column("METRIC"), *(Column(name.upper(), right=True) for name in metrics)], rows


def _draw(out: Path, outcomes: dict[str, Outcome], metrics: dict[str, Metrics]) -> None:
    from weft.sim.draw import NoMatplotlib
    from weft.sim.report import draw_all

    try:
        pictures = draw_all(out, outcomes, metrics)
    except NoMatplotlib as problem:
        terminal.note(f"no pictures: {problem}")
        terminal.next_step(f"cat {out / 'summary.json'}")
        return
    terminal.note(
        f"written to {out}: summary.json, CSV files and pictures ({', '.join(pictures)}; .svg and .png)"
    )
    terminal.next_step(f"xdg-open {out / (pictures[0] + '.png')}")
