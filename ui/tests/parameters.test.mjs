/** What runs were given, side by side; and which is the best. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { flags, parametersOf, sideBySide } = await load("views/compare/parameters.ts");
const { exampleOf } = await load("views/types/examples.ts");

const job = (spec, status = {}) => ({
  metadata: { name: "a", uid: "1" },
  spec,
  status: { datasets: [], ...status },
});

test("arguments become names and values", () => {
  assert.deepEqual(flags(["data.csv", "--lr", "0.1", "--fast", "--opt=adam", "-n", "-3", "--eps=a=b", "x"]), [
    ["argument 1", "data.csv"],
    ["--lr", "0.1"],
    ["--fast", "yes"],
    ["--opt", "adam"],
    ["-n", "-3"],
    ["--eps", "a=b"],
    ["argument 2", "x"],
  ]);
});

test("a dataset is compared by the version that was read", () => {
  const found = parametersOf(
    job({ datasets: [{ name: "faces" }, { name: "new" }] }, { datasets: [["faces", "0123456789abcdef"]] }),
  );
  assert.equal(found.get("data faces"), "0123456789ab");
  assert.equal(found.get("data new"), "newest");
});

test("what differs is marked, also where one run has nothing", () => {
  const rows = sideBySide([
    job({ args: ["--lr", "1"], queue: "q", roles: { worker: { replicas: 1 } } }),
    job({ args: ["--lr", "2", "--x"], queue: "q", roles: { worker: { replicas: 1 } } }),
  ]);
  const differs = Object.fromEntries(rows.map((row) => [row.name, row.differs]));
  assert.deepEqual(differs, { "--lr": true, "--x": true, queue: false, "roles.worker.replicas": false });
  assert.deepEqual(rows.find((row) => row.name === "--x").values, [undefined, "yes"]);
});

test("an example has the type's roles, and the number of tasks of its command line", () => {
  const type = {
    metadata: { name: "ring" },
    spec: { example: "weft run t.py --replicas 3", roles: { launcher: {}, worker: {} }, checks: [] },
  };
  const { spec, metadata } = exampleOf(type, "small");
  assert.equal(metadata.generateName, "ring-");
  assert.equal(spec.type, "ring");
  assert.deepEqual(spec.roles.worker, { replicas: 3, resources: { size: "small" } });
  assert.equal(spec.roles.launcher.replicas, 1);
});
