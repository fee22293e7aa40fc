"""2,000 one-GPU pods that wait are bound to 500 and to 2,000 simulated nodes: by Weft, by kube-scheduler, and by a client
that decides nothing, which is as fast as the API server lets anybody bind.

The same pods for all three, as Weft makes them, and one onlooker: the rate is that between the first and the last pod that
its watch shows bound. Then the whole way, from no pod to all bound: Weft's jobs of one task, and its gangs of 8, of
which all are placed or none; kube-scheduler has its pods made by the same client, and makes no object but them.

kube-scheduler is one that this script starts when the pods are there, with its client's limits raised to 5,000 a second
(its defaults are 50 and 100) and everything else as it comes.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import json
import multiprocessing
import os
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import uvloop
from harness import Claim, folder_on_disk, job, publish, spread, table
from testbeds import (
    KUBE,
    SIMULATED,
    WEFT_IMAGE,
    Api,
    Onlooker,
    Testbed,
    kube_scheduler,
    on_simulated,
    options_of,
    testbed,
    used,
)

from weft.backends.kubernetes import leftovers
from weft.backends.kubernetes.backend import KubernetesBackend
from weft.backends.kubernetes.client import Client
from weft.backends.kubernetes.dryrun import objects_of
from weft.backends.kubernetes.launching import Launching
from weft.backends.kubernetes.render import Rendered
from weft.backends.kubernetes.settings import Settings
from weft.backends.kubernetes.tracked import Launch
from weft.control.control import Control
from weft.control.live import LiveJob
from weft.jobtypes.complete import read_job
from weft.store.store import Store

PODS, GANG = 2_000, 8
SIZES = (500, 2_000)
NOBODY = "nobody"
PATIENCE = 300.0
WORKERS = 4
Document = dict[str, Any]
Seen = dict[str, dict[str, float]]


def main() -> None:
    parser = options_of(__doc__ or "")
    parser.add_argument("--pods", type=int, default=None, help=f"{PODS} if not said")
    parser.add_argument("--rounds", type=int, default=None, help="3 if not said")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="numbers of simulated nodes")
    parser.add_argument(
        "--bound-only", action="store_true", help="leave out the whole way from no pod to all bound"
    )
    parser.add_argument("--client", metavar="NAME", help="the quickest client, where that is known already")
    options = parser.parse_args()
    pods = options.pods or (96 if options.quick else PODS)
    rounds = options.rounds or (1 if options.quick else 3)
    as_is = options.nodes_as_is or options.quick
    workers()
    found: dict[str, Any] = {}
    best: str | None = options.client
    for size in options.sizes[:1] if as_is else options.sizes:
        where = testbed(size, as_is)
        room = 8 * len(where.nodes)
        if pods > room:
            raise SystemExit(f"{pods} pods do not fit on {len(where.nodes)} nodes with 8 GPUs each")
        about = measure(where, pods - pods % GANG, rounds, best, whole=not options.bound_only)
        found[str(len(where.nodes))], best = about, about["quickestClient"]
    claims = [claim for nodes, about in found.items() for claim in promised(int(nodes), about)]
    tables = [shown(nodes, pods, about) for nodes, about in found.items()]
    publish("kubernetes_binding", claims, {"pods": pods, "byNodes": found, "tables": tables}, options.quick)


def measure(where: Testbed, count: int, rounds: int, best: str | None, *, whole: bool) -> dict[str, Any]:
    """`best`: the quickest client, where that is known already."""
    rates: dict[str, list[float]] = {}
    extra: dict[str, list[float]] = {}
    with where.namespace() as namespace:
        bench = Bench(where, namespace, count)
        ways = raw_ways(bench)
        if best is None:
            for name, bind in ways.items():
                rates[name] = [bench.bind_only(bind)]
            best = max(ways, key=lambda name: rates[name][0])
            print(f"the quickest client: {best}", flush=True)
        quickest = ways[best]
        for _ in range(rounds):
            told = {
                "ceiling": lambda: bench.bind_only(quickest),
                "kube": lambda: kube_bound(bench),
                "weft": lambda: weft_bound(bench, 1, extra, "weft"),
                "weftGangs": lambda: weft_bound(bench, GANG, extra, "weftGangs"),
                "kubeWhole": lambda: kube_whole(bench),
                "weftWhole": lambda: weft_whole(bench, 1, extra, "weftWhole"),
                "weftGangsWhole": lambda: weft_whole(bench, GANG, extra, "weftGangsWhole"),
            }
            for name, work in told.items():
                if name.endswith("Whole") and not whole:
                    continue
                rates.setdefault(name, []).append(rate := work())
                print(f"  {name}: {rate:.0f} pods/s", flush=True)
    return {
        "perSecond": {name: spread(found, 1) for name, found in rates.items()},
        "quickestClient": best,
        "beside": {name: round(statistics.median(found), 3) for name, found in extra.items()},
    }


def promised(nodes: int, about: dict[str, Any]) -> list[Claim]:
    middle = {name: found["median"] for name, found in about["perSecond"].items()}
    wanted = min(2 * middle["kube"], middle["ceiling"])
    limit = "the API server's ceiling" if wanted == middle["ceiling"] else "twice kube-scheduler's rate"
    claims = []
    for name, what in (("weft", "one-GPU pods"), ("weftGangs", f"gangs of {GANG}, all or nothing,")):
        text = f"Pods bound a second, {what} over {nodes:,} nodes, against {limit} ({wanted:.0f}/s)"
        claims.append(Claim(text, middle[name] / wanted, 1.0, "×", at_most=False))
    return claims


def shown(nodes: str, count: int, about: dict[str, Any]) -> dict[str, Any]:
    rates, beside = about["perSecond"], about["beside"]
    names = {
        "ceiling": f"bound by a client that decides nothing ({about['quickestClient']})",
        "kube": "bound by kube-scheduler",
        "weft": "bound by Weft, jobs of one task",
        "weftGangs": f"bound by Weft, gangs of {GANG}",
        "kubeWhole": "made by that client and bound by kube-scheduler",
        "weftWhole": "made and bound by Weft, jobs of one task",
        "weftGangsWhole": f"made and bound by Weft, gangs of {GANG}",
    }
    rows = []
    for name, what in names.items():
        if name not in rates:
            continue
        cost = beside.get(f"{name}.processorMs")
        rows.append((
            what,
            f"{rates[name]['median']:.0f}",
            f"{rates[name]['least']:.0f} to {rates[name]['most']:.0f}",
            f"{cost:.2f} ms" if cost else "",
        ))  # fmt: skip
    caption = f"{count:,} one-GPU pods over {int(nodes):,} simulated nodes:"
    return table(caption, ("What", "Pods/s, median", "all rounds", "Weft's own processor time a pod"), rows)


# ── pods ─────────────────────────────────────────────────────────────────────────────────────────


class Bench:
    """Pods as Weft makes them, in one namespace, and the clients that make and bind them."""

    def __init__(self, where: Testbed, namespace: str, count: int):
        self.where, self.namespace, self.count = where, namespace, count
        self.settings = settings_of(namespace)
        self.api = where.api
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def onlooker(self) -> Onlooker:
        return Onlooker(self.where.kubeconfig, self.namespace, self.count)

    def pods(self, scheduler: str) -> list[Document]:
        """Not Weft's to see: without its label, and for another scheduler."""
        complete = read_job(document("other", 1), "job other")
        made = next(
            each for each in objects_of("other", complete.spec, self.settings) if each["kind"] == "Pod"
        )
        del made["metadata"]["ownerReferences"]
        made["metadata"]["labels"] = {"bench": "other"}
        made["spec"]["schedulerName"] = scheduler
        return [
            {**made, "metadata": {**made["metadata"], "name": f"other-{n:05}"}} for n in range(self.count)
        ]

    def create(self, pods: Sequence[Document]) -> None:
        asked = [("POST", self.path, json.dumps(pod)) for pod in pods]
        by_processes(self.where.kubeconfig, asked)

    def bind_only(self, bind: Callable[[list[tuple[str, str]]], None]) -> float:
        """Pods a second, by whoever binds pod after pod to node after node."""
        pods = self.pods(NOBODY)
        self.create(pods)
        nodes = itertools.cycle(self.where.nodes)
        pairs = [(pod["metadata"]["name"], next(nodes)) for pod in pods]
        onlooker = self.onlooker()
        bind(pairs)
        seen = onlooker.seen(PATIENCE)
        self.where.wipe(self.namespace)
        return binding_rate(seen)


