/** The exact spec: each line that nobody wrote says where it comes from. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { specLines } = await load("views/job/defaults.ts");

const restart = { properties: { policy: { default: "never" }, max: { default: 0 } } };
const schema = {
  properties: { spec: { $ref: "#/$defs/Spec" } },
  $defs: {
    Spec: {
      properties: {
        type: { default: "command" },
        command: { anyOf: [{ type: "array" }, { type: "null" }], default: null },
        priority: { default: 0 },
        env: {},
        restart,
        roles: { additionalProperties: { $ref: "#/$defs/Role" } },
      },
    },
    Role: { properties: { replicas: { default: 1 }, resources: { $ref: "#/$defs/Resources" }, restart } },
    Resources: { properties: { size: { default: null }, cpu: { default: null }, devices: {} } },
  },
};

function marks(spec, { type, bare = {}, filled } = {}) {
  const lines = specLines(
    { apiVersion: "weft.dev/v1", kind: "TrainingJob", metadata: { name: "a" }, spec },
    { schema, type, bare, filled },
  );
  return Object.fromEntries(
    lines
      .slice(lines.findIndex(({ text }) => text === "spec:") + 1)
      .map(({ text, mark }) => [text.trim(), mark]),
  );
}

test("what the schema says by default, and what is empty", () => {
  assert.deepEqual(marks({ type: "command", command: ["true"], priority: 3, env: {} }), {
    "type: command": "default",
    "command:": undefined,
    '- "true"': undefined,
    "priority: 3": undefined,
    "env: {}": "default",
  });
});

test("the type's word goes before the default, and what was written before both", () => {
  const type = {
    command: ["jupyter"],
    restart: { policy: "always", max: 100 },
    roles: { worker: { replicas: 1 } },
  };
  const spec = { type: "notebook", command: ["jupyter"], restart: { policy: "never", max: 100 } };
  const plain = marks({ ...spec, roles: { worker: { replicas: 1 } } }, { type });
  assert.equal(plain["replicas: 1"], "default"); // whoever says so
  assert.deepEqual(marks(spec, { type, bare: { type: "notebook", command: ["jupyter"] } }), {
    "type: notebook": undefined,
    "command:": "type notebook",
    "- jupyter": "type notebook",
    "restart:": undefined,
    "policy: never": undefined,
    "max: 100": "type notebook",
  });
});

test("what the server fills in is a default, or the size's", () => {
  const role = {
    replicas: 2,
    resources: { size: "large", cpu: 16, devices: {} },
    restart: { policy: "never" },
  };
  const bare = { roles: { worker: { replicas: 2, resources: { size: "large" } } } };
  const spec = { restart: { policy: "never" }, roles: { worker: role } };
  const filled = { ...spec, env: {} };
  assert.deepEqual(marks(spec, { bare, filled }), {
    "restart:": "default",
    "policy: never": "default",
    "roles:": undefined,
    "worker:": undefined,
    "replicas: 2": undefined,
    "resources:": undefined,
    "size: large": undefined,
    "cpu: 16": "size large",
    "devices: {}": "default",
  });
  const own = { ...spec, roles: { worker: { ...role, resources: { size: "large", cpu: 8 } } } };
  assert.equal(marks(own, { bare, filled })["cpu: 8"], undefined);
});

test("roles restart as the job does", () => {
  const restart = { policy: "always", max: 3 };
  const found = marks({ restart, roles: { worker: { replicas: 1, restart } } });
  assert.equal(found["restart:"], "default"); // the role's, which is the last
  const lines = specLines(
    {
      apiVersion: "v",
      kind: "k",
      metadata: { name: "a" },
      spec: { restart, roles: { worker: { restart } } },
    },
    { schema, type: undefined, bare: {}, filled: undefined },
  );
  assert.deepEqual(
    lines.filter(({ text }) => text.includes("policy")).map(({ mark }) => mark),
    [undefined, "default"],
  );
});
