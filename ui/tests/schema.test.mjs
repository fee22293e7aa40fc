/** The form's fields, from the schema of a job. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { meant, named, Schema } = await load("views/newjob/schema.ts");

const ROOT = {
  type: "object",
  title: "Job",
  properties: { spec: { $ref: "#/$defs/Spec" } },
  $defs: {
    Spec: {
      title: "Spec",
      properties: {
        queue: { type: "string", default: "default" },
        policy: { $ref: "#/$defs/Policy", default: "never", description: "its own words" },
        files: { type: "boolean", default: true },
        command: { anyOf: [{ type: "array", items: { type: "string" } }, { type: "null" }] },
        cpu: {
          anyOf: [
            { anyOf: [{ type: "string" }, { type: "number" }], examples: [1, "500m"] },
            { type: "null" },
          ],
        },
        env: { type: "object", patternProperties: { "^[A-Z]+$": { type: "string" } } },
        code: { anyOf: [{ $ref: "#/$defs/Code" }, { type: "null" }], description: "the files" },
        pod: { type: "object", additionalProperties: true },
      },
    },
    Policy: { enum: ["never", "always"], type: "string", description: "of the policy" },
    Code: { title: "Code", properties: { git: { type: "string" } } },
  },
};
const schema = new Schema(ROOT);
const kind = (...path) => schema.kind(schema.at(path));

test("each part has its kind of field", () => {
  assert.deepEqual(kind("spec", "queue"), { is: "text", numbers: false, examples: [] });
  assert.deepEqual(kind("spec", "policy"), { is: "choice", of: ["never", "always"] });
  assert.deepEqual(kind("spec", "files"), { is: "flag" });
  assert.deepEqual(kind("spec", "command"), { is: "list", each: { type: "string" } });
  assert.deepEqual(kind("spec", "env"), { is: "map", each: { type: "string" } });
  assert.deepEqual(kind("spec", "pod"), { is: "any" });
  assert.equal(kind("spec", "code").called, "Code");
});

test("a quantity may be written as a number", () => {
  assert.equal(kind("spec", "cpu").numbers, true);
  assert.deepEqual([...new Set(kind("spec", "cpu").examples)], ["1", "500m"]);
});

test("a field's own words go before those of what it refers to", () => {
  assert.equal(schema.resolved(schema.at(["spec", "policy"])).description, "its own words");
});

test("a part that the schema does not have is none", () => {
  assert.equal(schema.at(["spec", "nowhere"]), undefined);
  assert.equal(schema.at(["spec", "queue", "deeper"]), undefined);
  assert.deepEqual(schema.at(["spec", "command", 3]), { type: "string" });
});

test("a field is named as the server names it", () => {
  assert.equal(named(["spec", "datasets", 0, "name"]), "spec.datasets[0].name");
});

test("what is typed is a number only where it is written like one", () => {
  assert.equal(meant("2", true), 2);
  assert.equal(meant("0.5", true), 0.5);
  for (const text of ["2", "02", "1.0", "1.", "500m", ""])
    assert.equal(meant(text, text === "2" ? false : true), text);
});
