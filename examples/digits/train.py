"""Handwritten digits, learned by three workers around one parameter server.

Every task of the job runs this file; the role says what to do. The server's version counts the updates of
all workers, so a job that is halted or restarted goes on where its parameters are.
"""

import gzip
import importlib.util
import json
import os
from pathlib import Path

import numpy as np

import weft
from weft import ps

UPDATES = int(os.environ.get("UPDATES", "10000"))
HIDDEN = 64
BATCH = 32
RATE = 0.05


def load():
    """1,797 images of 8×8 pixels, from the file in the scikit-learn package: (train, held out)."""
    [package] = importlib.util.find_spec("sklearn").submodule_search_locations
    with gzip.open(Path(package) / "datasets/data/digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    np.random.default_rng(0).shuffle(table)
    images, labels = table[:, :-1] / 16, table[:, -1].astype(int)
    cut = len(table) * 4 // 5
    return (images[:cut], labels[:cut]), (images[cut:], labels[cut:])


def initial():
    random = np.random.default_rng(1)
    return {
        "w1": random.normal(0, 64**-0.5, (64, HIDDEN)),
        "b1": np.zeros(HIDDEN),
        "w2": random.normal(0, HIDDEN**-0.5, (HIDDEN, 10)),
        "b2": np.zeros(10),
    }


def forward(p, images):
    """The hidden layer, and the probability of every digit."""
    hidden = np.maximum(images @ p["w1"] + p["b1"], 0)
    scores = hidden @ p["w2"] + p["b2"]
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, odds / odds.sum(axis=1, keepdims=True)


def learn(p, images, labels):
    """Cross-entropy loss, and its gradients."""
    hidden, chances = forward(p, images)
    rows = np.arange(len(labels))
    loss = -np.log(chances[rows, labels] + 1e-9).mean()
    chances[rows, labels] -= 1
    error = chances / len(labels)
    back = (error @ p["w2"].T) * (hidden > 0)
    return loss, {"w1": images.T @ back, "b1": back.sum(0), "w2": hidden.T @ error, "b2": error.sum(0)}


def accuracy(p, images, labels):
    return float((forward(p, images)[1].argmax(axis=1) == labels).mean())


def work():
    index, workers = int(os.environ["WEFT_INDEX"]), len(ps.hosts()["worker"])
    (images, labels), held_out = load()
    images, labels = images[index::workers], labels[index::workers]  # this worker's shard
    random = np.random.default_rng(index)
    print(f"worker {index} of {workers}: {len(labels)} images", flush=True)

    with ps.Client() as server:
        p, version = server.pull()
        losses, logged, told = [], version, version
        while version < UPDATES:
            batch = random.integers(len(labels), size=BATCH)
            loss, gradients = learn(p, images[batch], labels[batch])
            losses.append(loss)
            server.push(gradients)
            p, version = server.pull()
            if version - logged >= 100:
                mean = float(np.mean(losses))
                weft.log(step=version, loss=mean)
                losses, logged = [], version
                if version - told >= 1000:
                    told = version
                    print(f"update {version}: loss {mean:.4f}", flush=True)
                if index == 0:
                    weft.log(step=version, accuracy=accuracy(p, *held_out))
        if index == 0:
            finish(p, version, accuracy(p, *held_out))


def finish(p, version, reached):
    weft.log(step=version, accuracy=reached)
    print(f"accuracy {reached:.3f}", flush=True)
    results = Path(os.environ["RESULT_DIR"])
    np.savez(results / "model.npz", **p)
    (results / "metrics.json").write_text(json.dumps({"accuracy": reached, "updates": version}))


if __name__ == "__main__":
    if os.environ["WEFT_ROLE"] == "ps":
        ps.serve(initial(), optimizer=ps.SGD(lr=RATE))
    else:
        work()
