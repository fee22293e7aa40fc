"""Linear regression by TensorFlow's MultiWorkerMirroredStrategy: every worker has a copy, and gradients are summed.

weft run --type tensorflow --replicas 2 --code examples/tensorflow -- python train.py
"""

import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

import weft

task = json.loads(os.environ["TF_CONFIG"])["task"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
world = strategy.num_replicas_in_sync
print(f"{task['type']} {task['index']}, {world} replicas", flush=True)

with strategy.scope():
    weights = tf.Variable(tf.zeros([4, 1]))

points = tf.random.stateless_normal([256, 4], seed=[task["index"], 0])
values = points @ tf.constant([[1.0], [-2.0], [3.0], [0.5]])


@tf.function
def step_together():
    def one():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((points @ weights - values) ** 2)
        gradient = tape.gradient(loss, weights)
        summed = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, gradient)
        weights.assign_sub(0.1 * summed)
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(one), axis=None)


for step in range(60):
    loss = step_together()
    if task["index"] == 0:
        weft.log(step=step, loss=float(loss))
