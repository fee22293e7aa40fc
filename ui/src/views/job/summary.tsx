/** The job on one page: why it waits or failed, how it went, where its tasks are. */

import type { ReactNode } from "react";
import { address } from "../../api/client";
import type { Job, JsonObject } from "../../api/types";
import { Bytes } from "../../parts/bytes";
import { Facts, Panel } from "../../parts/panel";
import { Age, Span, Time } from "../../parts/time";
import { Link } from "../../parts/link";
import { paths } from "../../routes";
import { Checkpoints } from "./checkpoints";
import { CommandLine } from "./commandline";
import { FailurePanel } from "./failure";
import { FewCurves } from "./fewcurves";
import { Tasks } from "./tasks";
import { Timeline } from "./timeline";
import { Waiting } from "./waiting";

export function Summary({ job }: { job: Job }) {
  const { state } = job.status;
  return (
    <>
      {state === "QUEUED" && <Waiting job={job} />}
      {job.status.failure && state === "FAILED" && <FailurePanel job={job} />}
      <Panel title="About">
        <CommandLine words={[...list(job.spec["command"]), ...list(job.spec["args"])]} />
        <Facts items={facts(job)} />
      </Panel>
      <Timeline job={job} />
      <FewCurves job={job} />
      <Tasks job={job} />
      <Checkpoints job={job} />
    </>
  );
}

function facts({ metadata, spec, status }: Job): (readonly [string, ReactNode] | null)[] {
  const code = spec["code"] as JsonObject | undefined;
  const labels = Object.entries(metadata.labels ?? {});
  const urls = Object.entries(status.urls ?? {});
  return [
    [
      "Type",
      <Link key="type" to={paths.type(String(spec["type"]))}>
        {String(spec["type"])}
      </Link>,
    ],
    ["Asks for", asksFor(spec)],
    ["Queue", `${spec["queue"]}, priority ${spec["priority"]}`],
    ["Owner", [metadata.owner, metadata.project].filter(Boolean).join(", project ")],
    [
      "Created",
      <>
        <Time at={metadata.created} /> (<Age since={metadata.created} /> ago)
      </>,
    ],
    [
      "Waited",
      status.started ? <Span from={metadata.created} to={metadata.created + status.waited} /> : null,
    ],
    ["Ran", <Span key="ran" from={status.started} to={status.finished} />],
    ["Code", code ? <Code code={code} /> : null],
    ["Data", status.datasets.length ? <Datasets pairs={status.datasets} /> : null],
    [
      "Restarts",
      status.restarts || status.preemptions
        ? `${status.restarts}, gave way ${status.preemptions} times`
        : null,
    ],
    ["Results", status.results ? <Results job={metadata.name} {...status.results} /> : null],
    ["Labels", labels.length ? labels.map(([name, value]) => `${name}=${value}`).join(", ") : null],
    ["Address", urls.length ? urls.map(([task, url]) => <Address key={task} task={task} url={url} />) : null],
  ].map((fact) => (fact[1] === null || fact[1] === "" ? null : (fact as [string, ReactNode])));
}

const list = (value: unknown): string[] => (Array.isArray(value) ? value.map(String) : []);

/** `4 × worker: 2 cpu, 512Mi, 1 gpu`, one line a role. */
function asksFor(spec: JsonObject): ReactNode {
  const roles = Object.entries((spec["roles"] as JsonObject | undefined) ?? {});
  return roles.map(([name, role]) => {
    const { replicas, resources } = role as { replicas: number; resources: JsonObject };
    const gpu = resources["gpu"]
      ? `${resources["gpu"]} ${resources["gpuType"] ?? ""} gpu`.replace("  ", " ")
      : "";
    const parts = [`${resources["cpu"]} cpu`, resources["memory"], gpu].filter(Boolean).join(", ");
    return <div key={name}>{`${replicas} × ${name}: ${parts}`}</div>;
  });
}

function Code({ code }: { code: JsonObject }) {
  if (code["git"])
    return <span className="mono">{`${code["git"]} ${code["commit"] ?? code["ref"] ?? ""}`}</span>;
  const text = String(code["package"] ?? code["path"] ?? "");
  return (
    <span className="mono" title={text}>
      {text.replace("sha256:", "").slice(0, 12)}
    </span>
  );
}

function Datasets({ pairs }: { pairs: [string, string][] }) {
  return pairs.map(([name, version]) => (
    <div key={name}>
      <Link to={paths.dataset(name)}>{name}</Link>{" "}
      <span className="mono quiet" title={version}>
        {version.replace("sha256:", "").slice(0, 12)}
      </span>
    </div>
  ));
}

function Results({ job, files, bytes }: { job: string; files: number; bytes: number }) {
  return (
    <a href={address("/v1/jobs/{name}/results.tar", { path: { name: job } })} download>
      {files} {files === 1 ? "file" : "files"}, <Bytes n={bytes} />
    </a>
  );
}

function Address({ task, url }: { task: string; url: string }) {
  return (
    <div>
      <a href={/^https?:/.test(url) ? url : undefined} target="_blank" rel="noreferrer">
        {task}
      </a>
    </div>
  );
}
