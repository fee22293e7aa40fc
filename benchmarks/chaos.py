"""Minutes of kill -9 at random, of two real trainings and of the Weft server itself: do they still learn all there is?

Expected: the demo's model trained by parameter server and by synchronous DDP, at once on one server, comes to the accuracy
that it has undisturbed after as many updates. A killed worker costs the gradient it was computing; a killed parameter
server at most the updates since its snapshot (every 100); a killed DDP worker at most the steps since the checkpoint
(every 10); a killed Weft server nothing, as tasks go on without it.

How: for three minutes, every 1.5 to 3.5 s one of these is killed, chosen at random, workers twice as often as the others: a worker, the parameter
server, a DDP worker (only once the gang has learned something since its last start, which takes PyTorch several seconds),
or the Weft server, which is then started again. Tasks start again by themselves. Then both trainings are told to end, and each
is run again for as many updates with nothing killed. Steps wait
100 ms, as if an accelerator did them, so that the kills begin with the learning; undisturbed, they do not.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from disturbed import Watched, by_ddp, by_parameter_server, kill
from harness import (
    Claim,
    Server,
    arguments,
    docstring_part,
    folder_on_disk,
    picture_path,
    publish,
    table,
    until,
)

from weft.sim import draw

WAIT, TEST_EVERY = 0.1, 30
SNAPSHOT_EVERY, SAVE_EVERY = 100, 10
SECONDS = 180.0
PAUSES = (1.5, 3.5)
LEARNED = 3
"""Tests of a DDP launch before it may be killed again."""
WORKER, PS, DDP, SERVER = "a worker", "the parameter server", "a DDP worker", "the Weft server"


@dataclass
class Chaos:
    """What was killed, and when."""

    server: Server
    ps: Watched
    ddp: Watched
    chance: random.Random
    kills: list[tuple[float, str]] = field(default_factory=list)

    def last(self, what: str) -> float:
        return max((when for when, killed in self.kills if killed == what), default=0.0)

    def once(self) -> None:
        gang = [DDP, DDP] if self.gang_learned() else []
        victim = self.chance.choice([WORKER, WORKER, PS, SERVER, *gang])
        now = time.time()
        if victim == SERVER:
            self.server.kill()
            self.kills.append((now, victim))
            self.server.start()
            return
        watched, role = (
            (self.ddp, "worker") if victim == DDP else (self.ps, "ps" if victim == PS else "worker")
        )
        self.kills += [(now, victim) for _ in kill(watched, self.chance, 1, role)]

    def gang_learned(self) -> bool:
        starts = [point["time"] for point in self.ddp.points("lost")]
        if not starts or starts[-1] < self.last(DDP):
            return False
        return sum(point["time"] > starts[-1] for point in self.ddp.points("accuracy")) >= LEARNED


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    seconds = 25.0 if options.quick else SECONDS
    with folder_on_disk() as folder, Server(folder / "home", "--cpu", "8") as server:
        shared = {"ps": folder / "ps", "ddp": folder / "ddp"}
        settings = {"WAIT": WAIT, "TEST_EVERY": TEST_EVERY}
        ddp = Watched(server, by_ddp("ddp", shared["ddp"], **settings, SAVE_EVERY=SAVE_EVERY))
        ps = Watched(
            server, by_parameter_server("ps", shared["ps"], **settings, SNAPSHOT_EVERY=SNAPSHOT_EVERY)
        )
        until(lambda: bool(ps.points("accuracy")), "the first test", 120, 0.2)
        chaos = Chaos(server, ps, ddp, random.Random(1))
        began = time.time()
        while time.time() < began + seconds:
            time.sleep(chaos.chance.uniform(*PAUSES))
            chaos.once()
        for where in shared.values():
            (where / "stop").touch()
        for watched in (ps, ddp):
            ended_well(watched)
        calm = undisturbed(server, folder, reached(ps)[0], reached(ddp)[0])
        report(chaos, began, seconds, shared["ps"], calm, options.quick)


def undisturbed(server: Server, folder: Path, updates: int, steps: int) -> tuple[Watched, Watched]:
    """The same for as many updates, one after the other."""
    settings = {"WAIT": 0, "TEST_EVERY": TEST_EVERY}
    ps = Watched(
        server,
        by_parameter_server(
            "ps-calm", folder / "ps-calm", **settings, SNAPSHOT_EVERY=SNAPSHOT_EVERY, UPDATES=updates
        ),
    )
    ended_well(ps)
    ddp = Watched(
        server, by_ddp("ddp-calm", folder / "ddp-calm", **settings, SAVE_EVERY=SAVE_EVERY, STEPS=steps)
    )
    ended_well(ddp)
    return ps, ddp


def ended_well(watched: Watched) -> None:
    if (state := watched.wait(240)) != "COMPLETED":
        raise SystemExit(f"{watched.name} is {state}: {watched.status.get('failure')}")


def reached(watched: Watched) -> tuple[int, float]:
    """Updates and accuracy at the end."""
    last = max(watched.points("final"), key=lambda point: int(point["step"]))
    return int(last["step"]), float(last["value"])


# ── what came out ──


def report(
    chaos: Chaos, began: float, seconds: float, shared: Path, calm: tuple[Watched, Watched], quick: bool
) -> None:
    disturbed = (chaos.ps, chaos.ddp)
    ends = [(reached(one), reached(other)) for one, other in zip(disturbed, calm, strict=True)]
    counted = Counter(what for _, what in chaos.kills)
    falls = [int(point["value"]) for point in chaos.ps.points("lost")]
    gang_lost = [int(point["value"]) for point in chaos.ddp.points("lost")]
    begun = (shared / "begun").stat().st_size
    ps_lost = begun - ends[0][0][0]
    many = f"{len(chaos.kills)} kills in {seconds:.0f} s"
    claims = [
        Claim(f"{many}: accuracy by parameter server below that of an undisturbed run", below(ends[0]), 0.01, digits=4),
        Claim("… by synchronous DDP below that of an undisturbed run", below(ends[1]), 0.01, digits=4),
        Claim("… most updates lost by a kill of the parameter server, of one snapshot interval", max(falls, default=0) / SNAPSHOT_EVERY, 1.0, "×"),
        Claim("… most steps lost by a kill in the DDP gang, of one checkpoint interval", max(gang_lost) / SAVE_EVERY, 1.0, "×"),
    ]  # fmt: skip
    rows = [
        (
            way,
            f"{one[1]:.4f}",
            f"{other[1]:.4f}",
            f"{one[0]:,}",
            f"{kills}",
            f"{lost:,}",
            f"{most} of {interval}",
        )
        for way, (one, other), kills, lost, most, interval in (
            ("parameter server, updates", ends[0], counted[WORKER] + counted[PS], ps_lost, max(falls, default=0), SNAPSHOT_EVERY),
            ("synchronous DDP, steps", ends[1], counted[DDP], sum(gang_lost), max(gang_lost), SAVE_EVERY),
        )
    ]  # fmt: skip
    titles = (
        "",
        "accuracy",
        "undisturbed",
        "done",
        "tasks killed",
        "lost in all",
        "lost at most by one kill",
    )
    victims = ", ".join(f"{what} {counted[what]}" for what in (WORKER, PS, DDP, SERVER))
    details = {
        "expected": docstring_part(__doc__, "Expected"),
        "how": docstring_part(__doc__, "How"),
        "cameOut": (
            f"{many} ({victims}). Both jobs ended COMPLETED, the parameter server's with an accuracy of {ends[0][0][1]:.4f} "
            f"against {ends[0][1][1]:.4f} undisturbed, DDP's with {ends[1][0][1]:.4f} against {ends[1][1][1]:.4f} (one of the "
            f"360 held-out images is 0.0028). Of {begun:,} gradients that workers began, {ps_lost:,} are in no parameter; the "
            f"snapshots of the parameter server were {sum(falls):,} updates behind in all when it was killed. DDP did "
            f"{sum(gang_lost):,} of its steps twice."
        ),
        "tables": [table(f"After {many}:", titles, rows)],
        "picture": draw_chaos(chaos, began, ends, quick),
        "seconds": round(seconds),
        "kills": [[round(when - began, 2), what] for when, what in chaos.kills],
        "counted": dict(counted),
        "updatesLostByServerKills": falls,
        "updatesBegun": begun,
        "updatesLost": ps_lost,
        "gangStepsLost": gang_lost,
        "ends": [
            {"way": way, "updates": one[0], "accuracy": round(one[1], 4), "undisturbed": round(other[1], 4)}
            for way, (one, other) in zip(("parameter-server", "ddp"), ends, strict=True)
        ],
    }
    print(f"\n{details['cameOut']}\n")
    publish("chaos", claims, details, quick)


def below(ends: tuple[tuple[int, float], tuple[int, float]]) -> float:
    return max(0.0, ends[1][1] - ends[0][1])


def draw_chaos(chaos: Chaos, began: float, ends: Any, quick: bool) -> str:
    path = picture_path("chaos", quick)
    parts = (
        ("by parameter server", chaos.ps, (WORKER, PS, SERVER)),
        ("by synchronous DDP", chaos.ddp, (DDP, SERVER)),
    )
    colours = {WORKER: draw.COLOURS[1], DDP: draw.COLOURS[1], PS: draw.COLOURS[3], SERVER: draw.COLOURS[4]}
    with draw.picture(path, 2, width=9.6) as panels:
        for axes, (title, watched, victims), (_, calm) in zip(panels, parts, ends, strict=True):
            tested = watched.points("accuracy")
            axes.plot(
                [p["time"] - began for p in tested],
                [p["value"] for p in tested],
                linewidth=1.0,
                color=draw.COLOURS[0],
                label="accuracy",
            )
            axes.axhline(
                calm[1], color="#9ca3af", linewidth=0.9, linestyle="--", label="undisturbed, at the end"
            )
            for what in victims:
                when = [at - began for at, killed in chaos.kills if killed == what]
                label = "a worker killed" if what in (WORKER, DDP) else f"{what} killed"
                axes.plot(when, [0.43 + 0.03 * victims.index(what)] * len(when), "|", color=colours[what], markersize=9, label=label)  # fmt: skip
            axes.set(title=title, xlabel="seconds since the kills began", ylim=(0.4, 1.0))
            draw.percent(axes.yaxis)
        panels[0].set_ylabel("accuracy on held-out images")
        draw.legend(panels[0])
    return f"{path.name}.svg"


if __name__ == "__main__":
    main()
