/** What somebody should look at. */

import type { ReactNode } from "react";
import { useJobs, useNodes, useStatus } from "../../api/live";
import { FINISHED } from "../../api/types";
import { plural } from "../../format";
import { useNow } from "../../now";
import { Icon, type IconName } from "../../parts/icon";
import { Link } from "../../parts/link";
import { Panel } from "../../parts/panel";
import type { Tone } from "../../parts/state";
import { Age } from "../../parts/time";
import { paths } from "../../routes";

const DAY = 86_400;
const OFTEN = 3;
const MOST = 10;

interface Matter {
  key: string;
  icon: IconName;
  tone: Tone;
  says: ReactNode;
}

export function Attention() {
  const matters = useMatters();
  return (
    <Panel
      title="Needs attention"
      aside={matters.length > MOST ? `${matters.length - MOST} more` : undefined}
    >
      {matters.length === 0 && <p className="quiet">Nothing: all is well.</p>}
      <ul className="attention">
        {matters.slice(0, MOST).map((matter) => (
          <li key={matter.key} className={`tone-${matter.tone}`}>
            <Icon name={matter.icon} />
            <span>{matter.says}</span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function useMatters(): Matter[] {
  const jobs = useJobs().list;
  const nodes = useNodes() ?? [];
  const notes = useStatus()?.notes ?? [];
  const now = Math.floor(useNow() / 60) * 60;
  const never = jobs.filter((job) => job.state === "QUEUED" && job.reason?.startsWith("can never start"));
  const failed = jobs.filter((job) => job.state === "FAILED" && (job.finished ?? 0) > now - DAY);
  const shaky = jobs.filter((job) => job.restarts >= OFTEN && !FINISHED.has(job.state));
  return [
    ...never.map((job): Matter => ({
      key: `never ${job.uid}`,
      icon: "warning",
      tone: "bad",
      says: (
        <>
          <Link to={paths.job(job.name)}>{job.name}</Link> {job.reason}
        </>
      ),
    })),
    ...nodes
      .filter((node) => node.cordon)
      .map((node): Matter => ({
        key: `node ${node.name}`,
        icon: "no",
        tone: node.cordon?.lost ? "bad" : "wait",
        says: (
          <>
            node <b>{node.name}</b> {node.cordon?.lost ? "lost" : "cordoned"} by {node.cordon?.by}
            {node.cordon?.reason && `: ${node.cordon.reason}`} <Age since={node.cordon?.since} /> ago
          </>
        ),
      })),
    ...failed.map((job): Matter => ({
      key: `failed ${job.uid}`,
      icon: "cross",
      tone: "bad",
      says: (
        <>
          <Link to={paths.job(job.name)}>{job.name}</Link> failed <Age since={job.finished} /> ago
          {job.reason && `: ${job.reason}`}
        </>
      ),
    })),
    ...shaky.map((job): Matter => ({
      key: `shaky ${job.uid}`,
      icon: "again",
      tone: "wait",
      says: (
        <>
          <Link to={paths.job(job.name)}>{job.name}</Link> has restarted {plural(job.restarts, "time")}
        </>
      ),
    })),
    ...notes.map((note): Matter => ({ key: note, icon: "help", tone: "idle", says: note })),
  ];
}
