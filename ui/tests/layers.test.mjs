/** How a graph is laid out. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { layered } = await load("parts/layers.ts");
const edges = (...pairs) => pairs.map((pair) => ({ from: pair[0], to: pair[1] }));

test("everything is to the right of what it was made from", () => {
  const laid = layered([..."abcde"], edges("ab", "bc", "ac", "cd", "ed"));
  const at = (name) => laid.spots.get(name).layer;
  for (const { edge } of laid.edges) assert.ok(at(edge.from) < at(edge.to), JSON.stringify(edge));
  assert.equal(laid.layers, 4);
});

test("a source stands next to what it goes into", () => {
  const laid = layered([..."abcde"], edges("ab", "bc", "cd", "ed"));
  assert.equal(laid.spots.get("e").layer, laid.spots.get("d").layer - 1);
});

test("no two things have one place, and an edge past a layer has its own", () => {
  const laid = layered([..."abcd"], edges("ab", "bc", "cd", "ad"));
  const places = [...laid.spots.values(), ...laid.edges.flatMap((each) => each.through)];
  assert.equal(new Set(places.map(({ layer, row }) => `${layer}/${row}`)).size, places.length);
  assert.equal(laid.edges.find(({ edge }) => edge.from === "a" && edge.to === "d").through.length, 2);
});

test("lines that need not cross do not", () => {
  const laid = layered(["a1", "a2", "b2", "b1"], edges(["a1", "b1"], ["a2", "b2"]));
  const row = (name) => laid.spots.get(name).row;
  assert.equal(row("a1") < row("a2"), row("b1") < row("b2"));
});

test("a circle, an edge to itself and an edge to nowhere are drawn as far as they can be", () => {
  const laid = layered([..."abc"], edges("ab", "bc", "ca", "aa", "xa"));
  assert.equal(laid.spots.size, 3);
  assert.deepEqual(laid.edges.map(({ edge }) => edge.from + edge.to).sort(), ["ab", "bc"]);
});

test("nothing and a single thing have a layout", () => {
  assert.deepEqual([layered([], []).layers, layered([], []).rows], [0, 0]);
  assert.deepEqual(layered(["a"], []).spots.get("a"), { layer: 0, row: 0 });
});

test("random graphs keep the rules", () => {
  let seed = 7;
  const random = (below) => (seed = (seed * 48271) % 2147483647) % below;
  for (let turn = 0; turn < 200; turn += 1) {
    const nodes = Array.from({ length: 1 + random(12) }, (_, n) => `n${n}`);
    const given = Array.from({ length: random(24) }, () => ({
      from: nodes[random(nodes.length)],
      to: nodes[random(nodes.length)],
    }));
    const laid = layered(nodes, given);
    for (const { edge, through } of laid.edges) {
      const [from, to] = [laid.spots.get(edge.from), laid.spots.get(edge.to)];
      assert.deepEqual(
        through.map((spot) => spot.layer),
        Array.from({ length: to.layer - from.layer - 1 }, (_, n) => from.layer + 1 + n),
      );
    }
    const places = [...laid.spots.values(), ...laid.edges.flatMap((each) => each.through)];
    assert.equal(new Set(places.map(({ layer, row }) => `${layer}/${row}`)).size, places.length);
    assert.ok(
      places.every(({ layer, row }) => layer >= 0 && layer < laid.layers && row >= 0 && row <= laid.rows - 1),
    );
  }
});
