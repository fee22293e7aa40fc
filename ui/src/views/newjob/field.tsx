/** A field of the form, made from its part of the schema. */

import { type KeyboardEvent, type ReactNode, useId, useState } from "react";
import type { Json, JsonObject } from "../../api/types";
import { Icon } from "../../parts/icon";
import { suggestions, troubled, useEditing, valueAt } from "./editing";
import { type Kind, meant, named, type Path } from "./schema";

interface Props {
  path: Path;
  schema: JsonObject;
  /** In place of its name. */
  label?: ReactNode;
}

export const idOf = (path: Path) => `field-${named(path)}`;

/** What is shown first of a group; the rest is behind a fold. */
const FIRST: Record<string, readonly string[]> = {
  Role: ["replicas", "resources"],
  Resources: ["cpu", "memory", "gpu", "size"],
  DatasetUse: ["name", "mode"],
  JobMetadata: ["name", "generateName", "labels"],
  Code: ["git", "commit"],
  Restart: ["policy", "max"],
  Placement: ["nodes", "strategy"],
};
/** Set by the server, or the same in every job. */
const NOT_ASKED = new Set(["owner", "uid", "created", "status", "apiVersion", "kind"]);

export function Field({ path, schema: given, label }: Props) {
  const { schema: all, known } = useEditing();
  const schema = all.resolved(given);
  const kind = all.kind(schema);
  const may = suggestions(path, known);
  switch (kind.is) {
    case "choice":
      return <Choice path={path} schema={schema} label={label} of={kind.of} />;
    case "flag":
      return <Flag path={path} schema={schema} label={label} />;
    case "list":
      return <List path={path} schema={schema} label={label} each={kind.each} />;
    case "map":
      return <Mapping path={path} schema={schema} label={label} each={kind.each} />;
    case "group":
      return <Group path={path} schema={schema} label={label} kind={kind} />;
    case "any":
      return (
        <Row path={path} schema={schema} label={label}>
          <p className="quiet small">Written in the YAML.</p>
        </Row>
      );
    case "text":
      if (may?.strict && may.of.length > 0)
        return <Choice path={path} schema={schema} label={label} of={may.of} />;
      return (
        <Text
          path={path}
          schema={schema}
          label={label}
          numbers={kind.numbers}
          offers={may?.of ?? []}
          examples={kind.examples}
        />
      );
  }
}

const title = (path: Path) => String(path.at(-1) ?? "");
const words = (schema: JsonObject) => String(schema["description"] ?? "");

/** What the schema says of a field; what is in backticks there is code here. */
function Words({ of }: { of: JsonObject }) {
  return words(of)
    .split("`")
    .map((part, n) => (n % 2 ? <code key={n}>{part}</code> : part));
}

function Row({ path, schema, label, children }: Props & { children: ReactNode }) {
  const id = idOf(path);
  return (
    <div className="field" data-field={named(path)}>
      <label htmlFor={id}>{label ?? title(path)}</label>
      <div className="field-body">
        {children}
        {words(schema) && (
          <p className="field-words" id={`${id}-words`}>
            <Words of={schema} />
          </p>
        )}
        <Problems path={path} />
      </div>
    </div>
  );
}

function Problems({ path }: { path: Path }) {
  const found = useEditing().problems.get(named(path));
  if (!found) return null;
  return (
    <p className="field-problem" role="alert" id={`${idOf(path)}-problem`}>
      <Icon name="warning" />
      <span>{found.join("; ")}</span>
    </p>
  );
}

function described(path: Path, schema: JsonObject, wrong: boolean) {
  const id = idOf(path);
  return {
    id,
    "aria-invalid": wrong || undefined,
    "aria-describedby":
      [words(schema) && `${id}-words`, wrong && `${id}-problem`].filter(Boolean).join(" ") || undefined,
  };
}

interface TextProps extends Props {
  numbers: boolean;
  offers: readonly string[];
  examples: readonly string[];
}

