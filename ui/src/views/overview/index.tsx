/** The cluster at a glance: who is where, how full it is, what happened lately and what needs attention. */

import { useJobs, useNodes } from "../../api/live";
import { Empty } from "../../parts/empty";
import { useTitle } from "../../title";
import { Attention } from "./attention";
import { Lately } from "./lately";
import { ClusterMap } from "./map";
import "../../parts/progress.css";
import "./overview.css";
import { Tiles } from "./tiles";
import { Usage } from "./usage";

export function Overview() {
  useTitle("Overview");
  const nodes = useNodes();
  const jobs = useJobs();
  const nothing = jobs.known && jobs.list.length === 0;
  return (
    <div className="view">
      <header className="view-head">
        <h1>Overview</h1>
      </header>
      {nothing && (
        <section className="panel">
          <Empty title="No jobs yet" says="Your first one, from a terminal:" command="weft run train.py" />
        </section>
      )}
      {nodes && <Tiles nodes={nodes} />}
      {nodes && <ClusterMap nodes={nodes} />}
      <Usage />
      {!nothing && jobs.known && (
        <div className="overview-foot">
          <Attention />
          <Lately title="Started lately" jobs={jobs.list} time={(job) => job.started} />
          <Lately title="Finished lately" jobs={jobs.list} time={(job) => job.finished} />
        </div>
      )}
    </div>
  );
}
