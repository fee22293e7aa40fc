"""The NUMA groups of a made-up machine, and what each virtual node has of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.backends.local.machine import Shape, carve, parse_gpus
from weft.backends.local.numa import UNKNOWN, find_groups, group_of_device, of_node, parse_cpus
from weft.model.node import Gpu


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two sockets of four CPUs with a GPU each, a group of memory alone, and a device that belongs nowhere."""
    for node, cpus in {"node0": "0-1,4-5\n", "node1": "2-3,6-7\n", "node2": "\n"}.items():
        folder = tmp_path / "devices/system/node" / node
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus)
    (tmp_path / "devices/system/node/online").write_text("0-2\n")
    for place, group in {"0000:3b:00.0": "0\n", "0000:d8:00.0": "1\n", "0000:01:00.0": "-1\n"}.items():
        device = tmp_path / "bus/pci/devices" / place
        device.mkdir(parents=True)
        (device / "numa_node").write_text(group)
    return tmp_path


def test_groups_are_those_that_have_cpus(sysfs: Path) -> None:
    assert find_groups(sysfs) == {0: (0, 1, 4, 5), 1: (2, 3, 6, 7)}


def test_a_kernel_that_tells_nothing_has_no_groups(tmp_path: Path) -> None:
    assert find_groups(tmp_path) == {}


@given(st.sets(st.integers(0, 200)))
def test_any_list_of_cpus_is_read(cpus: set[int]) -> None:
    assert parse_cpus(",".join(map(str, sorted(cpus))) + "\n") == tuple(sorted(cpus))


@pytest.mark.parametrize(
    ("bus", "group"),
    [
        ("00000000:3B:00.0", 0),
        ("00000000:D8:00.0", 1),
        ("00000000:01:00.0", UNKNOWN),
        ("00000000:FF:00.0", UNKNOWN),
        ("[N/A]", UNKNOWN),
    ],
)
def test_a_gpus_group_is_that_of_its_pci_device(sysfs: Path, bus: str, group: int) -> None:
    assert group_of_device(bus, sysfs) == group


LISTING = "0, 16160, Tesla V100, 00000000:3B:00.0\n1, 16160, Tesla V100, 00000000:D8:00.0\n"


def test_the_whole_machine_as_one_node(sysfs: Path) -> None:
    gpus = parse_gpus(LISTING, partial(group_of_device, root=sysfs))
    (node,) = carve(Shape(), list(range(8)), 1000, gpus, find_groups(sysfs))
    assert node.numa == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert [gpu.numa for gpu in node.gpus] == [0, 1]


def test_a_virtual_node_has_the_groups_of_its_own_cpus_alone(sysfs: Path) -> None:
    nodes = carve(Shape(nodes=4), list(range(8)), 1000, (), find_groups(sysfs))
    assert [node.cpu_ids for node in nodes] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [node.numa for node in nodes] == [(), (), (), ()]  # each is in one group whole
    halves = carve(Shape(nodes=2), list(range(8)), 1000, (), find_groups(sysfs))
    assert [node.numa for node in halves] == [((0, 1), (2, 3)), ((4, 5), (6, 7))]


def test_shared_cpus_are_in_no_group(sysfs: Path) -> None:
    (node,) = carve(Shape(cpu=64_000), list(range(8)), 1000, (), find_groups(sysfs))
    assert node.numa == ()


def test_gpus_of_groups_without_cpus_here_are_apart_from_those_that_have_some() -> None:
    groups = {0: (0, 1), 1: (2, 3), 2: (8, 9)}
    gpus = (Gpu(0, "x", numa=2), Gpu(1, "x", numa=1), Gpu(2, "x", numa=UNKNOWN))
    own, numbered = of_node(groups, (0, 1, 2, 3), gpus)
    assert own == ((0, 1), (2, 3))
    assert [gpu.numa for gpu in numbered] == [3, 1, 2]


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=16),
    st.integers(1, 4),
    st.lists(st.integers(-1, 3), max_size=6),
)
def test_groups_hold_each_cpu_of_the_node_once(homes: list[int], count: int, hung: list[int]) -> None:
    groups = {group: tuple(cpu for cpu, home in enumerate(homes) if home == group) for group in {*homes}}
    gpus = tuple(Gpu(index, "x", numa=group) for index, group in enumerate(hung))
    for node in carve(Shape(nodes=count), list(range(len(homes))), 1000, gpus, groups):
        if node.numa:
            assert len(node.numa) > 1
            assert sorted(cpu for group in node.numa for cpu in group) == list(node.cpu_ids)
        for a in node.gpus:
            assert all((a.numa == b.numa) is (hung[a.index] == hung[b.index]) for b in node.gpus)
            if node.numa and a.numa < len(node.numa):
                assert {homes[cpu] for cpu in node.numa[a.numa]} == {hung[a.index]}
