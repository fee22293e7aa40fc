"""A small network trained by TensorFlow's ParameterServerStrategy: the chief hands out steps, the workers compute them,
and the parameters live in the servers. Weft gives every task TF_CONFIG.

weft run examples/tensorflow/job.yaml
"""

import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # a worker that is starting again is waited for

import numpy as np
import tensorflow as tf

import weft

EPOCHS = int(os.environ.get("EPOCHS", "8"))
STEPS = 20
"""Of an epoch, over all workers."""
PAUSE = float(
    os.environ.get("PAUSE", "0")
)  # after an epoch, for tests that must be quicker than the training

task = json.loads(os.environ["TF_CONFIG"])["task"]
cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()


def serve():
    """Do what the chief asks for, until the job is over."""
    server = tf.distribute.Server(
        cluster.cluster_spec(), job_name=task["type"], task_index=task["index"], protocol="grpc"
    )
    print(f"{task['type']} {task['index']} serves, restarts {os.environ['WEFT_RESTARTS']}", flush=True)
    server.join()


def dataset():
    """Points in 8 dimensions and on which side of a plane each lies; every worker shuffles them in its own way."""
    points = np.random.default_rng(0).normal(size=(2048, 8)).astype("float32")
    side = (points.sum(axis=1, keepdims=True) > 0).astype("float32")
    return tf.data.Dataset.from_tensor_slices((points, side)).shuffle(2048).repeat().batch(64)


def lead():
    strategy = tf.distribute.ParameterServerStrategy(
        cluster, variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(max_shards=2)
    )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        hidden = tf.Variable(tf.random.stateless_normal([8, 16], seed=[0, 1]) * 0.3)
        output = tf.Variable(tf.random.stateless_normal([16, 1], seed=[0, 2]) * 0.3)

    def compute(iterator):
        points, side = next(iterator)
        with tf.GradientTape() as tape:
            guess = tf.nn.tanh(points @ hidden) @ output
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(side, guess))
        for variable, gradient in zip((hidden, output), tape.gradient(loss, (hidden, output)), strict=True):
            variable.assign_sub(0.5 * gradient)
        return loss

    @tf.function
    def step(iterator):
        return strategy.run(compute, args=(iterator,))

    iterator = iter(coordinator.create_per_worker_dataset(dataset))
    for epoch in range(EPOCHS):
        losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(STEPS)]
        coordinator.join()
        loss = float(np.mean([loss.fetch() for loss in losses]))
        weft.log(step=epoch, loss=loss)
        print(f"epoch {epoch}, loss {loss:.3f}", flush=True)
        time.sleep(PAUSE)


if task["type"] in ("ps", "worker"):
    serve()
else:
    lead()
