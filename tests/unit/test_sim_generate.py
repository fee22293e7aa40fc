"""Generated workloads have the distributions that were published, and the same seed gives the same jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.sim.generate import GANGS, PHILLY, generate


@pytest.mark.parametrize(("jobs", "tolerance"), [(2_000, 0.06), (20_000, 0.01)])
def test_durations_have_the_published_quantiles(jobs: int, tolerance: float) -> None:
    seconds = [job.seconds for job in generate(PHILLY, jobs, seed=7)]
    assert np.quantile(seconds, (0.5, 0.9, 0.99)) == pytest.approx((1_144, 11_266, 254_884), rel=tolerance)


def test_sizes_have_the_published_shares_of_jobs_and_of_gpu_time() -> None:
    jobs = generate(PHILLY, 40_000, seed=7)
    sizes = np.array([job.gang.gpus for job in jobs])
    work = np.array([job.work for job in jobs])
    assert (sizes == 1).mean() == pytest.approx(0.93, abs=0.01)
    assert (sizes == 8).mean() == pytest.approx(0.02, abs=0.005)
    assert work[sizes == 1].sum() / work.sum() == pytest.approx(0.18, abs=0.06)
    assert work[sizes == 8].sum() / work.sum() == pytest.approx(0.48, abs=0.12)


def test_the_gang_mix_is_that_of_the_smaller_virtual_clusters() -> None:
    sizes = np.array([job.gang.gpus for job in generate(GANGS, 20_000, seed=7)])
    shares = [(sizes == size).mean() for size in (1, 2, 4, 8, 16, 32)]
    assert shares == pytest.approx([0.85, 0.014, 0.068, 0.058, 0.007, 0.003], abs=0.003)


@pytest.mark.parametrize(
    ("jobs", "tolerance"), [(2_000, 0.35), (40_000, 0.1)]
)  # of 2,000 gaps, 4 are long ones
def test_arrivals_are_as_bursty_as_published(jobs: int, tolerance: float) -> None:
    gaps = np.diff([job.time for job in generate(PHILLY, jobs, seed=7)])
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(PHILLY.gap, rel=0.15)
    assert gaps.std() / gaps.mean() == pytest.approx(15, rel=tolerance)


def test_two_virtual_clusters_hold_seven_jobs_of_ten() -> None:
    owners = [job.owner for job in generate(PHILLY, 10_000, seed=7)]
    shares = sorted((owners.count(owner) / len(owners) for owner in {*owners}), reverse=True)
    assert sum(shares[:2]) == pytest.approx(0.7, abs=0.02)
    assert len(shares) == len(PHILLY.owners)


def test_the_same_seed_gives_the_same_jobs_and_another_does_not() -> None:
    assert generate(PHILLY, 300, seed=3) == generate(PHILLY, 300, seed=3)
    assert generate(PHILLY, 300, seed=3) != generate(PHILLY, 300, seed=4)


def test_any_number_of_jobs_can_be_made() -> None:
    for jobs in (1, 2, 3, 10):
        assert len(generate(PHILLY, jobs)) == jobs
    assert len(generate(replace(PHILLY, burst=1.0), 5)) == 5
    with pytest.raises(ValueError, match="at least one job"):
        generate(PHILLY, 0)
