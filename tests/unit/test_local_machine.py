"""What the local engine finds on its machine, and how it divides it."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.builders import a_request
from weft.backends.local import ports as ports_module
from weft.backends.local.backend import LocalBackend
from weft.backends.local.cgroups import Cgroups, discover, own_memory_limit
from weft.backends.local.machine import Shape, carve, parse_gpus
from weft.backends.local.pinning import Pinning
from weft.backends.local.ports import FIRST, LAST, Ports
from weft.model.node import Gpu


class TestCarving:
    def test_left_alone_the_machine_is_one_node(self) -> None:
        (node,) = carve(Shape(), [0, 1, 2, 3], 1000, (Gpu(0, "v100"),))
        assert (node.name, node.cpu, node.memory, node.cpu_ids) == ("local", 4000, 1000, (0, 1, 2, 3))
        assert node.gpus == (Gpu(0, "v100"),)
        assert dict(node.labels) == {"weft.dev/node": "local"}
        assert node.notes == ()

    def test_nodes_divide_cpus_memory_and_gpus(self) -> None:
        nodes = carve(Shape(nodes=2), [0, 1, 2, 3], 1000, tuple(Gpu(i, "v100") for i in range(4)))
        assert [n.name for n in nodes] == ["local-0", "local-1"]
        assert [n.cpu_ids for n in nodes] == [(0, 1), (2, 3)]
        assert [[g.index for g in n.gpus] for n in nodes] == [[0, 1], [2, 3]]
        assert [n.memory for n in nodes] == [500, 500]

    def test_more_nodes_than_cpus_share_them_and_say_so(self) -> None:
        nodes = carve(Shape(nodes=4), [0, 1], 1000, ())
        assert [(n.cpu, n.cpu_ids) for n in nodes] == [(1000, ())] * 4
        assert nodes[0].notes == ("CPUs are shared: 4 declared, 2 real",)

    def test_declared_gpus_take_the_place_of_real_ones(self) -> None:
        nodes = carve(Shape(nodes=2, gpus=4, gpu_type="a100"), [0, 1], 1000, (Gpu(0, "v100"),))
        assert [n.gpus for n in nodes] == [
            (Gpu(0, "a100", virtual=True), Gpu(1, "a100", virtual=True)),
            (Gpu(2, "a100", virtual=True), Gpu(3, "a100", virtual=True)),
        ]

    def test_racks_fabrics_and_devices_are_declared_for_trying_them(self) -> None:
        shape = Shape(nodes=4, gpus=4, gpu_memory=16, racks=2, fabrics=3, devices={"rdma": 1, "fpga": 2})
        nodes = carve(shape, [0, 1], 1000, ())
        assert [node.rack for node in nodes] == ["rack-0", "rack-0", "rack-1", "rack-1"]
        assert [node.fabric for node in nodes] == ["fabric-0", "fabric-0", "fabric-1", "fabric-2"]
        assert {node.devices for node in nodes} == {(("fpga", 2), ("rdma", 1))}
        assert {gpu.memory for node in nodes for gpu in node.gpus} == {16}

    def test_taints_are_of_all_nodes_or_of_one(self) -> None:
        nodes = carve(Shape(nodes=2, taints=["spot", "local-1:noisy", "local-1:spot"]), [0, 1], 1000, ())
        assert [node.taints for node in nodes] == [("spot",), ("noisy", "spot")]

    @pytest.mark.parametrize(
        ("nodes", "taint", "says"),
        [
            (4, "local-4:spot", "there is no node local-4; with --nodes 4 the nodes are local-0 to local-3"),
            (1, "local-0:spot", "there is no node local-0; with --nodes 1 the only node is local"),
            (1, ":spot", "write KEY or NODE:KEY, for example spot or local:spot"),
            (1, "sp ot", "write KEY or NODE:KEY, for example spot or local:spot"),
            (2, "local-0:", "write KEY or NODE:KEY, for example spot or local-1:spot"),
        ],
    )
    def test_a_taint_that_is_none_is_refused(self, nodes: int, taint: str, says: str) -> None:
        with pytest.raises(ValueError) as refused:
            Shape(nodes=nodes, taints=[taint])
        assert str(refused.value) == f"--taint {taint}: {says}"

    def test_a_generation_is_that_of_all_gpus_be_they_declared_or_found(self) -> None:
        (found,) = carve(Shape(gpu_generation=3), [0], 1000, (Gpu(0, "v100"),))
        (declared,) = carve(Shape(gpus=1, gpu_generation=4), [0], 1000, (Gpu(0, "v100"),))
        assert [node.gpus[0].generation for node in (found, declared)] == [3, 4]

    def test_declared_cpus_beyond_the_real_ones_are_shared(self) -> None:
        (node,) = carve(Shape(cpu=64_000, memory=5), [0, 1], 1000, ())
        assert (node.cpu, node.memory, node.cpu_ids) == (64_000, 5, ())

    @given(
        count=st.integers(1, 9),
        cpus=st.integers(1, 16),
        gpus=st.integers(0, 9),
        declared=st.one_of(st.none(), st.integers(100, 20_000)),
    )
    def test_nothing_is_given_twice_or_lost(
        self, count: int, cpus: int, gpus: int, declared: int | None
    ) -> None:
        ids = list(range(10, 10 + cpus))
        nodes = carve(Shape(nodes=count, cpu=declared), ids, 1 << 40, tuple(Gpu(i, "x") for i in range(gpus)))
        given_gpus = [gpu.index for node in nodes for gpu in node.gpus]
        given_cpus = [cpu for node in nodes for cpu in node.cpu_ids]
        assert given_gpus == list(range(gpus))
        assert len(given_cpus) == len(set(given_cpus))
        assert set(given_cpus) <= set(ids)
        assert len({node.name for node in nodes}) == count
        assert all(not node.cpu_ids or len(node.cpu_ids) * 1000 == node.cpu for node in nodes)
        assert declared is None or sum(node.cpu for node in nodes) <= declared


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("0, 16160, Tesla V100-SXM2-16GB", "v100"),
        ("0, 16160, Tesla K80", "k80"),
        ("0, 16160, NVIDIA A100-SXM4-40GB", "a100"),
        ("0, 16160, NVIDIA H100 80GB HBM3", "h100"),
        ("0, 16160, NVIDIA GeForce RTX 3090", "3090"),
        ("0, 16160, Tesla P100-PCIE-16GB", "p100"),
        ("0, 16160, NVIDIA L4", "l4"),
        ("0, 16160, Quadro", "quadro"),
    ],
)
def test_a_gpus_type_is_its_models_number(line: str, kind: str) -> None:
    assert parse_gpus(line + "\n") == (Gpu(0, kind, memory=16160 << 20),)


def test_lines_that_are_no_gpu_are_none() -> None:
    assert parse_gpus("No devices were found\n\n1, [N/A], Tesla T4\n") == (Gpu(1, "t4"),)


class TestCgroups:
    def v2(self, root: Path, *, controllers: bool = True) -> None:
        (root / "cgroup.controllers").write_text("cpu memory")
        (root / "user").mkdir()

        class Grown(type(root)):  # type: ignore[misc]
            """mkdir as the kernel does it: the control files appear with the folder."""

            def mkdir(self, *args: object, **options: object) -> None:
                super().mkdir(*args, **options)
                if self.name == "probe" and controllers:
                    for name in ("memory.max", "cpu.max"):
                        (self / name).touch()

            def rmdir(self) -> None:
                for file in self.iterdir():
                    file.unlink()
                super().rmdir()

        self.root = Grown(root)

    def membership(self, tmp_path: Path, text: str) -> Path:
        file = tmp_path / "membership"
        file.write_text(text)
        return file

    def test_version_2_where_it_is_delegated(self, tmp_path: Path) -> None:
        root = tmp_path / "cg"
        root.mkdir()
        self.v2(root)
        found = discover("weft-x", self.root, self.membership(tmp_path, "0::/user\n"))
        assert found == Cgroups(2, str(root / "user/weft-x"), str(root / "user/weft-x"))
        assert (root / "user/weft-x/cgroup.subtree_control").read_text() == "+memory +cpu"
        assert found.notes() == ()

    def test_version_2_without_systemd_is_handed_down_from_the_root(self, tmp_path: Path) -> None:
        root = tmp_path / "cg"
        root.mkdir()
        self.v2(root)
        found = discover("weft-x", self.root, self.membership(tmp_path, "0::/\n"))
        assert found == Cgroups(2, str(root / "weft-x"), str(root / "weft-x"))
        assert (root / "cgroup.subtree_control").read_text() == "+memory +cpu"

    def test_version_2_without_the_controllers(self, tmp_path: Path) -> None:
        root = tmp_path / "cg"
        root.mkdir()
        self.v2(root, controllers=False)
        found = discover("weft-x", self.root, self.membership(tmp_path, "0::/user\n"))
        assert found == Cgroups(2, None, None)
        assert found.notes() == (
            "memory and fractional CPU limits are not enforced: no writable cgroup (run as root, or delegate one)",
        )

    def test_version_1_takes_each_controller_where_it_is(self, tmp_path: Path) -> None:
        root = tmp_path / "cg"
        folder = root / "memory" / "docker" / "weft-x"
        folder.mkdir(parents=True)
        (folder / "memory.limit_in_bytes").touch()
        (root / "cpu").mkdir()
        found = discover(
            "weft-x", root, self.membership(tmp_path, "4:memory:/docker\n3:cpu,cpuacct:/docker\n")
        )
        assert found == Cgroups(1, str(folder), None)
        assert found.notes()[0].startswith("fractional CPU limits are not enforced")

    def test_none_at_all(self, tmp_path: Path) -> None:
        assert discover("weft-x", tmp_path / "missing", tmp_path / "missing") == Cgroups(1, None, None)

    def test_a_garbled_membership_is_none(self, tmp_path: Path) -> None:
        assert discover("x", tmp_path / "no", self.membership(tmp_path, "what is this")) == Cgroups(
            1, None, None
        )

    def test_whole_cpus_without_a_memory_limit_need_no_group(self) -> None:
        assert Cgroups(2, "/cg", "/cg").task("t", a_request(2)) == (None, ())

    @pytest.mark.parametrize(
        ("version", "own", "limits", "expected"),
        [
            (1, "/a/b", {"/a/b": "300", "/a": "200", "/": "9223372036854771712"}, 200),
            (1, "/elsewhere", {"/": "500"}, 500),  # a container that sees its host's path
            (2, "/a/b", {"/a/b": "100", "/a": "max"}, 100),
            (2, "/a", {"/a": "max"}, None),
            (2, "/../../x", {"/": "7"}, 7),
        ],
    )
    def test_memory_is_what_the_own_group_and_those_around_it_allow(
        self, tmp_path: Path, version: int, own: str, limits: dict[str, str], expected: int | None
    ) -> None:
        root = tmp_path / "cg"
        mount, file = (root / "memory", "memory.limit_in_bytes") if version == 1 else (root, "memory.max")
        for place, limit in limits.items():
            folder = mount / place.lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(limit + "\n")
        if version == 2:
            (root / "cgroup.controllers").write_text("cpu memory")
        membership = self.membership(tmp_path, f"4:memory:{own}\n" if version == 1 else f"0::{own}\n")
        assert own_memory_limit(root, membership) == expected

    def test_version_2_limits(self) -> None:
        plan, notes = Cgroups(2, "/cg", "/cg").task("t", a_request(0.5, memory=1))
        assert plan is not None
        assert plan["folders"] == ["/cg/t"]
        assert plan["limits"] == [
            ["/cg/t/memory.max", str(2**30)],
            ["/cg/t/memory.swap.max", "0"],
            ["/cg/t/memory.oom.group", "1"],
            ["/cg/t/cpu.max", "50000 100000"],
        ]
        assert notes == ()

    def test_version_1_limits(self) -> None:
        plan, _ = Cgroups(1, "/m", "/c").task("t", a_request(1.5, memory=1))
        assert plan is not None
        assert plan["joins"] == ["/m/t/cgroup.procs", "/c/t/cgroup.procs"]
        assert ["/c/t/cpu.cfs_quota_us", "150000"] in plan["limits"]
        assert ["/m/t/memory.limit_in_bytes", str(2**30)] in plan["limits"]

    def test_what_cannot_be_granted_is_noted_with_the_task(self) -> None:
        plan, notes = Cgroups().task("t", a_request(0.5, memory=1))
        assert plan is None
        assert notes == (
            "its memory limit is not enforced: no writable cgroup",
            "its CPU limit is not enforced: no writable cgroup",
        )


class TestPorts:
    def test_they_are_free_distinct_and_below_the_kernels_range(self, tmp_path: Path) -> None:
        ports = Ports(seed=1)
        first = ports.take("a", 4, str(tmp_path / "a.json"))
        second = ports.take("b", 4, str(tmp_path / "b.json"))
        assert len({*first, *second}) == 8
        assert all(FIRST <= port < LAST for port in (*first, *second))

    def test_a_job_keeps_its_ports_across_servers(self, tmp_path: Path) -> None:
        record = str(tmp_path / "a.json")
        first = Ports(seed=1).take("a", 3, record)
        again = Ports(seed=2)
        assert again.take("a", 3, record) == first
        assert not set(again.take("b", 3, str(tmp_path / "b.json"))) & set(first)

    @pytest.mark.parametrize("text", ["", "[1", "[1,2]", '["a","b","c"]', "7"])
    def test_a_damaged_record_means_new_ports(self, tmp_path: Path, text: str) -> None:
        record = tmp_path / "a.json"
        record.write_text(text)
        found = Ports(seed=1).take("a", 3, str(record))
        assert len(set(found)) == 3
        assert json.loads(record.read_text()) == found

    def test_a_port_in_use_is_passed_over(self, tmp_path: Path) -> None:
        (expected,) = Ports(seed=3).take("a", 1, "")
        with socket.socket() as busy:
            busy.bind(("127.0.0.1", expected))
            busy.listen()
            assert Ports(seed=3).take("a", 1, "") != [expected]

    def test_released_ports_are_given_again_and_none_left_is_an_error(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ports_module, "LAST", FIRST + 3)
        ports = Ports(seed=1)
        for job in "abc":
            ports.take(job, 1, "")
        with pytest.raises(OSError, match="no free port between"):
            ports.take("d", 1, "")
        ports.release("b")
        assert len(ports.take("d", 1, "")) == 1


class TestPinning:
    @pytest.fixture
    def pinned(self, monkeypatch: pytest.MonkeyPatch) -> dict[int, set[int]]:
        moved: dict[int, set[int]] = {}
        monkeypatch.setattr(os, "listdir", lambda path: [str(path).split("/")[2]])
        monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: moved.__setitem__(pid, set(cpus)))
        return moved

    def test_nothing_is_looked_for_where_nobody_shares(self):
        """Once wrong: every start and end of a task walked all processes of the machine."""
        looks: list[list[int]] = []

        def members(pids: list[int]) -> dict[int, list[int]]:
            looks.append(pids)
            return {pid: [] for pid in pids}

        pinning = Pinning({"n": (0, 1)}, members)
        pinning.started(("u", "own"), "n", (0,), 200)
        pinning.ended(("u", "own"))
        assert looks == []

    def test_shared_tasks_leave_exclusive_cpus_and_come_back(self, pinned: dict[int, set[int]]) -> None:
        pinning = Pinning({"n": (0, 1, 2, 3)}, members=lambda pids: {pid: [pid + 1] for pid in pids})
        assert pinning.cpus_for("n", ()) == [0, 1, 2, 3]
        pinning.started(("u", "shared"), "n", (), 100)
        pinning.started(("u", "own"), "n", (0, 1), 200)
        assert pinned == {100: {2, 3}, 101: {2, 3}}
        assert pinning.cpus_for("n", ()) == [2, 3]
        assert pinning.cpus_for("n", (0, 1)) == [0, 1]
        pinning.ended(("u", "own"))
        assert pinned == {100: {0, 1, 2, 3}, 101: {0, 1, 2, 3}}

    def test_an_ended_shared_task_is_not_moved_any_more(self, pinned: dict[int, set[int]]) -> None:
        pinning = Pinning({"n": (0, 1)}, members=lambda pids: {pid: [] for pid in pids})
        pinning.started(("u", "shared"), "n", (), 100)
        pinning.ended(("u", "shared"))
        pinning.started(("u", "own"), "n", (0,), 200)
        assert pinned == {}

    def test_where_cpus_are_shared_nobody_is_pinned(self, pinned: dict[int, set[int]]) -> None:
        pinning = Pinning({"n": ()}, members=lambda pids: {pid: [] for pid in pids})
        assert pinning.cpus_for("n", ()) == []
        pinning.started(("u", "t"), "n", (0,), 100)
        assert pinned == {}

    def test_a_process_that_is_gone_is_no_error(self) -> None:
        pinning = Pinning({"n": (0, 1)}, members=lambda pids: {pid: [] for pid in pids})
        pinning.started(("u", "shared"), "n", (), 2**22 + 5)
        pinning.started(("u", "own"), "n", (0,), 1)
        assert pinning.cpus_for("n", ()) == [1]


def test_what_begins_with_a_dot_is_no_checkpoint(tmp_path: Path) -> None:
    """`weft.shards` keeps its books among the checkpoints: a job that has saved nothing must not seem to have."""

    backend = LocalBackend(tmp_path, Shape(), lambda _name, _key: None)
    folder = Path(backend.folder("job").checkpoints)
    (folder / ".weft").mkdir(parents=True)
    assert backend.saved("job") is None
    (folder / "model.pt").touch()
    assert backend.saved("job") == (folder / "model.pt").stat().st_mtime
