"""Datasets in the hands of the real torch and TensorFlow, in their own environments, which have nothing of Weft's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_frameworks import ROOT, python_of

sys.path.insert(0, str(ROOT / "tests"))

from support import samples
from weft.data import packs
from weft.runtime.data.order import order

pytestmark = [pytest.mark.machine, pytest.mark.timeout(600)]
CONTENT = samples.some(203, most=300)
NAMES = sorted(CONTENT, key=str.encode)
SHUFFLED = [NAMES[i] for i in order(203, 5, 0, True).take(range(203))]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a process needs to find the data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs, "LARGEST", 4000)
        store, version = samples.stored(tmp_path_factory.mktemp("data"), CONTENT)
    store.name("faces", version)
    return {"WEFT_DATA_STORE": str(store.root), "PYTHONPATH": str(ROOT / "src")}


def said(framework: str, there: dict[str, str], tmp_path: Path, code: str, **variables: str) -> Any:
    """What a script prints, as JSON. It is a file: workers that are spawned import it again."""
    script = tmp_path / "script.py"
    script.write_text(PREFACE + code)
    env = {**os.environ, **there, **variables, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [python_of(framework), script], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


PREFACE = """
import json, os, sys
import weft

def name_of(name, content):
    return name

def names(loader):
    return [name for batch in loader for name in batch]

"""


def test_torch_map_style_with_workers_of_either_kind(there: dict[str, str], tmp_path: Path) -> None:
    code = """
from torch.utils.data import DataLoader
if __name__ == "__main__":
    data = weft.data("faces").torch_dataset()
    pairs = weft.data("faces", decode=lambda name, content: (name, len(content))).torch_dataset()
    items = weft.data("faces", decode=name_of).torch_dataset()
    found = {"len": len(data), "one": data[3].name, "pair": pairs[-1]}
    for how in ("fork", "spawn"):
        found[how] = names(DataLoader(items, batch_size=10, num_workers=2, multiprocessing_context=how))
    print(json.dumps(found))
"""
    found = said("torch", there, tmp_path, code)
    assert (found["len"], found["one"]) == (203, NAMES[3])
    assert found["pair"] == [NAMES[-1], len(CONTENT[NAMES[-1]])]
    assert found["fork"] == found["spawn"] == NAMES


def test_torch_stream_gives_every_sample_once_over_ranks_and_workers(
    there: dict[str, str], tmp_path: Path
) -> None:
    code = """
from torch.utils.data import DataLoader
found = {}
for workers in (0, 1, 3):
    for batch in (1, 7):
        shares = []
        for rank in range(2):
            data = weft.data("faces", shuffle=True, seed=5, shard=(rank, 2), decode=name_of)
            stream = data.torch_iterable(batch)
            shares.append(names(DataLoader(stream, batch_size=batch, num_workers=workers)))
        found[f"{workers} {batch}"] = shares
stream.set_epoch(4)
found["next"] = names(DataLoader(stream, batch_size=7, num_workers=3))
print(json.dumps(found))
"""
    found = said("torch", there, tmp_path, code)
    later = found.pop("next")
    assert len(found) == 6
    for shares in found.values():
        assert shares == [SHUFFLED[0::2], SHUFFLED[1::2]]
    assert later == [NAMES[i] for i in order(203, 5, 4, True).take(range(1, 203, 2))]


def test_what_torchs_workers_need_next_is_asked_for_in_the_order_of_the_epoch(
    there: dict[str, str], tmp_path: Path
) -> None:
    """By the process that draws the numbers, and by each worker of a stream."""
    code = """
from torch.utils.data import DataLoader
from weft.runtime.data import parts
asked = open(os.environ["ASKED"], "a", buffering=1)
parts.StoreParts.ahead = lambda self, version, numbers: print(json.dumps([what, os.getpid(), *numbers]), file=asked)
data = weft.data("faces", shuffle=True, seed=5, decode=name_of)
what = "loader"
found = [names(data.torch_loader(batch_size=10, num_workers=2))]
what = "stream"
data = weft.data("faces", shuffle=True, seed=5, decode=name_of)
found.append(names(DataLoader(data.torch_iterable(10), batch_size=10, num_workers=2)))
index = data._files.index
print(json.dumps([found, [index.part[index.number(name)] for name in found[0]], os.getpid()]))
"""
    asked = tmp_path / "asked"
    found, parts, drawer = said("torch", there, tmp_path, code, ASKED=str(asked))
    assert found == [SHUFFLED, SHUFFLED]
    told: dict[tuple[str, int], list[int]] = {}
    for what, process, *numbers in map(json.loads, asked.read_text().splitlines()):
        told.setdefault((what, process), []).extend(numbers)
    wanted = list(dict.fromkeys(parts))
    assert told.pop(("loader", drawer)) == wanted
    by_workers = [list(dict.fromkeys(numbers)) for (what, _), numbers in told.items() if what == "stream"]
    assert sorted(by_workers) == sorted([wanted, list(dict.fromkeys(parts[10:]))]), "from its first batch on"


def test_a_torch_loader_goes_on_exactly_however_far_its_workers_have_drawn(
    there: dict[str, str], tmp_path: Path
) -> None:
    """Stopped after every number of batches, with other numbers of workers and ranks after it."""
    code = """
