"""The real node: containerd and kubelet in a mount namespace of their own.

Everything that they mount, and the fixed places that they write to (`/var/lib/kubelet`, `/var/log/pods` and so on), is
seen only inside that namespace and vanishes with its last process.
"""

from __future__ import annotations

import errno
import json
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from . import cgroups, service
from .api import Api, ApiError
from .dns import DOMAIN
from .processes import Record, refuse_ended, start
from .refusal import Refused
from .telling import step, until

NAME = "real-0"
BRIDGE = "wefttestbed0"
BRIDGE_ADDRESS = "02:00:0a:d3:00:01"
"""Its own: one without takes the lowest of its pods', and whoever knew the last one is not heard for seconds."""
SUBNET = "10.211.0.0/16"
GATEWAY = "10.211.0.1"
BUSYBOX = "localhost/busybox:testbed"
LABEL = "testbed.weft.dev/kind"
PATIENCE = 60.0

BOUND = {
    "kubelet": "/var/lib/kubelet",
    "cni": "/var/lib/cni",
    "pod-logs": "/var/log/pods",
    "container-logs": "/var/log/containers",
    "run-containerd": "/run/containerd",
    "run-netns": "/run/netns",
}
"""Folders of the state that stand, inside the namespace, for places whose names are built into the programs."""

SYSCTLS = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
]
"""Settings of the whole machine that kubelet and the bridge change without being asked."""


def bring_up(record: Record, api: Api, binaries: Path, debian: Path, pause: Path) -> None:
    """Ready when the node is, with an address that the API server reaches it by."""
    with step("starting containerd and kubelet"):
        home = record.folder / "node"
        _remember(record)
        cgroups.make()
        make_bridge()
        _write_configuration(record, home, debian)
        socket = home / "containerd.sock"
        path = {"PATH": f"{debian / 'usr/bin'}:{debian / 'usr/sbin'}:/usr/sbin:/usr/bin:/sbin:/bin"}
        namespace = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
        serve = f"exec {debian / 'usr/bin/containerd'} --config {home / 'containerd.toml'}"
        containerd = start(record, "containerd", [*namespace, entering(home, serve)], path)
        if not until(lambda: _answers(debian, socket), PATIENCE):
            refuse_ended(record, containerd, "waiting for its socket")
        load_image(record, debian, pause)
        within = ["nsenter", "--mount", "--target", str(containerd.pid)]
        kubelet = start(record, "kubelet", [*within, *kubelet_command(record, binaries, home)], path)
        if not until(lambda: _settled(api), PATIENCE):
            refuse_ended(record, kubelet, f"waiting for node {NAME} to be Ready")


def make_bridge() -> None:
    """Made before the first pod, with the API server's address beside its own, it has both when that pod asks."""
    for line in (
        f"link add {BRIDGE} address {BRIDGE_ADDRESS} type bridge",
        f"address add {GATEWAY}/{SUBNET.partition('/')[2]} dev {BRIDGE}",
        f"address add {service.ADDRESS}/32 dev {BRIDGE}",
        f"link set {BRIDGE} up",
    ):
        done = subprocess.run(["ip", *line.split()], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Refused(f"network interface {BRIDGE}", done.stderr.strip(), f"ip {line}")


def tear_down(record: Record) -> list[str]:
    """What daemons leave behind on the machine, taken away; what would not go is told."""
    left = [f"cgroup {path}" for path in cgroups.remove()]
    if Path(f"/sys/class/net/{BRIDGE}").exists():
        done = subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            left.append(f"network interface {BRIDGE} ({done.stderr.strip()})")
    for name, value in record.sysctls.items():
        (Path("/proc/sys") / name).write_text(value)
    return left + remove_made(record.made_folders)


def remove_made(folders: Sequence[str]) -> list[str]:
    """Folders that only gave the namespace a place to mount its own over. What is in one now is somebody else's, a dockerd's
    for example, who came after us: then it is theirs."""
    left = []
    for made in reversed(folders):
        try:
            Path(made).rmdir()
        except OSError as problem:
            if problem.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                left.append(f"folder {made} ({problem.strerror})")
    return left


def load_image(record: Record, debian: Path, archive: Path) -> None:
    socket = record.folder / "node" / "containerd.sock"
    command = [*_ctr(debian, socket), "images", "import", str(archive)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused(f"image {archive.name}", done.stderr.strip()[-500:], " ".join(command))


def entering(home: Path, command: str) -> str:
    """What runs first inside the namespace: its own places over the machine's, shared with the pods' namespaces."""
    binds = [f"mount --bind {shlex.quote(str(home / name))} {place}" for name, place in BOUND.items()]
    return " && ".join(["mount --make-rshared /", *binds, command])


def containerd_configuration(home: Path, debian: Path) -> str:
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""\
version = 2
root = "{home / "containerd"}"
state = "{home / "run-containerd" / "state"}"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
address = "{home / "containerd.sock"}"
[{cri}]
sandbox_image = "{BUSYBOX}"
# Without CAP_SYS_RESOURCE a pod dies of "can't get final child's PID from pipe: EOF" otherwise.
restrict_oom_score_adj = true
disable_apparmor = true
stream_server_address = "127.0.0.1"
stream_server_port = "0"
[{cri}.cni]
bin_dir = "{debian / "usr/lib/cni"}"
conf_dir = "{home / "networks"}"
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
BinaryName = "{debian / "usr/sbin/runc"}"
SystemdCgroup = false
"""


def network_configuration(home: Path) -> str:
    """Pods reach each other, this machine and the API server; nothing leads further."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": SUBNET}]],
        "routes": [{"dst": service.RANGE}],
        "dataDir": str(home / "addresses"),
    }
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipMasq": False, "ipam": ipam}
    loopback = {"type": "loopback"}
    return json.dumps({"cniVersion": "0.4.0", "name": "testbed", "plugins": [bridge, loopback]})


