/** The form: the fields of the schema in the order in which one thinks of them. */

import { Panel } from "../../parts/panel";
import { useEditing } from "./editing";
import { Field, More } from "./field";

const SECTIONS: readonly { title: string; first: readonly string[]; more?: readonly string[] }[] = [
  {
    title: "What runs",
    first: ["type", "command", "args", "code"],
    more: ["env", "secrets", "image", "isolation"],
  },
  {
    title: "How large, and where",
    first: ["roles", "queue", "priority"],
    more: ["placement", "resize", "scheduling"],
  },
  { title: "Data", first: ["datasets"], more: ["outputs", "results", "metrics"] },
  {
    title: "How long, and what if it fails",
    first: ["deadline", "restart"],
    more: ["success", "stallTimeout", "idleTimeout", "maxWait", "grace", "ttlAfterFinished"],
  },
];

export function Form() {
  const { schema } = useEditing();
  const metadata = schema.at(["metadata"]);
  const spec = schema.at(["spec"]);
  const kind = spec && schema.kind(spec);
  if (!metadata || kind?.is !== "group") return null;
  const fields = new Map(kind.fields);
  const pick = (names: readonly string[]) =>
    names.flatMap((name) =>
      fields.has(name)
        ? [[name, fields.get(name)] as [string, NonNullable<ReturnType<typeof fields.get>>]]
        : [],
    );
  const placed = new Set(SECTIONS.flatMap(({ first, more }) => [...first, ...(more ?? [])]));
  const others = kind.fields.filter(([name]) => !placed.has(name));
  return (
    <>
      <Panel title="Name">
        <Field path={["metadata"]} schema={metadata} label={<span className="unseen">Name</span>} />
      </Panel>
      {SECTIONS.map((section) => (
        <Panel key={section.title} title={section.title}>
          {pick(section.first).map(([name, each]) => (
            <Field key={name} path={["spec", name]} schema={each} />
          ))}
          {section.more && <More path={["spec"]} fields={pick(section.more)} />}
        </Panel>
      ))}
      {others.length > 0 && (
        <Panel title="Further">
          <More path={["spec"]} fields={others} />
        </Panel>
      )}
    </>
  );
}