def loader(workers, rank=0, world=1):
    data = weft.data("faces", shuffle=True, seed=5, shard=(rank, world), decode=name_of)
    return data.torch_loader(batch_size=9, num_workers=workers, **({"prefetch_factor": 4} if workers else {}))

found = []
for stop, workers, then, world in ((0, 2, 2, 1), (1, 2, 0, 2), (3, 3, 2, 3), (22, 2, 2, 1), (5, 0, 2, 2), (23, 1, 1, 1)):
    first, seen = loader(workers), []
    for number, batch in enumerate(first):
        if number == stop:
            break
        seen += batch
        state = json.loads(json.dumps(first.state_dict()))
    if stop == 0:
        state = loader(0).state_dict()
    rests = []
    for rank in range(world):
        second = loader(then, rank, world)
        second.load_state_dict(state)
        left = len(second)
        rests.append([list(batch) for batch in second])
        assert left == len(rests[-1]), (left, len(rests[-1]))
    found.append({"seen": seen, "rests": [[n for b in r for n in b] for r in rests], "state": state["position"]})
    after = second.state_dict()
    assert (after["epoch"], after["position"]) == (1, 0), after
print(json.dumps(found))
"""
    for one in said("torch", there, tmp_path, code):
        seen, rests = one["seen"], one["rests"]
        assert seen == SHUFFLED[: len(seen)]
        assert one["state"] == len(seen)
        assert rests == [SHUFFLED[len(seen) + rank :: len(rests)] for rank in range(len(rests))]


def test_a_torch_loader_that_was_left_goes_on_and_comes_to_the_next_epoch(
    there: dict[str, str], tmp_path: Path
) -> None:
    code = """
data = weft.data("faces", shuffle=True, seed=5, decode=name_of)
loader = data.torch_loader(batch_size=10, num_workers=2, persistent_workers=True)
seen = []
for batch in loader:
    seen += batch
    if len(seen) == 40:
        break
first = len(loader)
seen += names(loader)
print(json.dumps({"seen": seen, "left": first, "next": names(loader), "state": loader.state_dict()["epoch"]}))
"""
    found = said("torch", there, tmp_path, code)
    assert found["seen"] == SHUFFLED
    assert found["left"] == 17
    assert found["next"] == [NAMES[i] for i in order(203, 5, 1, True).take(range(203))]
    assert found["state"] == 2


def test_a_torch_sampler_by_hand(there: dict[str, str], tmp_path: Path) -> None:
    """In a DataLoader of one's own it is told what the training got; a state that would lose samples is refused."""
    code = """
from torch.utils.data import DataLoader
data = weft.data("faces", shuffle=True, seed=5, decode=name_of)
sampler = data.torch_sampler()
def batches():
    return iter(DataLoader(data.torch_dataset(), batch_size=10, sampler=sampler, num_workers=2))
drawing = batches()
seen = list(next(drawing))
refused = ""
try:
    sampler.state_dict()
except RuntimeError as problem:
    refused = str(problem)
sampler.took(10)
state = sampler.state_dict()
again = weft.data("faces", shuffle=True, seed=5, decode=name_of)
other = again.torch_sampler()
other.load_state_dict(state)
seen += [again[number] for number in other]
other.set_epoch(3)
other.set_epoch(3)
third = [again[number] for number in other]
wrong = []
for options in ({"shuffle": True}, {"drop_last": True}, {"batch_size": 0}):
    try:
        data.torch_loader(**options)
    except ValueError as problem:
        wrong.append(str(problem))
print(json.dumps({"seen": seen, "refused": refused, "third": third, "wrong": wrong}))
"""
    found = said("torch", there, tmp_path, code)
    assert found["seen"] == SHUFFLED
    assert "none reported as taken: call took(len(batch))" in found["refused"]
    assert found["third"] == [NAMES[i] for i in order(203, 5, 3, True).take(range(203))]
    assert len(found["wrong"]) == 3


def test_tf_data_gives_this_ranks_epoch(there: dict[str, str], tmp_path: Path) -> None:
    code = """
import tensorflow as tf
data = weft.data("faces", shuffle=True, seed=5, shard=True)
made = data.tf_dataset()
pairs = [(name.numpy().decode(), len(content.numpy())) for name, content in made.prefetch(2)]
again = [name.numpy().decode() for name, _ in made]
sizes = weft.data("faces", decode=lambda name, content: len(content)).tf_dataset(tf.TensorSpec((), tf.int64))
print(json.dumps({
    "pairs": pairs, "again": again, "len": int(made.cardinality()),
    "sizes": [int(size) for size in sizes.batch(50).unbatch()],
}))
"""
    found = said("tensorflow", there, tmp_path, code, RANK="1", WORLD_SIZE="2")
    share = SHUFFLED[1::2]
    assert found["pairs"] == [[name, len(CONTENT[name])] for name in share]
    assert (found["again"], found["len"]) == (share, len(share))
    assert found["sizes"] == [len(CONTENT[name]) for name in NAMES]
