"""Take the pictures of docs/page.md: a server with real jobs on virtual GPUs, looked at in Debian's Chromium.

    python scripts/page_pictures.py [SECONDS]

SECONDS (default 150) is how long the jobs run before the first picture is taken: curves and charts need some.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "machine"))

from harness import Server, job, package, sh  # noqa: E402

IMAGES = ROOT / "docs" / "images"
WINDOW: Any = {"width": 1280, "height": 800}
TRAIN = """
import argparse, math, os, random, time, weft
options = argparse.ArgumentParser()
options.add_argument("--lr", type=float, default=0.1)
options.add_argument("--steps", type=int, default=10**6)
options.add_argument("--every", type=float, default=0.25)
lr, steps, every = vars(options.parse_args()).values()
rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
print(f"INFO rank {rank} of {size}, lr {lr}", flush=True)
for step in range(steps):
    loss = 2.3 * math.exp(-step * lr / 40) + 0.25 / (1 + lr) + random.gauss(0, 0.03)
    weft.log(step=step, loss=loss, accuracy=1 - loss / 2.6, progress=min(1.0, step / 900))
    if step % 4 == 0:
        print(f"INFO step {step} loss {loss:.4f}", flush=True)
    if step % 97 == 96:
        print("WARNING gradient norm above 10, clipped", flush=True)
    time.sleep(every)
"""
FAILS = 'print("INFO reading shard 17", flush=True); raise ValueError("shard 17: 3 samples have no label")'


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 150.0
    with tempfile.TemporaryDirectory(prefix="weft-pictures-") as folder, sync_playwright() as playwright:
        options = (
            "--nodes",
            "4",
            "--cpu",
            "96",
            "--gpus",
            "32",
            "--gpu-type",
            "a100",
            "--gpu-memory",
            "80Gi",
        )
        server = Server(Path(folder) / "home", options).start()
        try:
            fill(server)
            time.sleep(seconds)
            chromium = shutil.which("chromium")
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            take(browser, server)
            browser.close()
        finally:
            for item in server.get("/v1/jobs", limit=1000).json["items"]:
                server.ask(item["metadata"]["name"], "cancel")
            server.close()


def fill(server: Server) -> None:
    code = {"package": server.put_package(package({"train.py": TRAIN, "evaluate.py": FAILS})[1])}
    for name, gpus in (("language", 16), ("vision", 8)):
        spec = {"guarantee": {"gpu": gpus}}
        document = {"apiVersion": "weft.dev/v1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
        answer = server.call("PUT", f"/v1/queues/{name}", document)
        assert answer.status == 201, answer.body

    def submit(name: str, gpus: float, tasks: int, queue: str, *args: str, script: str = "train.py") -> None:
        roles = {"worker": {"replicas": tasks, "resources": {"cpu": 2, "gpu": gpus, "memory": "512Mi"}}}
        server.submit(
            job(
                "python",
                script,
                name=name,
                args=list(args),
                code=code,
                roles=roles,
                queue=queue,
                deadline="3h",
            )
        )

    submit("llama-finetune", 4, 4, "language", "--lr", "0.3")
    submit("vit-large", 2, 2, "vision", "--lr", "0.2")
    for lr in ("0.1", "0.3", "1.0"):
        submit(f"resnet-lr-{lr.replace('.', '-')}", 1, 1, "vision", "--lr", lr, "--steps", "400")
    submit("whisper-eval", 2, 1, "vision", script="evaluate.py")
    submit("bert-distill", 1, 2, "language", "--lr", "0.5")
    server.wait_for("bert-distill", "PROCESSING")
    server.wait_for("whisper-eval", "FAILED")
    submit("mixtral-pretrain", 8, 2, "language")
    submit("clip-large", 4, 2, "vision")
    server.submit(sh("exit 0", name="tokenize", queue="language"))
    server.wait_for("tokenize")


def take(browser: Browser, server: Server) -> None:
    address, code = server.facts()["address"], server.post("/v1/session/codes").json["code"]
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{address}/#login={code}")
        page.get_by_role("navigation", name="Views").wait_for()
        state = context.storage_state()
    runs = ",".join(f"resnet-lr-{lr}" for lr in ("0-1", "0-3", "1-0"))
    for name, path, scheme, sight in (
        ("overview", "/", "light", ".curve canvas"),
        ("job", "/jobs/llama-finetune", "light", ".curve canvas"),
        ("log", "/jobs/llama-finetune/log", "dark", "[role=log] >> text=step"),
        ("jobs", "/jobs", "dark", "[role=row] a[href^='/jobs/']"),
        ("compare", f"/compare?jobs={runs}", "light", ".curve canvas"),
        ("queues", "/queues", "dark", "main >> text=language"),
    ):
        with browser.new_context(storage_state=state, viewport=WINDOW, color_scheme=scheme) as context:  # type: ignore[arg-type]
            page = context.new_page()
            page.goto(f"{address}{path}")
            page.locator(sight).first.wait_for()
            if name == "compare":
                page.locator(sight).first.scroll_into_view_if_needed()
            page.wait_for_timeout(1500)  # a second more of what is live
            picture = Image.open(io.BytesIO(page.screenshot()))
            target = IMAGES / f"page-{name}.png"
            picture.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(target, optimize=True)
            print(f"wrote {target.name}: {target.stat().st_size >> 10} KB")


if __name__ == "__main__":
    main()