function Text({ path, schema, label, numbers, offers, examples }: TextProps) {
  const { job, change, problems } = useEditing();
  const list = useId();
  const value = valueAt(job, path);
  const usual = schema["default"] ?? undefined;
  const inList = typeof path.at(-1) === "number";
  const text =
    value === undefined || value === null
      ? ""
      : typeof value === "object"
        ? JSON.stringify(value)
        : String(value);
  const set = (typed: string) => change(path, typed === "" && !inList ? undefined : meant(typed, numbers));
  const common = {
    ...described(path, schema, problems.has(named(path))),
    "aria-label": label === null ? named(path) : undefined,
    value: text,
    spellCheck: false,
  };
  const field = text.includes("\n") ? (
    <textarea
      {...common}
      rows={Math.min(text.split("\n").length, 12)}
      onChange={(event) => set(event.target.value)}
    />
  ) : (
    <input
      {...common}
      type="text"
      placeholder={
        usual !== undefined
          ? `${usual} (default)`
          : examples.length > 0
            ? `such as ${examples.slice(0, 2).join(" or ")}`
            : undefined
      }
      list={offers.length > 0 ? list : undefined}
      onChange={(event) => set(event.target.value)}
    />
  );
  const whole = (
    <>
      {field}
      {offers.length > 0 && (
        <datalist id={list}>
          {offers.map((each) => (
            <option key={each} value={each} />
          ))}
        </datalist>
      )}
    </>
  );
  return label === null ? (
    whole
  ) : (
    <Row path={path} schema={schema} label={label}>
      {whole}
    </Row>
  );
}

function Choice({ path, schema, label, of }: Props & { of: readonly string[] }) {
  const { job, change, problems } = useEditing();
  const value = valueAt(job, path);
  const usual = schema["default"];
  const options = value === undefined || of.includes(String(value)) ? of : [...of, String(value)];
  return (
    <Row path={path} schema={schema} label={label}>
      <select
        {...described(path, schema, problems.has(named(path)))}
        value={value === undefined ? "" : String(value)}
        onChange={(event) => change(path, event.target.value || undefined)}
      >
        <option value="">{usual == null ? "–" : `${usual} (default)`}</option>
        {options
          .filter((each) => each !== usual || each === value)
          .map((each) => (
            <option key={each} value={each}>
              {each}
            </option>
          ))}
      </select>
    </Row>
  );
}

function Flag({ path, schema, label }: Props) {
  const { job, change, problems } = useEditing();
  const usual = schema["default"] === true;
  const value = valueAt(job, path) ?? usual;
  return (
    <Row path={path} schema={schema} label={label}>
      <input
        {...described(path, schema, problems.has(named(path)))}
        type="checkbox"
        checked={value === true}
        onChange={(event) => change(path, event.target.checked === usual ? undefined : event.target.checked)}
      />
    </Row>
  );
}

function List({ path, schema, label, each }: Props & { each: JsonObject }) {
  const { schema: all, job, change } = useEditing();
  const found = valueAt(job, path);
  const items = Array.isArray(found) ? found : found === undefined || found === null ? [] : [found];
  const plain = all.kind(each).is === "text";
  const put = (next: Json[]) => change(path, next.length > 0 ? next : undefined);
  const focus = (index: number) =>
    requestAnimationFrame(() => document.getElementById(idOf([...path, index]))?.focus());
  const add = (after = items.length - 1) => {
    put([...items.slice(0, after + 1), plain ? "" : {}, ...items.slice(after + 1)]);
    focus(after + 1);
  };
  const drop = (index: number) => put(items.filter((_, n) => n !== index));
  const keys = (event: KeyboardEvent<HTMLElement>, index: number) => {
    if (!plain || (event.target as Element).tagName !== "INPUT") return;
    if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      add(index);
    } else if (event.key === "Backspace" && items[index] === "") {
      event.preventDefault();
      drop(index);
      focus(Math.max(0, index - 1));
    }
  };
  return (
    <Items
      path={path}
      schema={schema}
      label={label}
      flow={plain}
      empty={items.length === 0}
      add={() => add()}
    >
      {items.map((_, index) => {
        const one = [...path, index];
        return (
          <Item
            key={index}
            path={one}
            block={!plain}
            drop={() => drop(index)}
            onKeyDown={(event) => keys(event, index)}
          >
            {plain ? (
              <Value path={one} schema={each} />
            ) : (
              <Field path={one} schema={each} label={`${title(path)} ${index + 1}`} />
            )}
          </Item>
        );
      })}
    </Items>
  );
}

