/** Which component shows which route. */

import { lazy, Suspense } from "react";
import { Empty } from "../parts/empty";
import type { Route } from "../routes";
import { Job } from "./job";
import { Jobs } from "./jobs";
import { Overview } from "./overview";

const Queues = lazy(() => import("./queues"));
const Datasets = lazy(() => import("./datasets"));
const Types = lazy(() => import("./types"));
const Compare = lazy(() => import("./compare"));
const NewJob = lazy(() => import("./newjob"));

export function View({ route }: { route: Route }) {
  return (
    <Suspense fallback={<p className="unseen">Loading…</p>}>
      <Shown route={route} />
    </Suspense>
  );
}

function Shown({ route }: { route: Route }) {
  switch (route.view) {
    case "overview":
      return <Overview />;
    case "jobs":
      return <Jobs />;
    case "job":
      return <Job key={route.name} name={route.name} tab={route.tab} />;
    case "queues":
      return <Queues />;
    case "datasets":
      return <Datasets name={route.name} />;
    case "types":
      return <Types name={route.name} />;
    case "compare":
      return <Compare />;
    case "new":
      return <NewJob />;
    default:
      return <Empty title="Nothing here" says={`There is no page at ${location.pathname}.`} />;
  }
}
