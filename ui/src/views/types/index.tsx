/** Job types and sizes: what there is, and an example of each. */

import { useAsk } from "../../api/ask";
import { useDeclared } from "../../api/live";
import { Command } from "../../parts/command";
import { Copy } from "../../parts/copy";
import { Empty } from "../../parts/empty";
import { Link } from "../../parts/link";
import { Facts, Panel } from "../../parts/panel";
import { Problem } from "../../parts/problem";
import { Table } from "../../parts/table";
import { paths } from "../../routes";
import { useTitle } from "../../title";
import { written } from "../newjob/document";
import { asked, exampleOf, type JobType, type Size } from "./examples";
import "./types.css";

export default function Types({ name }: { name: string | undefined }) {
  useTitle(name ?? "Job types");
  const declared = useDeclared();
  const types = useAsk("/v1/jobtypes", { when: declared });
  const sizes = useAsk("/v1/sizes", { when: declared });
  const refusal = types.refusal ?? sizes.refusal;
  const chosen = types.data?.items.find((type) => type.metadata.name === name) ?? types.data?.items[0];
  const unknown = name !== undefined && types.data && chosen?.metadata.name !== name;
  return (
    <div className="view">
      <header className="view-head">
        <h1>Job types and sizes</h1>
        <span className="quiet">how tasks find each other, and how large they are</span>
      </header>
      {refusal && <Problem refusal={refusal} />}
      {unknown && <Empty title={`No job type ${name}`} says="These are there:" command="weft jobtypes" />}
      {chosen && types.data && (
        <div className="types">
          <nav aria-label="Job types" className="types-list">
            {types.data.items.map((type) => (
              <Link
                key={type.metadata.name}
                to={paths.type(type.metadata.name)}
                aria-current={type === chosen ? "page" : undefined}
              >
                <strong>{type.metadata.name}</strong>
                {!type.status.builtIn && <span className="tag">own</span>}
                <span className="quiet small">{type.spec.description.split(/[.;] /)[0]}</span>
              </Link>
            ))}
          </nav>
          <Type type={chosen} />
        </div>
      )}
      {sizes.data && <Sizes sizes={sizes.data.items} />}
    </div>
  );
}

function Type({ type }: { type: JobType }) {
  const { metadata, spec, status } = type;
  const yaml = written(exampleOf(type));
  const { checks = [], restart } = spec;
  const starter = spec.template?.command ?? [];
  const environment = Object.entries(spec.template?.env ?? {});
  return (
    <Panel
      title={metadata.name}
      className="type"
      aside={
        <>
          <span>{status.builtIn ? "comes with Weft" : `declared by ${metadata.owner ?? "an operator"}`}</span>
          <Link className="button primary" to={paths.newJobOf({ type: metadata.name })}>
            Use it
          </Link>
        </>
      }
    >
      <p>{spec.description}</p>
      <Facts
        items={[
          ["Roles", <Roles key="roles" roles={spec.roles} />],
          ["Size can change", spec.elastic ? `yes${spec.resize ? `, by ${spec.resize}` : ""}` : "no"],
          restart?.policy != null && ["Restart", restart.policy],
          restart?.scope != null && ["Starts again together", `the ${restart.scope}`],
          spec.success != null && [
            "Succeeds when",
            spec.success === "chief" ? "the chief does" : "all tasks do",
          ],
          spec.idleTimeout != null && ["Halted when idle for", spec.idleTimeout],
        ]}
      />
      {checks.length > 0 && (
        <>
          <h3>What a job has to keep to</h3>
          <ul className="type-checks">
            {checks.map((check) => (
              <li key={check.that}>
                <code>{check.that}</code> <span className="quiet">{check.message}</span>
              </li>
            ))}
          </ul>
        </>
      )}
      {starter.length > 0 && (
        <>
          <h3>What starts the command</h3>
          <pre className="example">{starter.join(" ")}</pre>
        </>
      )}
      {environment.length > 0 && (
        <details>
          <summary>What tasks find in their environment ({environment.length})</summary>
          <pre className="example">{environment.map(([key, value]) => `${key}=${value}`).join("\n")}</pre>
        </details>
      )}
      <h3>For example</h3>
      {spec.example && <Command text={spec.example} />}
      <div className="type-yaml">
        <pre className="example" tabIndex={0} aria-label={`A job of type ${metadata.name} as YAML`}>
          {yaml}
        </pre>
        <Copy text={yaml} what="YAML" />
      </div>
    </Panel>
  );
}

function Roles({ roles }: { roles: JobType["spec"]["roles"] }) {
  const names = Object.entries(roles ?? {});
  if (names.length === 0) return <>any</>;
  return <>{names.map(([name, role]) => (role.service ? `${name} (a service)` : name)).join(", ")}</>;
}

function Sizes({ sizes }: { sizes: readonly Size[] }) {
  return (
    <Panel title="Sizes" flush aside={<Command text="weft run train.py --size small" />}>
      <Table
        label="Sizes"
        rows={sizes}
        rowKey={(size) => size.metadata.name}
        to={(size) => paths.newJobOf({ size: asked(size) })}
        most={600}
        columns={[
          {
            id: "name",
            title: "Size",
            width: "minmax(84px, 1fr)",
            cell: (size) => (
              <Link to={paths.newJobOf({ size: asked(size) })}>
                {size.spec.perGpu ? `${size.metadata.name}-N` : size.metadata.name}
              </Link>
            ),
          },
          {
            id: "cpu",
            title: "CPU",
            width: "72px",
            right: true,
            cell: ({ spec }) => each(spec.cpu, spec.perGpu),
          },
          {
            id: "memory",
            title: "Memory",
            width: "84px",
            right: true,
            cell: ({ spec }) => each(spec.memory, spec.perGpu),
          },
          { id: "gpu", title: "GPU", width: "84px", right: true, cell: ({ spec }) => gpus(spec) },
          {
            id: "from",
            title: "From",
            width: "minmax(120px, 1fr)",
            from: 560,
            cell: ({ status, metadata }) =>
              status.builtIn ? (
                <span className="quiet">Weft</span>
              ) : (
                `${metadata.owner ?? "an operator"}${status.overrides ? ", in place of Weft's" : ""}`
              ),
          },
          {
            id: "what",
            title: "For",
            width: "minmax(160px, 2fr)",
            from: 760,
            cell: ({ spec }) => spec.description,
          },
        ]}
      />
    </Panel>
  );
}

const each = (value: number | string | null | undefined, perGpu = false) =>
  value == null ? <span className="quiet">–</span> : `${value}${perGpu ? " a GPU" : ""}`;

function gpus(spec: Size["spec"]) {
  if (spec.perGpu) return `N ${spec.gpuType ?? ""}`;
  return spec.gpu ? `${spec.gpu} ${spec.gpuType ?? ""}` : <span className="quiet">–</span>;
}
