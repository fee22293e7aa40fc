"""Boosted trees by several XGBoost workers, which meet at a tracker that the first of them starts.

weft run --type xgboost --replicas 2 --code examples/xgboost -- python train.py
"""

import os

import numpy as np
import xgboost
from xgboost import collective
from xgboost.tracker import RabitTracker

import weft

rank, world = int(os.environ["DMLC_TASK_ID"]), int(os.environ["DMLC_NUM_WORKER"])
uri, port = os.environ["DMLC_TRACKER_URI"], int(os.environ["DMLC_TRACKER_PORT"])
tracker = None
if rank == 0:
    tracker = RabitTracker(host_ip=uri, n_workers=world, port=port, sortby="task")
    tracker.start()

meeting = {"dmlc_tracker_uri": uri, "dmlc_tracker_port": port, "dmlc_task_id": str(rank), "dmlc_retry": 30}
with collective.CommunicatorContext(**meeting):
    random = np.random.default_rng(rank)
    points = random.normal(size=(500, 6))
    labels = (points[:, 0] * points[:, 1] * points[:, 2] > 0).astype(int)
    told = {}
    xgboost.train(
        {"objective": "binary:logistic", "eval_metric": "error", "max_depth": 4, "nthread": 1},
        part := xgboost.DMatrix(points, labels),
        num_boost_round=20,
        evals=[(part, "train")],
        evals_result=told,
        verbose_eval=False,
    )
    print(f"rank {collective.get_rank()} of {collective.get_world_size()}", flush=True)
    if rank == 0:
        for step, error in enumerate(told["train"]["error"]):
            weft.log(step=step, error=error)
if tracker is not None:
    tracker.wait_for()
