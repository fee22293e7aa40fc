"""How many workers a job should have: its start against its length, and nine jobs of a sweep on 1, 2 and 3 nodes.

Expected: more workers divide the work, and add a start each and more coordination. So a short job is slower with five
workers than with one and a long job faster. Where a worker takes 2 s to spawn, one after the other, as in the experiment
that this one repeats, a job of 5 s takes 7 s with one worker and 11 s with five, one of 20 s 22 s and 14 s: five pay from 10 s on.
Weft starts a gang's tasks together, so five should pay much sooner. In a sweep more jobs than fit wait: there five workers a
job gain only where two would leave accelerators idle.

How: parameter-server jobs with 1 server; the nodes are virtual, of one machine. So that the machine's few cores do not decide, a
gradient waits 50 ms besides its computation, as if an accelerator did it: a job's work is what all its waits make up.
In the sweep (1, 2 and 3 hidden layers, rates 0.1, 0.01 and 0.001) a node has 5 virtual GPUs and a worker takes one, so a node holds
two jobs of 2 workers or one job of 5; all nine are submitted at once, each has 10 s of work. Times are from submission to COMPLETED.
"""

from __future__ import annotations

import itertools
import statistics
from typing import Any

from disturbed import Watched
from harness import (
    BENCHMARKS,
    PYTHON,
    Claim,
    Server,
    arguments,
    docstring_part,
    folder_on_disk,
    job,
    picture_path,
    publish,
    spread,
    table,
)

from weft.sim import draw

SCRIPT = BENCHMARKS / "training" / "sweep_ps.py"
WAIT = 0.05
WORKERS = (1, 2, 5)
WORK = {0.25: 5, 1.0: 5, 5.0: 3, 20.0: 3}
"""Seconds of work, and rounds of it."""
NODES, SWEEP_WORKERS, GPUS, SWEEP_WORK = (1, 2, 3), (2, 5), 5, 10.0
LAYERS, RATES = (1, 2, 3), (0.1, 0.01, 0.001)
SPAWN = 2.0
"""Seconds that a worker took to spawn in the experiment that this one repeats."""
Times = dict[tuple[float, int], list[float]]


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    lengths = {0.25: 2, 5.0: 1} if options.quick else WORK
    with folder_on_disk() as folder:
        with Server(folder / "home", "--cpu", "16", "--gpus", "5") as server:
            whole, start = one_job(server, lengths)
        work = 2.0 if options.quick else SWEEP_WORK
        swept = {}
        for nodes in (1,) if options.quick else NODES:
            for workers in SWEEP_WORKERS:
                home = folder / f"sweep-{nodes}-{workers}"
                shape = ("--nodes", str(nodes), "--cpu", str(32 * nodes), "--gpus", str(GPUS * nodes))
                with Server(home, *shape) as server:
                    swept[nodes, workers] = sweep(server, workers, work)
                ends = [one["seconds"] for one in swept[nodes, workers]]
                print(
                    f"{nodes} nodes, {workers} workers: {max(ends):.1f} s, {statistics.fmean(ends):.1f} s",
                    flush=True,
                )
    report(whole, start, swept, work, options.quick)


def training(name: str, workers: int, work: float, layers: int = 1, rate: float = 0.1) -> dict[str, Any]:
    updates = round(work / WAIT)
    return job(
        name,
        [PYTHON, str(SCRIPT)],
        type="parameter-server",
        env={
            "OMP_NUM_THREADS": "1",
            "LAYERS": str(layers),
            "RATE": str(rate),
            "UPDATES": str(updates),
            "WAIT": str(WAIT),
        },
        roles={
            "ps": {"resources": {"cpu": 0.5}},
            "worker": {"replicas": workers, "resources": {"cpu": 0.5, "gpu": 1}},
        },
    )


def one_job(server: Server, lengths: dict[float, int]) -> tuple[Times, Times]:
    """Submission to COMPLETED, and submission until all workers are at their first step."""
    whole: Times = {}
    start: Times = {}
    number = itertools.count()
    for work, rounds in lengths.items():
        for _ in range(rounds):
            for workers in WORKERS:  # in turns, as the machine has other things to do
                watched = Watched(server, training(f"job-{next(number)}", workers, work))
                end(watched)
                submitted = submission(watched)
                whole.setdefault((work, workers), []).append(completion(watched) - submitted)
                firsts = [point["value"] for point in watched.points("first")]
                start.setdefault((work, workers), []).append(max(firsts) - submitted)
        shown = {
            workers: f"{statistics.median(whole[work, workers]):.2f} s, first step {statistics.median(start[work, workers]):.2f} s"
            for workers in WORKERS
        }
        print(f"{work:g} s of work: {shown}", flush=True)
    return whole, start


