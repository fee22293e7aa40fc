/** What is put into a box to be copied is a command; a sentence is told as one. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { isCommand } = await load("parts/next.tsx");

for (const text of ["weft ls", "weft up --virtual-gpus 64", "kubectl -n weft get pods"])
  test(`to copy: ${text}`, () => assert.equal(isCommand(text), true));

for (const text of [
  "cancel it and ask for less",
  "choose another name, or: weft delete a",
  "see server.log (weft status)",
])
  test(`to read: ${text}`, () => assert.equal(isCommand(text), false));
