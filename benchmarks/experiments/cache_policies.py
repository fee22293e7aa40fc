"""(g) How much of a dataset's reads a cache answers that cannot hold all of it.

    .venv/bin/python benchmarks/experiments/cache_policies.py [--seed 1] [--parts 2000] [--epochs 8]

Expected: every part is read once an epoch. With no replacement (NR) the hit ratio is c = cache/dataset from the second
epoch on, in any order: what is in stays in. No policy can do better, since at most the part c is there when an epoch
begins; Belady, who knows the future, only ties. LRU in the same order each epoch never hits for c < 1, because every
part leaves just before it is wanted; in a fresh shuffle it hits c + (1 - c) ln(1 - c). FIFO and random lie between.

The cache's own `admit` decides in all of them; only the order in which parts would go differs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import lab

from weft.data.cache.admission import (
    AtRandom,
    Belady,
    FirstIn,
    LeastRecent,
    NoReplacement,
    Order,
    hit_ratios,
)
from weft.sim import draw

PARTS, EPOCHS = 2000, 8
SKIPPED = 3
"""Epochs until even random has settled."""
SIZES = (0.1, 0.25, 0.4, 0.5, 0.65, 0.8, 0.9, 0.95)
PUBLISHED = {10: 6.25, 50: 31.25, 100: 62.5, 160: 100.0, 200: 100.0}
"""Cache in GB: hit ratio in percent of NR with a dataset of 160 GB, as published."""
POLICIES: dict[str, Callable[[Sequence[str], int], Order]] = {
    "LRU": lambda future, seed: LeastRecent(),
    "FIFO": lambda future, seed: FirstIn(),
    "random": lambda future, seed: AtRandom(Random(seed)),
    "NR": lambda future, seed: NoReplacement(),
    "Belady": lambda future, seed: Belady(future),
}
LOOK = {
    "NR": ("-", 3.5, draw.COLOURS[0]), "Belady": ("--", 1.2, draw.COLOURS[5]), "random": ("-", 1.5, draw.COLOURS[2]),
    "LRU": ("-", 3.5, draw.COLOURS[4]), "FIFO": ("--", 1.5, draw.COLOURS[1]),
}  # fmt: skip
"""Wide below narrow: where two are the same, both are seen."""


def epochs_of(order: str, parts: int, epochs: int, seed: int) -> list[list[str]]:
    keys, chance = [str(number) for number in range(parts)], Random(seed)
    if order == "sequential":
        return [keys] * epochs
    return [chance.sample(keys, parts) for _ in range(epochs)]


def hits(policy: str, cache: int, epochs: list[list[str]], seed: int) -> float:
    """The mean hit ratio once the cache is full and has settled."""
    future = [key for epoch in epochs for key in epoch]
    ratios = hit_ratios(cache, POLICIES[policy](future, seed), epochs, dict.fromkeys(epochs[0], 1))
    settled = ratios[1:] if policy == "NR" else ratios[SKIPPED:]
    return sum(settled) / len(settled)


def lru_formula(c: float) -> float:
    return c + (1 - c) * math.log(1 - c) if c < 1 else 1.0


def once(order: str, c: float, chosen: argparse.Namespace) -> dict[str, Any]:
    epochs = epochs_of(order, chosen.parts, chosen.epochs, chosen.seed)
    found = {name: round(hits(name, round(c * chosen.parts), epochs, chosen.seed), 4) for name in POLICIES}
    formula = lru_formula(c) if order == "shuffled" else float(c >= 1)
    return {"order": order, "c": round(c, 4), **found, "LRU formula": round(formula, 4)}


def published(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """The published table, its dataset of 160 GB scaled down to as many parts as here."""
    found = []
    for size, percent in PUBLISHED.items():
        run = once("shuffled", size / 160, chosen)
        found.append({"cacheGB": size, "published": percent, "NR": round(100 * run["NR"], 2), **{
            name: round(100 * run[name], 2) for name in POLICIES if name != "NR"
        }})  # fmt: skip
    return found


def result(runs: list[dict[str, Any]], table: list[dict[str, Any]]) -> lab.Result:
    titles = ("order", "cache/dataset", *POLICIES, "LRU by formula")
    rows = [
        (run["order"], f"{run['c']:.2f}", *(f"{run[name]:.3f}" for name in POLICIES), f"{run['LRU formula']:.3f}")
        for run in runs
    ] + [
        (f"160 GB, cache {line['cacheGB']} GB", f"{min(1, line['cacheGB'] / 160):.4f}",
         *(f"{line[name]:.2f} %" for name in POLICIES), f"NR published: {line['published']:g} %")
        for line in table
    ]  # fmt: skip
    shuffled = [run for run in runs if run["order"] == "shuffled"]
    off = max(abs(run["NR"] - run["c"]) for run in runs)
    tied = max(abs(run["Belady"] - run["NR"]) for run in runs)
    formula = max(abs(run["LRU"] - run["LRU formula"]) for run in shuffled)
    far = max(abs(line["NR"] - line["published"]) for line in table)
    middle = next(run for run in shuffled if run["c"] == 0.65)
    came_out = (
        f"NR is at most {off:.4f} from c in both orders, Belady at most {tied:.4f} from NR, LRU in a fresh shuffle at "
        f"most {formula:.4f} from its formula and 0 in the same order; with a cache of 65 % LRU answers "
        f"{middle['LRU']:.0%}, FIFO {middle['FIFO']:.0%}, random {middle['random']:.0%}, NR {middle['NR']:.0%}. The "
        f"published table is met to {far:.2f} points."
    )
    expected = lab.docstring_part(__doc__, "Expected")
    series = (tuple(runs[0]), [tuple(run.values()) for run in runs])
    return lab.Result(
        "cache_policies",
        "generated",
        expected,
        came_out,
        titles,
        rows,
        {"runs": runs, "published": table},
        series,
    )


def picture(path: Path, runs: Sequence[dict[str, Any]]) -> None:
    with draw.picture(path, 2, height=3.4, width=8.4) as axes:
        for axis, order in zip(axes, ("sequential", "shuffled"), strict=True):
            here = [run for run in runs if run["order"] == order]
            for name, (line, width, colour) in LOOK.items():
                known = [run["c"] for run in here], [run[name] for run in here]
                axis.plot(*known, line, lw=width, color=colour, marker="o", ms=width + 1.5, label=name)
            if order == "shuffled":
                fine = [number / 200 for number in range(1, 200)]
                axis.plot(
                    fine, [lru_formula(c) for c in fine], ":", color=draw.INK, lw=1, label="c + (1−c) ln(1−c)"
                )
            title = "the same order each epoch" if order == "sequential" else "a fresh shuffle each epoch"
            axis.set(
                xlabel="cache / dataset", ylabel="hit ratio", title=title, ylim=(-0.03, 1.03), xlim=(0, 1)
            )
            axis.legend(fontsize=8)


def main() -> None:
    parser = lab.options(__doc__ or "")
    parser.add_argument("--parts", type=int, default=PARTS)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    chosen = parser.parse_args()
    runs = []
    for order in ("sequential", "shuffled"):
        for c in SIZES:
            runs.append(once(order, c, chosen))
            print("  ".join(f"{name} {value}" for name, value in runs[-1].items()), flush=True)
    print()
    lab.publish(result(runs, published(chosen)), lab.folder(chosen), lambda out: picture(out, runs))


if __name__ == "__main__":
    main()