def sweep(server: Server, workers: int, work: float) -> list[dict[str, Any]]:
    jobs = [
        (layers, rate, Watched(server, training(f"l{layers}-r{place}", workers, work, layers, rate)))
        for layers in LAYERS
        for place, rate in enumerate(RATES)
    ]
    for _, _, watched in jobs:
        end(watched)
    begin = min(submission(watched) for _, _, watched in jobs)
    return [
        {
            "layers": layers,
            "rate": rate,
            "seconds": round(completion(watched) - begin, 2),
            "waited": round((watched.when("DEPLOYING") or begin) - begin, 2),
            "accuracy": round(
                max(watched.points("accuracy"), key=lambda point: int(point["step"]))["value"], 4
            ),
        }
        for layers, rate, watched in jobs
    ]


def end(watched: Watched) -> None:
    if (state := watched.wait(300)) != "COMPLETED":
        raise SystemExit(f"{watched.name} is {state}: {watched.status.get('failure')}")


def submission(watched: Watched) -> float:
    when = watched.when("PENDING")
    assert when is not None
    return when


def completion(watched: Watched) -> float:
    when = watched.when("COMPLETED")
    assert when is not None
    return when


# ── what came out ──


def report(
    whole: Times, start: Times, swept: dict[tuple[int, int], list[Any]], work: float, quick: bool
) -> None:
    median = {case: statistics.median(times) for case, times in whole.items()}
    short, long = min(w for w, _ in median), max(w for w, _ in median)
    begin = {
        workers: statistics.median(t for (_, n), times in start.items() if n == workers for t in times)
        for workers in WORKERS
    }
    beyond = {
        workers: statistics.median(t - w / workers for (w, n), times in whole.items() if n == workers for t in times)
        for workers in WORKERS
    }  # fmt: skip
    pays = (beyond[5] - beyond[1]) / (1 - 1 / 5)
    claims = [
        Claim(f"A job of {short:g} s with 5 workers against 1", median[short, 5] / median[short, 1], 1.0, "×", at_most=False),
        Claim(f"A job of {long:g} s with 5 workers against 1 (0.2 is all there is to gain)", median[long, 5] / median[long, 1], 0.35, "×"),
        Claim("Submit until all of 5 workers are at their first step", begin[5], SPAWN, " s"),
    ]  # fmt: skip
    lengths = sorted({w for w, _ in median})
    scaling = table(
        "One job, seconds from submission to COMPLETED (in brackets: until the last worker is at its first step):",
        ("work", *(f"{n} worker{'s' if n > 1 else ''}" for n in WORKERS), "5 against 1"),
        [
            (
                f"{w:g} s",
                *(f"{median[w, n]:.2f} ({statistics.median(start[w, n]):.2f})" for n in WORKERS),
                f"{median[w, 5] / median[w, 1]:.2f}×",
            )
            for w in lengths
        ],
    )
    ends = {case: [one["seconds"] for one in jobs] for case, jobs in swept.items()}
    nine = table(
        f"Nine jobs of {work:g} s of work submitted at once, seconds:",
        ("Nodes", "PS", "Workers", "Max time", "Avg. time", "jobs at once", "work alone would take"),
        [
            (
                str(nodes),
                "1",
                str(workers),
                f"{max(times):.1f}",
                f"{statistics.fmean(times):.1f}",
                str(nodes * (GPUS // workers)),
                f"{alone(nodes, workers, work):.1f}",
            )
            for (nodes, workers), times in ends.items()
        ],
    )
    last = swept[max(swept)]
    learned = table(
        f"What the jobs learned by then ({round(work / WAIT)} updates), accuracy on held-out images:",
        ("hidden layers", *(f"rate {rate:g}" for rate in RATES)),
        [
            (
                str(layers),
                *(f"{one['accuracy']:.3f}" for rate in RATES for one in last if (one["layers"], one["rate"]) == (layers, rate)),
            )
            for layers in LAYERS
        ],
    )  # fmt: skip
    details = {
        "expected": docstring_part(__doc__, "Expected"),
        "how": docstring_part(__doc__, "How"),
        "cameOut": came_out(median, begin, beyond, pays, ends),
        "tables": [scaling, nine, learned],
        "picture": draw_both(median, beyond, ends, quick),
        "paysFromSeconds": round(pays, 2),
        "firstStep": {str(n): spread([t for (_, m), some in start.items() if m == n for t in some], 3) for n in WORKERS},
        "beyondWork": {str(n): round(seconds, 3) for n, seconds in beyond.items()},
        "seconds": {f"{w:g} s, {n} workers": spread(times, 3) for (w, n), times in whole.items()},
        "sweep": [{"nodes": nodes, "workers": workers, "jobs": jobs} for (nodes, workers), jobs in swept.items()],
    }  # fmt: skip
    print(f"\n{details['cameOut']}\n")
    publish("worker_scaling", claims, details, quick)


def alone(nodes: int, workers: int, work: float) -> float:
    """The nine jobs' waits, as many jobs at once as there is room for, if nothing else took time."""
    at_once = nodes * (GPUS // workers)
    return -(-len(LAYERS) * len(RATES) // at_once) * work / workers


def came_out(
    median: dict[tuple[float, int], float],
    begin: dict[int, float],
    beyond: dict[int, float],
    pays: float,
    ends: dict[tuple[int, int], list[float]],
) -> str:
    short, long = min(w for w, _ in median), max(w for w, _ in median)
    told = [
        f"All of 1, 2 and 5 workers are at their first step {begin[1]:.2f}, {begin[2]:.2f} and {begin[5]:.2f} s after submission, "
        f"against {SPAWN:g} s for each in that experiment; most of it is the start of Python and numpy in all of them on few cores.",
        f"So a job of {short:g} s takes {median[short, 1]:.2f} s with one worker and {median[short, 5]:.2f} s with five, one of "
        f"{long:g} s {median[long, 1]:.1f} s and {median[long, 5]:.1f} s: what is not work takes {beyond[1]:.2f} and {beyond[5]:.2f} s, "
        f"and five pay from {max(pays, 0.0):.1f} s of work on.",
    ]
    for nodes in sorted({n for n, _ in ends}):
        two, five = ends[nodes, 2], ends[nodes, 5]
        told.append(
            f"Nine jobs on {nodes} node{'s' if nodes > 1 else ''}: {max(two):.1f} s with two workers each, {max(five):.1f} s with five."
        )
    told.append(
        "A node with 5 accelerators leaves one idle with jobs of 2 workers, and a last round of jobs that does not fill the nodes "
        "leaves more; jobs of 5 fill a node, but they are 54 processes instead of 27, and the start of Python and numpy in each is "
        "work for the machine's own cores, which all virtual nodes share: on real nodes it would be divided, too."
    )
    return " ".join(told)


def draw_both(
    median: dict[tuple[float, int], float],
    beyond: dict[int, float],
    ends: dict[tuple[int, int], list[float]],
    quick: bool,
) -> str:
    path = picture_path("worker_scaling", quick)
    lengths = sorted({w for w, _ in median})
    with draw.picture(path, 2, width=9.6) as (one, nine):
        fine = [lengths[0] * (lengths[-1] / lengths[0]) ** (i / 60) for i in range(61)]
        for number, n in enumerate(WORKERS):
            name = f"{n} worker{'s' if n > 1 else ''}"
            colour = draw.COLOURS[number]
            one.plot(lengths, [median[w, n] for w in lengths], "o", color=colour, label=name, markersize=4)
            one.plot(fine, [beyond[n] + w / n for w in fine], color=colour, linewidth=1.2)
        one.set(
            xscale="log", yscale="log", title="one job", xlabel="work, s", ylabel="submission to COMPLETED, s"
        )
        ticks = [0.5, 1, 2, 5, 10, 20]
        one.set_xticks(lengths, [f"{w:g}" for w in lengths])
        one.set_yticks(ticks, [f"{t:g}" for t in ticks])
        one.minorticks_off()
        one.legend()
        nodes = sorted({n for n, _ in ends})
        series = {}
        for workers in SWEEP_WORKERS:
            series[f"{workers} workers, last"] = [max(ends[n, workers]) for n in nodes]
            series[f"{workers} workers, average"] = [statistics.fmean(ends[n, workers]) for n in nodes]
        draw.bars(nine, [f"{n} node{'s' if n > 1 else ''}" for n in nodes], series, show=".1f")
        nine.set(title="nine jobs at once", ylabel="s after submission")
        nine.legend()
    return f"{path.name}.svg"


if __name__ == "__main__":
    main()
