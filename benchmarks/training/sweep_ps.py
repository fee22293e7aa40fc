"""One job of a sweep: a network with LAYERS hidden layers learns the demo's digits at RATE, by parameter server.

A gradient takes WAIT seconds besides its computation, as if an accelerator did it. UPDATES gradients are shared out
among the workers beforehand, so that all jobs of a size do the same work, and no worker does more than another.
"""

import os
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

import weft
from weft import ps

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "digits"))
import train as digits

LAYERS = int(os.environ["LAYERS"])
RATE = float(os.environ["RATE"])
UPDATES = int(os.environ["UPDATES"])
WAIT = float(os.environ["WAIT"])


def initial():
    random = np.random.default_rng(1)
    sizes = [64, *[digits.HIDDEN] * LAYERS, 10]
    model = {}
    for i, (of, to) in enumerate(pairwise(sizes)):
        model |= {f"w{i}": random.normal(0, (2 / of) ** 0.5, (of, to)), f"b{i}": np.zeros(to)}
    return model


def forward(p, images):
    """The input of every layer, and the probability of every digit."""
    inputs = [images]
    for i in range(LAYERS):
        inputs.append(np.maximum(inputs[-1] @ p[f"w{i}"] + p[f"b{i}"], 0))
    scores = inputs[-1] @ p[f"w{LAYERS}"] + p[f"b{LAYERS}"]
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return inputs, odds / odds.sum(axis=1, keepdims=True)


def learn(p, images, labels):
    """The gradients of the cross-entropy loss."""
    inputs, error = forward(p, images)
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    gradients = {}
    for i in range(LAYERS, -1, -1):
        gradients |= {f"w{i}": inputs[i].T @ error, f"b{i}": error.sum(0)}
        error = (error @ p[f"w{i}"].T) * (inputs[i] > 0)
    return gradients


def work():
    index, workers = int(os.environ["WEFT_INDEX"]), len(ps.hosts()["worker"])
    (images, labels), (test_images, test_labels) = digits.load()
    images, labels = images[index::workers], labels[index::workers]
    random = np.random.default_rng(index)
    with ps.Client() as server:
        p, _ = server.pull()
        weft.log(step=0, first=time.time())
        for _ in range(len(range(index, UPDATES, workers))):
            batch = random.integers(len(labels), size=digits.BATCH)
            gradients = learn(p, images[batch], labels[batch])
            time.sleep(WAIT)
            server.push(gradients)
            p, version = server.pull()
        weft.log(
            step=version, accuracy=float((forward(p, test_images)[1].argmax(axis=1) == test_labels).mean())
        )


if os.environ["WEFT_ROLE"] == "ps":
    ps.serve(initial(), optimizer=ps.SGD(lr=RATE))
else:
    work()