function Mapping({ path, schema, label, each }: Props & { each: JsonObject }) {
  const { schema: all, job, change, known } = useEditing();
  const found = valueAt(job, path);
  const entries =
    found !== null && typeof found === "object" && !Array.isArray(found) ? Object.keys(found) : [];
  const groups = all.kind(each).is === "group";
  const type = known.types.find((one) => one.metadata.name === (valueAt(job, ["spec", "type"]) ?? "command"));
  const add = () => {
    const wanted = title(path) === "roles" ? [...Object.keys(type?.spec.roles ?? {}), "worker"] : [];
    const made = Array.from(
      { length: entries.length + 1 },
      (_, n) => `${title(path) === "env" ? "NAME" : "name"}${n ? `_${n}` : ""}`,
    );
    const key = [...wanted, ...made].find((name) => !entries.includes(name)) as string;
    change([...path, key], groups ? {} : "");
    requestAnimationFrame(() => {
      const input = document.getElementById(`${idOf([...path, key])}-key`) as HTMLInputElement | null;
      input?.focus();
      input?.select();
    });
  };
  return (
    <Items path={path} schema={schema} label={label} empty={entries.length === 0} add={add}>
      {entries.map((key) => {
        const one = [...path, key];
        return (
          <Item key={key} path={one} block={groups} drop={() => change(one, undefined)}>
            {groups ? (
              <Field path={one} schema={each} label={<Key path={one} />} />
            ) : (
              <>
                <Key path={one} />
                <Value path={one} schema={each} />
              </>
            )}
          </Item>
        );
      })}
    </Items>
  );
}

interface ItemsProps extends Props {
  /** In lines, as words are. */
  flow?: boolean;
  empty: boolean;
  add: () => void;
  children: ReactNode;
}

/** What a list or a mapping holds, and a button that adds to it. */
function Items({ path, schema, label, flow = false, empty, add, children }: ItemsProps) {
  return (
    <Row path={path} schema={schema} label={label}>
      <div className={flow ? "field-items flow" : "field-items"}>
        {children}
        <button
          type="button"
          className="tiny"
          id={empty ? idOf(path) : undefined}
          aria-label={`Add to ${named(path)}`}
          onClick={add}
        >
          <Icon name="new" />
          Add
        </button>
      </div>
    </Row>
  );
}

interface ItemProps {
  path: Path;
  block: boolean;
  drop: () => void;
  onKeyDown?: (event: KeyboardEvent<HTMLElement>) => void;
  children: ReactNode;
}

/** One of them, and a button that takes it out. */
function Item({ path, block, drop, onKeyDown, children }: ItemProps) {
  return (
    <div className={block ? "field-item block" : "field-item"} onKeyDown={onKeyDown}>
      {children}
      <button type="button" className="plain tiny" aria-label={`Remove ${named(path)}`} onClick={drop}>
        <Icon name="close" />
      </button>
    </div>
  );
}

function Value({ path, schema }: Props) {
  return (
    <div className="field-item-text">
      <Field path={path} schema={schema} label={null} />
      <Problems path={path} />
    </div>
  );
}

/** The name of an entry, which can be changed. */
function Key({ path }: { path: Path }) {
  const { rename } = useEditing();
  const now = title(path);
  const [typed, setTyped] = useState(now);
  const done = () => {
    if (typed && typed !== now) rename(path, typed);
    else setTyped(now);
  };
  return (
    <input
      type="text"
      className="field-key"
      id={`${idOf(path)}-key`}
      aria-label={`Name of ${named(path)}`}
      value={typed}
      spellCheck={false}
      onChange={(event) => setTyped(event.target.value)}
      onBlur={done}
      onKeyDown={(event) => event.key === "Enter" && (event.preventDefault(), done())}
    />
  );
}

function Group({ path, schema, label, kind }: Props & { kind: Kind & { is: "group" } }) {
  const first = FIRST[kind.called];
  const asked = kind.fields.filter(([name]) => !NOT_ASKED.has(name));
  const shown = first ? first.flatMap((name) => asked.filter(([each]) => each === name)) : asked;
  const rest = asked.filter((each) => !shown.includes(each));
  return (
    <fieldset className="group" data-field={named(path)}>
      <legend>{label ?? title(path)}</legend>
      {words(schema) && (
        <p className="field-words">
          <Words of={schema} />
        </p>
      )}
      <Problems path={path} />
      {shown.map(([name, each]) => (
        <Field key={name} path={[...path, name]} schema={each} />
      ))}
      {rest.length > 0 && <More path={path} fields={rest} />}
    </fieldset>
  );
}

/** Fields that few need: folded away until one has a value or a problem. */
export function More({ path, fields }: { path: Path; fields: [string, JsonObject][] }) {
  const { job, problems } = useEditing();
  const used = fields.some(
    ([name]) => valueAt(job, [...path, name]) !== undefined || troubled(problems, [...path, name]),
  );
  const [open, setOpen] = useState(used);
  return (
    <details className="more" open={open || used} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>More: {fields.map(([name]) => name).join(", ")}</summary>
      {(open || used) &&
        fields.map(([name, each]) => <Field key={name} path={[...path, name]} schema={each} />)}
    </details>
  );
}
