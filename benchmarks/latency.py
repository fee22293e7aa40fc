"""From one POST to an idle server until the user's process runs, against the same process spawned directly.

The process is `date`: the first thing it does is to say what time it is.
"""

from __future__ import annotations

import statistics
import subprocess
import time

from harness import (
    Claim,
    Connection,
    Server,
    arguments,
    clean_memory,
    expect_created,
    folder_on_disk,
    job,
    print_table,
    publish,
    spread,
    until,
)

DATE = ("date", "+%s.%N")
LIMIT_MS = 15.0
REST_SECONDS = 0.02


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    samples = 30 if options.quick else 250
    clean_memory()
    bare: list[float] = []
    weft: list[float] = []
    answered: list[float] = []
    with folder_on_disk() as folder, Server(folder / "home") as server, Connection(server) as connection:
        run_job(server, connection, "warm-up")
        for number in range(samples):
            bare.append(run_bare())
            started, answer = run_job(server, connection, f"date-{number}")
            weft.append(started)
            answered.append(answer)
    extra = statistics.median(weft) - statistics.median(bare)
    shown = {"spawned directly": bare, "submitted to Weft": weft, "the POST answered (committed)": answered}
    rows = [
        (what, f"{statistics.median(times):.2f}", f"{spread(times)['p90']:.2f}")
        for what, times in shown.items()
    ]
    print_table((f"until the process runs, {samples} times", "median ms", "p90 ms"), rows)
    claim = Claim(
        "Submit to user process started, idle server: more than the bare spawn", extra, LIMIT_MS, " ms"
    )
    details = {
        "milliseconds": {"bare": spread(bare, 3), "weft": spread(weft, 3), "answered": spread(answered, 3)},
        "ratio": round(statistics.median(weft) / statistics.median(bare), 3),
    }
    publish("latency", [claim], details, options.quick)


def run_bare() -> float:
    time.sleep(REST_SECONDS)
    begin = time.time()
    with subprocess.Popen(DATE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = float(process.stdout.read())
    return 1000 * (started - begin)


def run_job(server: Server, connection: Connection, name: str) -> tuple[float, float]:
    """Milliseconds until the process ran, and until the submission was answered."""
    request = server.request("POST", "/v1/jobs", job(name, DATE))
    time.sleep(REST_SECONDS)
    begin = time.time()
    answer = connection.exchange(request)
    answered = time.time()
    expect_created(answer)
    time.sleep(REST_SECONDS)  # no question while the process is being started
    path = f"/v1/jobs/{name}"
    until(lambda: connection.get(path)["status"]["state"] == "COMPLETED", f"{name} to complete")
    (line,) = connection.get(f"{path}/logs")["items"]
    return 1000 * (float(line["text"]) - begin), 1000 * (answered - begin)


if __name__ == "__main__":
    main()