def binding_rate(seen: Seen) -> float:
    moments = sorted(seen["bound"].values())
    return (len(moments) - 1) / (moments[-1] - moments[0])


def whole_rate(seen: Seen) -> float:
    return len(seen["bound"]) / (max(seen["bound"].values()) - min(seen["added"].values()))


def document(name: str, tasks: int) -> Document:
    roles = on_simulated("forever", tasks, cpu=1, memory="1Gi", gpu=1)
    return job(name, ["true"], roles=roles, placement=SIMULATED)


def settings_of(namespace: str, instance: str = "other") -> Settings:
    return Settings(namespace=namespace, image=WEFT_IMAGE, image_pull_policy="Never", instance=instance)


# ── nobody decides: what the API server lets through ─────────────────────────────────────────────


def raw_ways(bench: Bench) -> dict[str, Callable[[list[tuple[str, str]]], None]]:
    kubeconfig, path = bench.where.kubeconfig, bench.path

    def asked(pairs: list[tuple[str, str]]) -> list[tuple[str, str, str]]:
        return [("POST", f"{path}/{pod}/binding", json.dumps(binding(pod, node))) for pod, node in pairs]

    return {
        **{
            f"Weft's client, {n} at once": lambda pairs, n=n: by_client(bench, pairs, n) for n in (16, 32, 64)
        },
        "http.client, 16 threads": lambda pairs: by_threads(kubeconfig, asked(pairs), 16),
        f"http.client, {WORKERS} processes of 16 threads": lambda pairs: by_processes(
            kubeconfig, asked(pairs)
        ),
    }


