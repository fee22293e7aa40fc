"""Time to accuracy of the demo's model while workers are killed: a parameter server against synchronous DDP.

Expected: asynchronous workers lose only what the killed ones would have done until they are back: with 1 or 2 of 3 killed
every 5 s and back in less than a second, 5 to 15 % more time. Synchronous DDP starts again as a whole from its
checkpoint, so each kill costs it the start of PyTorch in all workers; if that takes longer than 5 s, it gets nowhere.

How: three workers, batches of 32, the demo's model, data and rate; in both, a step takes 90 ms of waiting besides its
computation, as if an accelerator did it. DDP (job type pytorch, gloo) saves with weft.checkpoint every 10 steps. The clock
runs from PROCESSING until the mean of the last five tests on held-out images (one every 30 gradients) is 0.96.
As DDP may not start within 5 s, it is also run with one kill 10 s after the first step of each launch.
Kills are kill -9 of all processes of tasks that are chosen at random; tasks start again at once.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disturbed import WORKERS, Watched, by_ddp, by_parameter_server, kill
from harness import (
    Claim,
    Server,
    arguments,
    docstring_part,
    folder_on_disk,
    picture_path,
    publish,
    spread,
    table,
    until,
)

from weft.sim import draw

WAIT, TEST_EVERY, SAVE_EVERY = 0.09, 30, 10
TARGET, TESTS = 0.96, 5
EVERY, LEARNING = 5.0, 10.0
LIMIT = 75.0
PS, DDP = "parameter server", "synchronous DDP"


@dataclass(frozen=True, slots=True)
class Case:
    way: str
    kills: int
    every: float = EVERY
    learning: bool = False
    """The time to the next kill runs only from the first step after the last one."""

    @property
    def named(self) -> str:
        if self.learning:
            return f"{self.kills} killed after every {self.every:g} s of steps"
        return f"{self.kills} killed every {self.every:g} s" if self.kills else "none killed"


@dataclass(frozen=True, slots=True)
class Run:
    case: Case
    seconds: float | None
    """None: not within the limit."""
    first_step: float | None
    curve: list[tuple[float, float]]
    killed: int
    lost: int
    """Gradients that were begun and are in no parameter."""
    steps: int
    limit: float

    @property
    def at_least(self) -> float:
        return self.limit if self.seconds is None else self.seconds


UNDISTURBED = {PS: Case(PS, 0), DDP: Case(DDP, 0)}
OFTEN = [Case(way, kills) for way in (PS, DDP) for kills in (1, 2)]
RARELY = Case(DDP, 1, LEARNING, learning=True)


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    rounds = 1 if options.quick else 3
    cases = [UNDISTURBED[PS], UNDISTURBED[DDP], *OFTEN, RARELY]
    if options.quick:
        cases = [UNDISTURBED[PS], UNDISTURBED[DDP], Case(PS, 1), Case(PS, 2), Case(DDP, 1), Case(DDP, 2)]
    runs: list[Run] = []
    with folder_on_disk() as folder, Server(folder / "home", "--cpu", "8") as server:
        for number in range(rounds):
            for case in cases:
                if number and case.way == DDP and case.kills:
                    continue  # it is a bound or takes a minute: once
                limit = (15.0 if case.way == DDP else 45.0) if options.quick else LIMIT
                runs.append(train(server, folder, case, number, limit))
                print(f"{case.way}, {case.named}: {shown(runs[-1])}, {runs[-1].killed} kills", flush=True)
    report(runs, options.quick)


def train(server: Server, folder: Path, case: Case, number: int, limit: float) -> Run:
    name = f"{'ps' if case.way == PS else 'ddp'}-{case.kills}-{case.every:g}s-{number}"
    shared = folder / name
    settings: dict[str, object] = {"WAIT": WAIT, "TEST_EVERY": TEST_EVERY}
    if case.way == PS:
        watched = Watched(server, by_parameter_server(name, shared, **settings))
    else:
        watched = Watched(server, by_ddp(name, shared, **settings, SAVE_EVERY=SAVE_EVERY))
    until(lambda: watched.when("PROCESSING") is not None, "its start")
    began = watched.when("PROCESSING") or 0.0
    limit = limit if case in OFTEN else 2 * LIMIT  # those that get there at all may take their time
    chance, killed, due, reached = random.Random(number), 0, began + case.every, None
    last = began
    while (reached := accurate(watched.points("accuracy"))) is None and time.time() < began + limit:
        if case.learning:
            starts = [point["time"] for point in watched.points("lost") if point["time"] > last]
            due = starts[-1] + case.every if starts else math.inf
        if case.kills and time.time() >= due:
            last = time.time()
            killed += len(kill(watched, chance, case.kills, "worker"))
            due += case.every
        time.sleep(0.2)
    (shared / "stop").touch()
    if reached is None:
        watched.cancel()
    else:
        watched.wait(60)
    tested = watched.points("accuracy")
    started = watched.points("joined", "lost")  # the first that a training logs
    lost, steps = losses(watched, case.way, shared)
    return Run(
        case,
        None if reached is None else reached - began,
        started[0]["time"] - began if started else None,
        [(point["time"] - began, point["value"]) for point in tested],
        killed,
        lost,
        steps,
        limit,
    )


def accurate(points: Sequence[dict[str, Any]]) -> float | None:
    """When the mean of so many tests was first at the target."""
    for last in range(TESTS, len(points) + 1):
        if statistics.fmean(point["value"] for point in points[last - TESTS : last]) >= TARGET:
            return float(points[last - 1]["time"])
    return None


def losses(watched: Watched, way: str, shared: Path) -> tuple[int, int]:
    """Gradients begun that are in no parameter, and updates that are."""
    if way == PS:
        last = max((p["step"] for p in watched.points("final", "accuracy")), default=0)
        begun = (shared / "begun").stat().st_size if (shared / "begun").exists() else 0
        return begun - last, last
    last = max((p["step"] for p in watched.points("final", "accuracy")), default=0)
    return WORKERS * sum(int(p["value"]) for p in watched.points("lost")), last


# ── what came out ──


def report(runs: list[Run], quick: bool) -> None:
    by_case: dict[Case, list[Run]] = {}
    for run in runs:
        by_case.setdefault(run.case, []).append(run)
    median = {case: statistics.median(run.at_least for run in some) for case, some in by_case.items()}

    def ratio(case: Case) -> float:
        return median[case] / median[UNDISTURBED[case.way]]

    def against(kills: int) -> float:
        return median[Case(DDP, kills)] / median[Case(PS, kills)]

    claims = [
        Claim(f"Time to accuracy by parameter server, 1 of {WORKERS} workers killed every 5 s, against none killed", ratio(Case(PS, 1)), 1.25, "×"),
        Claim(f"… 2 of {WORKERS} killed every 5 s", ratio(Case(PS, 2)), 1.5, "×"),
        Claim("Synchronous DDP against it, 1 killed every 5 s, at least", against(1), 2.0, "×", at_most=False),
        Claim("… 2 killed every 5 s, at least", against(2), 2.0, "×", at_most=False),
    ]  # fmt: skip
    rows = [
        (
            case.way,
            case.named,
            "; ".join(shown(run) for run in some),
            f"{'' if all(run.seconds for run in some) else '> '}{ratio(case):.2f}×",
            started(some),
            f"{sum(run.killed for run in some) / len(some):.0f}",
            f"{sum(run.lost for run in some) / len(some):.0f}",
        )
        for case, some in by_case.items()
    ]
    titles = ("", "workers", f"to accuracy {TARGET:g}", "against none killed", "first step after", "kills a run", "gradients lost a run")  # fmt: skip
    details = {
        "expected": docstring_part(__doc__, "Expected"),
        "how": docstring_part(__doc__, "How"),
        "cameOut": came_out(by_case, median, ratio),
        "tables": [table("Time to accuracy, every run:", titles, rows)],
        "picture": draw_curves(by_case, quick),
        "seconds": {
            f"{case.way}, {case.named}": spread([run.at_least for run in some], 2)
            for case, some in by_case.items()
        },
        "runs": [dump(run) for run in runs],
    }
    print(f"\n{details['cameOut']}\n")
    publish("time_to_accuracy", claims, details, quick)


def shown(run: Run) -> str:
    return f"not in {run.limit:g} s" if run.seconds is None else f"{run.seconds:.1f} s"


def took(run: Run) -> str:
    return f"was not there in {run.limit:g} s" if run.seconds is None else f"took {run.seconds:.1f} s"


def started(runs: list[Run]) -> str:
    found = [run.first_step for run in runs if run.first_step is not None]
    return f"{statistics.median(found):.1f} s" if found else "never"


def came_out(by_case: dict[Case, list[Run]], median: dict[Case, float], ratio: Any) -> str:
    ps, ddp = UNDISTURBED[PS], UNDISTURBED[DDP]
    begin = statistics.median(run.first_step or 0.0 for run in by_case[ddp])
    steps = {
        case: statistics.median(run.at_least - (run.first_step or 0.0) for run in by_case[case])
        for case in (ps, ddp)
    }
    told = [
        f"Undisturbed {median[ps]:.1f} s by parameter server and {median[ddp]:.1f} s by DDP, of which {begin:.1f} s are the "
        f"start of PyTorch in {WORKERS} workers on these cores; from their first step on they take {steps[ps]:.1f} s and {steps[ddp]:.1f} s.",
        f"With 1 and 2 workers killed every {EVERY:g} s the parameter server took {ratio(Case(PS, 1)):.2f}× and "
        f"{ratio(Case(PS, 2)):.2f}× as long and lost {lost_each(by_case, 1)} and {lost_each(by_case, 2)} gradients a kill: "
        "those that the killed were computing.",
    ]
    for kills in (1, 2):
        for run in by_case.get(Case(DDP, kills), []):
            best = max((accuracy for _, accuracy in run.curve), default=None)
            reached = "made not one test" if best is None else f"came to {best:.2f}"
            told.append(
                f"DDP with {kills} killed every {EVERY:g} s "
                + (f"{reached} in {run.limit:g} s." if run.seconds is None else f"{took(run)}.")
            )
    if begin > EVERY:
        told.append(
            f"It cannot be otherwise: it is killed again before the {begin:.1f} s of its start are over, so the number is "
            "a bound, and says more of PyTorch's imports than of synchronous training."
        )
    for run in by_case.get(RARELY, []):
        told.append(
            f"Left alone until it has made steps for {LEARNING:g} s, then killed, DDP {took(run)} ({ratio(RARELY):.2f}×) with "
            f"{run.killed} kills, each of which cost it one such start and {run.lost / max(1, run.killed):.0f} gradients."
        )
    return " ".join(told)


def lost_each(by_case: dict[Case, list[Run]], kills: int) -> str:
    some = by_case[Case(PS, kills)]
    return f"{sum(run.lost for run in some) / max(1, sum(run.killed for run in some)):.1f}"


def dump(run: Run) -> dict[str, Any]:
    return {
        "way": run.case.way,
        "kills": run.case.kills,
        "everySeconds": run.case.every if run.case.kills else None,
        "onlyOfSteps": run.case.learning,
        "seconds": None if run.seconds is None else round(run.seconds, 2),
        "firstStep": None if run.first_step is None else round(run.first_step, 2),
        "killed": run.killed,
        "gradientsLost": run.lost,
        "steps": run.steps,
        "curve": [[round(when, 2), round(accuracy, 4)] for when, accuracy in run.curve],
    }


def draw_curves(by_case: dict[Case, list[Run]], quick: bool) -> str:
    """One panel for each number of kills, the curves of the first round; a rare kill is drawn among those of one."""
    path = picture_path("time_to_accuracy", quick)
    with draw.picture(path, 3, width=9.6) as panels:
        for kills, axes in enumerate(panels):
            for case, some in by_case.items():
                if case.kills != kills:
                    continue
                name = case.way + (f", killed after {case.every:g} s of steps" if case == RARELY else "")
                look = draw.style(name, [PS, DDP].index(case.way) if case != RARELY else 2)
                for place, run in enumerate(some):
                    times = [0.0, run.first_step or 0.0, *(when for when, _ in run.curve)]
                    values = [0.1, 0.1, *(accuracy for _, accuracy in run.curve)]
                    if run.seconds is None:  # until it was given up
                        times, values = [*times, run.limit], [*values, values[-1]]
                    axes.plot(times, values, label=name if place == 0 else None, linewidth=1.4, **look)
            axes.axhline(TARGET, color="#9ca3af", linewidth=0.8)
            axes.set(title=f"{kills} of {WORKERS} killed every {EVERY:g} s" if kills else "none killed")
            axes.set(xlabel="seconds since PROCESSING", ylim=(0, 1.02), xlim=(0, None))
            draw.percent(axes.yaxis)
        panels[0].set_ylabel("accuracy on held-out images")
        draw.legend(panels[1])
    return f"{path.name}.svg"


if __name__ == "__main__":
    main()
