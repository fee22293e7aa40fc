"""What the testbed tells the programs it starts, and what it says where it cannot work."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from testbed import binaries, certificates, cgroups, controlplane, debian, node, service, simulated
from testbed.api import Api, kubeconfig
from testbed.processes import Record
from testbed.refusal import Refused

BOOKWORM = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n'
MUCH = 100 * 2**30


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path, ports={name: 4000 + index for index, name in enumerate(controlplane.PORTS)})


def test_debian_12_as_root_with_room_is_all_it_takes() -> None:
    debian.refuse_elsewhere(BOOKWORM, uid=0, room=MUCH)


@pytest.mark.parametrize(
    ("release", "uid", "room", "said"),
    [
        ('PRETTY_NAME="Fedora 40"\nID=fedora\nVERSION_ID=40\n', 0, MUCH, "this is Fedora 40"),
        (BOOKWORM.replace("12", "13"), 0, MUCH, "packages of Debian 12"),
        (BOOKWORM, 1000, MUCH, "need root, this is user 1000"),
        (BOOKWORM, 0, 2**30, "needs 8 GB, .* has room for 1.0 GB"),
    ],
)
def test_elsewhere_it_says_why_and_what_to_do(release: str, uid: int, room: int, said: str) -> None:
    with pytest.raises(Refused, match=said) as refused:
        debian.refuse_elsewhere(release, uid, room)
    assert "next: " in str(refused.value)


def test_sources_come_from_the_mirror_that_the_machine_uses() -> None:
    targets = "http://mirror/debian/ bookworm main\nhttp://mirror/debian/ bookworm main\nhttp://other/ stable main\n"
    (line,) = debian.source_list(targets).splitlines()
    assert line.startswith("deb-src ")
    assert line.endswith("http://mirror/debian/ bookworm main")


def test_only_folders_with_the_marker_are_described(tmp_path: Path) -> None:
    for folder, text in {
        "pkg/apis/core": "// +k8s:openapi-gen=true",
        "pkg/kubelet": "package kubelet",
        "staging/src/k8s.io/api/core/v1": "// +k8s:openapi-gen=true",
        "staging/src/k8s.io/code-generator/x": "// +k8s:openapi-gen=true",
    }.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "doc.go").write_text(text)
    assert binaries.marked_packages(tmp_path) == [
        "k8s.io/kubernetes/pkg/apis/core",
        "k8s.io/kubernetes/vendor/k8s.io/api/core/v1",
    ]


def test_the_binaries_know_their_version() -> None:
    assert "component-base/version.gitVersion=v1.20.2" in binaries.version_flags()
    assert "component-base/version.gitMinor=20" in binaries.version_flags()


def test_nothing_listens_beyond_loopback(record: Record) -> None:
    program = Path("/bin/x")
    flags = [*controlplane.etcd(record, program), *controlplane.api_server(record, program)]
    places = [flag for flag in flags if "urls=" in flag or "address=" in flag]
    assert len(places) >= 5
    assert all("127.0.0.1" in flag for flag in places)
    kubelet = json.loads(node.kubelet_configuration(record, record.folder))
    assert kubelet["address"] == "127.0.0.1"
    assert kubelet["authentication"]["anonymous"] == {"enabled": False}


def test_pods_find_the_api_server_by_the_address_that_they_are_told(record: Record) -> None:
    assert f"--service-cluster-ip-range={service.RANGE}" in controlplane.api_server(record, Path("/bin/x"))
    first = next(ipaddress.ip_network(service.RANGE).hosts())
    assert str(first) == service.ADDRESS
    bridge, _ = json.loads(node.network_configuration(record.folder))["plugins"]
    assert bridge["ipam"]["routes"] == [{"dst": service.RANGE}]
    assert f"IP:{service.ADDRESS}," in certificates.OPENSSL


def test_bytes_are_passed_on_both_ways_until_one_side_has_ended() -> None:
    async def whole() -> tuple[bytes, bytes]:
        async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write((await reader.readline()).upper())
            writer.close()

        behind = await asyncio.start_server(shout, "127.0.0.1", 0)
        port = behind.sockets[0].getsockname()[1]
        before = await service.serve("127.0.0.1", 0, port)
        at = before.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", at)
        writer.write(b"hello\n")
        said = await reader.read()
        writer.close()
        behind.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", at)
        nothing = await reader.read()
        writer.close()
        before.close()
        return said, nothing

    assert asyncio.run(whole()) == (b"HELLO\n", b"")


def test_only_the_installed_control_plane_is_written_down() -> None:
    first, *rest = json.loads(controlplane.audit_policy())["rules"]
    assert first["users"] == ["system:serviceaccount:weft-system:weft"]
    assert rest == [{"level": "None"}]


def test_ports_are_each_other_ones() -> None:
    assert len(set(controlplane.free_ports(8))) == 8


def test_every_user_has_a_token_and_its_groups() -> None:
    written = certificates.token_file({"admin": "aaa", "scheduler": "bbb"}).splitlines()
    assert written == ["aaa,testbed-admin,admin,system:masters", "bbb,system:kube-scheduler,scheduler"]


def test_pods_keep_out_of_reach_of_the_images_collector(record: Record) -> None:
    assert json.loads(node.kubelet_configuration(record, record.folder))["imageGCHighThresholdPercent"] == 100
    assert "restrict_oom_score_adj = true" in node.containerd_configuration(record.folder, Path("/d"))


def test_folders_that_were_made_go_but_for_what_others_have_put_there(tmp_path: Path) -> None:
    outer, inner, used, gone = (tmp_path / name for name in ("outer", "outer/inner", "used", "gone"))
    inner.mkdir(parents=True)
    (used / "s").mkdir(parents=True)
    assert node.remove_made([str(outer), str(inner), str(used), str(gone)]) == []
    assert not outer.exists()
    assert (used / "s").exists()


def test_a_folder_that_would_not_go_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    [left] = node.remove_made([str(file)])
    assert str(file) in left


def test_the_namespace_is_entered_before_anything_runs(tmp_path: Path) -> None:
    first, *binds, last = node.entering(tmp_path, "exec containerd").split(" && ")
    assert first == "mount --make-rshared /"
    assert len(binds) == len(node.BOUND)
    assert last == "exec containerd"


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", ["/sys/fs/cgroup/weft-testbed"]),
        (
            "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n"
            "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
            ["/sys/fs/cgroup/cpu/weft-testbed"],
        ),
    ],
)
def test_the_corner_of_the_cgroups_is_in_every_hierarchy(mounts: str, expected: list[str]) -> None:
    assert [str(path) for path in cgroups.roots(mounts)] == expected


def test_a_hierarchy_beside_those_of_v1_is_tidied_too() -> None:
    mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
    assert [path.parent.name for path in cgroups.traces(mounts)] == ["cpu", "unified"]


def test_a_simulated_node_has_room_a_rack_and_is_ready() -> None:
    made = simulated.node(17, simulated.Shape(cpu=4, gpus=2), now=0)
    assert made["metadata"]["name"] == "sim-0017"
    assert made["metadata"]["labels"]["testbed.weft.dev/rack"] == "rack-01"
    assert made["status"]["allocatable"]["cpu"] == "4"
    assert made["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    assert made["status"]["conditions"][0]["status"] == "True"


def test_leases_are_renewed_three_times_before_they_are_late() -> None:
    assert simulated.RENEW_EVERY * 3 <= controlplane.GRACE
    assert simulated.lease("sim-0001", now=0.25)["spec"]["renewTime"] == "1970-01-01T00:00:00.250000Z"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_kubeconfig_is_json_and_carries_its_authority(tmp_path: Path) -> None:
    certificates.make(tmp_path / "keys")
    text = kubeconfig("https://127.0.0.1:1", (tmp_path / "keys" / "ca.crt").read_bytes(), "secret")
    assert json.loads(text)["users"][0]["user"] == {"token": "secret"}
    assert not Api(text).healthy()