def kubelet_configuration(record: Record, home: Path) -> str:
    keys = record.folder / "keys"
    room = "100Mi"
    document = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": record.ports["kubelet"],
        "readOnlyPort": 0,
        "healthzPort": 0,
        "tlsCertFile": str(keys / "leaf.crt"),
        "tlsPrivateKeyFile": str(keys / "leaf.key"),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(keys / "ca.crt")},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroups.NAME}",
        "clusterDNS": [GATEWAY],
        "clusterDomain": DOMAIN,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "imageGCHighThresholdPercent": 100,  # an image that is collected cannot be pulled again
        "evictionHard": {"memory.available": room, "nodefs.available": room, "imagefs.available": room},
        "evictionPressureTransitionPeriod": "1s",
        "volumeStatsAggPeriod": "3s",  # or a volume that is too large is found after a minute
        "volumePluginDir": str(home / "volume-plugins"),
    }
    return json.dumps(document, indent=2)


def kubelet_command(record: Record, binaries: Path, home: Path) -> list[str]:
    return [
        str(binaries / "kubelet"),
        f"--config={home / 'kubelet.json'}",
        f"--kubeconfig={record.folder / 'keys' / 'kubelet.kubeconfig'}",
        f"--hostname-override={NAME}",
        "--container-runtime=remote",
        f"--container-runtime-endpoint=unix://{home / 'containerd.sock'}",
        f"--pod-infra-container-image={BUSYBOX}",
        # kubelet refuses a loopback --node-ip; so the address comes from outside, which is us.
        "--cloud-provider=external",
        f"--node-labels={LABEL}=real",
    ]


def _remember(record: Record) -> None:
    settings = {name: Path("/proc/sys") / name for name in SYSCTLS}
    record.sysctls = {name: path.read_text().strip() for name, path in settings.items() if path.exists()}
    for place in BOUND.values():
        missing = [path for path in (Path(place), *Path(place).parents) if not path.exists()]
        record.made_folders += [str(path) for path in reversed(missing)]
    record.save()
    for place in BOUND.values():
        Path(place).mkdir(parents=True, exist_ok=True)


def _write_configuration(record: Record, home: Path, debian: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)
    for name in [*BOUND, "networks", "volume-plugins"]:
        (home / name).mkdir(parents=True)
    (home / "containerd.toml").write_text(containerd_configuration(home, debian))
    (home / "networks" / "10-testbed.conflist").write_text(network_configuration(home))
    (home / "kubelet.json").write_text(kubelet_configuration(record, home))


def _ctr(debian: Path, socket: Path) -> list[str]:
    return [str(debian / "usr/bin/ctr"), "--address", str(socket), "--namespace", "k8s.io"]


def _answers(debian: Path, socket: Path) -> bool:
    asked = [*_ctr(debian, socket), "--timeout", "2s", "version"]
    return socket.exists() and subprocess.run(asked, capture_output=True, check=False).returncode == 0


def _settled(api: Api) -> bool:
    """Once the node is Ready, does what a cloud's controller would: gives it its address and lifts the taint."""
    try:
        node = api.get(f"/api/v1/nodes/{NAME}")
        conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", [])}
        if conditions.get("Ready") != "True":
            return False
        # kubelet guesses an address and writes it until it is Ready; from then on it keeps what it finds.
        addresses = [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": NAME}]
        taints = node["spec"].get("taints") or []
        kept = [taint for taint in taints if not taint["key"].startswith("node.cloudprovider.kubernetes.io/")]
        if node["status"].get("addresses") != addresses:
            api.patch(f"/api/v1/nodes/{NAME}/status", {"status": {"addresses": addresses}})
            return False
        if kept != taints:
            api.patch(f"/api/v1/nodes/{NAME}", {"spec": {"taints": kept or None}})
    except ApiError:
        return False
    return not kept