def binding(pod: str, node: str) -> Document:
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}


def by_client(bench: Bench, pairs: list[tuple[str, str]], at_once: int) -> None:
    async def work() -> None:
        client = Client(bench.where.kubeconfig)
        waiting = iter(pairs)

        async def one_after_the_other() -> None:
            for pod, node in waiting:
                await client.bind(pod, bench.namespace, node)

        await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
        await client.close()

    uvloop.run(work())


def by_threads(kubeconfig: str, asked: Sequence[tuple[str, str, str]], threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda part: send_all(kubeconfig, part), [asked[n::threads] for n in range(threads)]))


def send_all(kubeconfig: str, asked: Sequence[tuple[str, str, str]]) -> None:
    """One after the other on one connection; answers are read and not looked into."""
    api = Api.of(Path(kubeconfig))
    connection = api._connect()
    headers = {**api._headers, "Content-Type": "application/json"}
    for method, path, content in asked:
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        said = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: {answer.status} {said[:200]!r}")
    connection.close()


@functools.cache
def workers() -> ProcessPoolExecutor:
    """Started once, so that no rate has their start in it."""
    pool = ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn"))
    list(pool.map(time.sleep, [0.5] * WORKERS))
    return pool


def by_processes(kubeconfig: str, asked: Sequence[tuple[str, str, str]]) -> None:
    parts = [asked[n::WORKERS] for n in range(WORKERS)]
    for sent in [workers().submit(by_threads, kubeconfig, part, 16) for part in parts if part]:
        sent.result()


# ── kube-scheduler ───────────────────────────────────────────────────────────────────────────────


def kube_bound(bench: Bench) -> float:
    bench.create(bench.pods(KUBE))
    onlooker = bench.onlooker()
    with kube_scheduler(bench.where):
        seen = onlooker.seen(PATIENCE)
    bench.where.wipe(bench.namespace)
    return binding_rate(seen)


def kube_whole(bench: Bench) -> float:
    pods = bench.pods(KUBE)
    first = {**pods[0], "metadata": {**pods[0]["metadata"], "name": "first"}}
    with kube_scheduler(bench.where):
        warm = Onlooker(bench.where.kubeconfig, bench.namespace, 1)
        bench.create([first])
        warm.seen(PATIENCE)  # it is up, and knows the nodes
        bench.where.wipe(bench.namespace)
        onlooker = bench.onlooker()
        bench.create(pods)
        seen = onlooker.seen(PATIENCE)
    bench.where.wipe(bench.namespace)
    return whole_rate(seen)


# ── Weft ─────────────────────────────────────────────────────────────────────────────────────────


class Held(Control):
    """Decides nothing before it is told to."""

    held = True

    def _schedule(self) -> None:
        if self.held:
            self._cycle = None
        else:
            super()._schedule()


