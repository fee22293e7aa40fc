/** Job types and sizes as the server tells them, and a job that shows one at work. */

import type { Json, JsonObject, Schemas, Told } from "../../api/types";

export type JobType = Told<Schemas["ToldJobType"]>;
export type Size = Told<Schemas["ToldSize"]>;

/** What one writes to have it: sizes per GPU take a number. */
export const asked = (size: Size) => (size.spec.perGpu ? `${size.metadata.name}-1` : size.metadata.name);

/** A job of this type and size that can be submitted once its command is the reader's own. */
export function exampleOf(type?: JobType, size?: string): JsonObject {
  const named = type?.metadata.name;
  const roles = Object.keys(type?.spec.roles ?? {});
  return {
    apiVersion: "weft.dev/v1",
    kind: "TrainingJob",
    metadata: { generateName: `${named === undefined || named === "command" ? "train" : named}-` },
    spec: {
      ...(named === undefined || named === "command" ? {} : { type: named }),
      ...(type?.spec.command ? {} : { command: ["python", "train.py"] }),
      roles: Object.fromEntries(
        (roles.length > 0 ? roles : ["worker"]).map((role) => [role, roleOf(role, type, size)]),
      ),
    },
  };
}

function roleOf(role: string, type: JobType | undefined, size: string | undefined): JsonObject {
  const many = type?.spec.example.match(/--replicas (\d+)/)?.[1];
  const helper = type?.spec.roles?.[role]?.service === true || role !== "worker";
  const replicas: Json = helper || many === undefined ? 1 : Number(many);
  return { replicas, resources: size === undefined || helper ? { cpu: 1 } : { size } };
}
