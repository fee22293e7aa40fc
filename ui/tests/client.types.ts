/** What the compiler must find: each line marked so is a mistake, and `tsc` fails where it sees none. */

import { useAsk } from "../src/api/ask";
import { get, post } from "../src/api/client";

export async function mistakes(): Promise<void> {
  const path = { name: "faces" };
  const proof = await post("/v1/datasets/{name}/verify", { path });
  proof.problems.map((problem: string) => problem.length);
  // @ts-expect-error: an answer has no field that the OpenAPI document does not name
  void proof.wrong;
  // @ts-expect-error: there is no such path
  await get("/v1/dataset/{name}", { path });
  // @ts-expect-error: it can be posted to, not got
  await get("/v1/datasets/{name}/verify", { path });
  // @ts-expect-error: whose version?
  await post("/v1/datasets/{name}/verify");
  // @ts-expect-error: the query has no such part
  await post("/v1/datasets/{name}/verify", { path, query: { versoin: "1" } });
  // @ts-expect-error: jobs have no field of this name
  void (await get("/v1/jobs/{name}", { path })).status.stat;
}

export function useMistakes(): void {
  const { data } = useAsk("/v1/datasets/{name}", { path: { name: "faces" } });
  void data?.status.versions[0]?.bytes.toFixed();
  // @ts-expect-error: what is asked again and again is typed too
  void data?.status.version_count;
  // @ts-expect-error: whose?
  useAsk("/v1/jobs/{name}/usage");
  // @ts-expect-error: nor what a list holds
  void useAsk("/v1/queues").data?.items[0]?.status.useed;
}