class Prepared(Launching):
    """A launch whose objects are there already: what is left is to bind its pods."""

    async def make(self, job: LiveJob) -> None:
        first = Launch(job, 1, dict.fromkeys(task.name for task in job.gang.tasks))  # type: ignore[arg-type]
        owner, new = await super()._owner(first)
        rendered, _ = await super()._rendered(first, owner)
        await asyncio.gather(*(self._make(each, new) for each in (*rendered.shared, *rendered.pods.values())))

    async def _owner(self, made: Launch) -> tuple[str, bool]:
        return "", False

    async def _rendered(self, made: Launch, owner: str) -> tuple[Rendered, tuple[str, ...]]:
        return Rendered({}, [], {}, None), ()


class Made(KubernetesBackend):
    def __init__(self, *given: Any):
        super().__init__(*given)
        own = self._launching
        self.prepared = self._launching = Prepared(
            own._client, own._settings, own._files, own._agents, own._tracked
        )


def weft_bound(bench: Bench, tasks: int, extra: dict[str, list[float]], name: str) -> float:
    async def work(backend: KubernetesBackend, jobs: list[LiveJob]) -> None:
        assert isinstance(backend, Made)
        waiting = iter(jobs)

        async def one_after_the_other() -> None:
            for each in waiting:
                await backend.prepared.make(each)

        await asyncio.gather(*(one_after_the_other() for _ in range(32)))

    return binding_rate(with_weft(bench, Made, tasks, work, extra, name))


def weft_whole(bench: Bench, tasks: int, extra: dict[str, list[float]], name: str) -> float:
    async def work(backend: KubernetesBackend, jobs: list[LiveJob]) -> None:
        return

    return whole_rate(with_weft(bench, KubernetesBackend, tasks, work, extra, name))


def with_weft(
    bench: Bench,
    kind: type[KubernetesBackend],
    tasks: int,
    prepare: Callable[[KubernetesBackend, list[LiveJob]], Awaitable[None]],
    extra: dict[str, list[float]],
    name: str,
) -> Seen:
    """Jobs submitted and waiting, then the scheduler let go: what the onlooker saw."""
    leftovers.FIRST_SWEEP = leftovers.SWEEP = 3600.0  # pods that were made beforehand belong to nobody yet

    async def story(home: Path) -> Seen:
        client = Client(bench.where.kubeconfig)
        backend = kind(home, client, settings_of(bench.namespace, uuid.uuid4().hex[:8]), b"bench")
        store = Store(home / "weft.db")
        control = Held(store, backend)
        await control.start()
        documents = [document(f"bench-{n:05}", tasks) for n in range(bench.count // tasks)]
        read = [read_job(each, "job") for each in documents]
        jobs = [(await control.submit(each, "bench"))[0] for each in read]
        await prepare(backend, jobs)
        onlooker = await asyncio.to_thread(bench.onlooker)
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)  # as the server does
        client.calls.clear()
        before, began = used(os.getpid()), time.monotonic()
        control.held = False
        control.wake_scheduler()
        seen = await asyncio.to_thread(onlooker.seen, PATIENCE)
        extra.setdefault(f"{name}.processorMs", []).append(1000 * (used(os.getpid()) - before) / bench.count)
        extra.setdefault(f"{name}.untilAllBoundSeconds", []).append(time.monotonic() - began)
        for call, count in client.calls.items():
            extra.setdefault(f"{name}.{call} a pod", []).append(count / bench.count)
        if tasks > 1:
            extra.setdefault(f"{name}.gangSpreadMs", []).append(gang_spread(seen))
        await control.close()
        store.close()
        return seen

    with folder_on_disk() as folder:
        seen = uvloop.run(story(folder))
    gc.unfreeze()
    bench.where.wipe(bench.namespace)
    return seen


def gang_spread(seen: Seen) -> float:
    """Milliseconds between a gang's first and its last pod bound, in the middle of all gangs."""
    gangs: dict[str, list[float]] = {}
    for pod, moment in seen["bound"].items():
        gangs.setdefault("-".join(pod.split("-")[:3]), []).append(moment)
    return 1000 * statistics.median(max(moments) - min(moments) for moments in gangs.values())


if __name__ == "__main__":
    main()
