/** The job file that New job writes: the form changes parts of what was typed. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { parse } from "yaml";
import { load } from "./load.mjs";

const { changed, lineOf, place, read, renamed, steps, written } = await load("views/newjob/document.ts");

const TYPED = `# my job
metadata: {name: a}
spec:
  command: [python, train.py] # what runs
  roles:
    worker:
      replicas: 2
      resources: {cpu: 1}
`;

test("what is written can be read back as it was", () => {
  const jobs = [
    {
      spec: {
        command: ["sh", "-c", "echo 'a'\necho \"b\"\n"],
        env: { ON: "yes", N: "1", EMPTY: "", S: " x " },
      },
    },
    { spec: { args: ["--lr", "0.1", "null", "~", "1e3", "0x1", "- a", "a: b", "#", "é", "\u0007"] } },
    {
      metadata: { labels: { "a.b/c": "true" } },
      spec: { deadline: 30, files: false, list: [{}, { a: [] }] },
    },
  ];
  for (const job of jobs) assert.deepEqual(parse(written(job)), job);
});

test("short lists of words stay on one line, long ones and those with lines do not", () => {
  assert.equal(written({ command: ["python", "train.py"] }), "command: [python, train.py]\n");
  assert.match(written({ command: ["sh", "-c", "a\nb\n"] }), /^command:\n {2}- sh\n {2}- -c\n {2}- \|/);
  assert.match(written({ command: Array(40).fill("word") }), /^command:\n {2}- word\n/);
});

test("a change keeps everything else as it was typed", () => {
  const next = changed(TYPED, ["spec", "roles", "worker", "replicas"], 4);
  assert.equal(next, TYPED.replace("replicas: 2", "replicas: 4"));
});

test("a change makes the parts that it needs", () => {
  const { job } = read(changed(TYPED, ["spec", "placement", "nodes"], "one"));
  assert.deepEqual(job.spec.placement, { nodes: "one" });
  assert.deepEqual(read(changed("spec:\n", ["spec", "env", "A"], "1")).job, { spec: { env: { A: "1" } } });
  assert.deepEqual(read(changed("spec: {env: 3}\n", ["spec", "env", "A"], "1")).job, {
    spec: { env: { A: "1" } },
  });
});

test("what is taken out takes what is empty without it along, but not the spec", () => {
  const less = changed(TYPED, ["spec", "roles", "worker", "resources", "cpu"], undefined);
  assert.deepEqual(read(less).job.spec.roles, { worker: { replicas: 2 } });
  assert.deepEqual(read(changed("spec: {queue: a}\n", ["spec", "queue"], undefined)).job, { spec: {} });
  assert.equal(changed("spec: 3\n", ["spec", "queue"], undefined), "spec: 3\n");
});

test("an entry gets another name in its place", () => {
  const { job } = read(renamed("spec:\n  env: {A: 1, B: 2, C: 3}\n", ["spec", "env", "B"], "Z"));
  assert.deepEqual(Object.entries(job.spec.env), [
    ["A", 1],
    ["Z", 2],
    ["C", 3],
  ]);
});

test("text that is no YAML, or no mapping, is told with its line", () => {
  const broken = read("spec:\n  command: [python\nmetadata: {}\n");
  assert.equal(broken.job, undefined);
  assert.ok(broken.wrong.line >= 2, JSON.stringify(broken.wrong));
  assert.doesNotMatch(broken.wrong.message, /at line/);
  assert.match(read("- a\n").wrong.message, /mapping/);
  assert.match(read("").wrong.message, /mapping/);
});

test("a field that the server names is found, also below keys with dots and in lists", () => {
  const job = {
    metadata: { labels: { "a.b/c": "x" } },
    spec: { datasets: [{ name: "faces" }], command: ["a", "b"] },
  };
  assert.deepEqual(steps(job, "metadata.labels.a.b/c"), ["metadata", "labels", "a.b/c"]);
  assert.deepEqual(steps(job, "spec.datasets[0].name"), ["spec", "datasets", 0, "name"]);
  assert.deepEqual(steps(job, "spec.command[1]"), ["spec", "command", 1]);
  assert.deepEqual(steps(job, "spec.roles.worker"), ["spec", "roles", "worker"]);
});

test("the place of a field in the text, or of what it would be in", () => {
  const at = (path) => lineOf(TYPED, place(TYPED, path)[0]);
  assert.equal(at(["spec", "roles", "worker", "replicas"]), 7);
  assert.equal(at(["spec", "roles", "worker", "resources", "gpu"]), 8);
  assert.equal(place(TYPED, ["nowhere"]), undefined);
});
