// The form of a plan, made from its JSON Schema: the service decides what can be asked for, and its bounds.

import { size, words } from "../format";
import type { Plan, PlanField, PlanSchema } from "../plan";

interface FieldProps {
  name: string;
  field: PlanField;
  value: unknown;
  change: (value: unknown) => void;
}

// What the form leaves out: nothing that a person would set by hand here.
const HIDDEN = new Set(["schema", "force", "kind"]);

export function PlanForm({ schema, plan, change }: { schema: PlanSchema; plan: Plan; change: (plan: Plan) => void }) {
  const fields = Object.entries(schema.properties ?? {}).filter(([name]) => !HIDDEN.has(name));
  const set = (name: string, value: unknown): void => {
    const { [name]: _, ...rest } = plan;
    change(value === undefined ? rest : { ...rest, [name]: value });
  };
  return (
    <div class="fields">
      {fields.map(([name, field]) => <Field key={name} name={name} field={plain(field)} value={plan[name]} change={(value) => set(name, value)} />)}
    </div>
  );
}

// "This, or null for gpudiag to decide" is an optional field.
function plain(field: PlanField): PlanField {
  const choices = (field.anyOf ?? field.oneOf)?.filter((one) => one.type !== "null");
  return choices?.[0] ? { ...field, ...choices[0] } : field;
}

const typeOf = (field: PlanField): string => (Array.isArray(field.type) ? field.type.find((type) => type !== "null") : field.type) ?? "string";

function Field({ name, field, value, change }: FieldProps) {
  const label = words(name);
  switch (typeOf(field)) {
    case "boolean":
      return <label class="check"><input type="checkbox" checked={Boolean(value ?? field.default)} onChange={(event) => change(event.currentTarget.checked)} /> {label}</label>;
    case "array":
      return field.items?.enum ? <Choices {...{ name, field, value, change }} /> : <Words {...{ name, field, value, change }} />;
    case "integer":
    case "number":
      return <NumberField {...{ name, field, value, change }} />;
    default:
      return field.enum ? <OneOf {...{ name, field, value, change }} /> : <Text {...{ name, field, value, change }} />;
  }
}

function NumberField({ name, field, value, change }: FieldProps) {
  const bytes = name.endsWith("_bytes");
  const standard = field.default == null ? "gpudiag decides" : bytes ? size(field.default as number) : String(field.default);
  return (
    <label>
      {words(name)}
      <input
        type="number"
        step={typeOf(field) === "integer" ? 1 : "any"}
        {...(field.minimum === undefined ? {} : { min: field.minimum })}
        {...(field.maximum === undefined ? {} : { max: field.maximum })}
        placeholder={standard}
        value={value === undefined ? "" : String(value)}
        onInput={(event) => change(event.currentTarget.value === "" ? undefined : Number(event.currentTarget.value))}
      />
      {bytes && typeof value === "number" && <small>{size(value)}</small>}
    </label>
  );
}

function OneOf({ name, field, value, change }: FieldProps) {
  return (
    <label>
      {words(name)}
      <select value={String(value ?? field.default ?? "")} onChange={(event) => change(event.currentTarget.value)}>
        {field.enum?.map((option) => <option key={option} value={option}>{option}</option>)}
      </select>
    </label>
  );
}

function Choices({ name, field, value, change }: FieldProps) {
  const chosen = (value ?? field.default ?? []) as (string | number)[];
  const toggle = (option: string | number): void => {
    const next = chosen.includes(option) ? chosen.filter((one) => one !== option) : [...chosen, option];
    change(next.length ? next : undefined);
  };
  return (
    <fieldset>
      <legend>{words(name)}</legend>
      {field.items?.enum?.map((option) => (
        <label class="check" key={option}><input type="checkbox" checked={chosen.includes(option)} onChange={() => toggle(option)} /> {option}</label>
      ))}
    </fieldset>
  );
}

function Words({ name, field, value, change }: FieldProps) {
  const parse = (text: string): unknown => {
    const parts = text.split(",").map((part) => part.trim()).filter(Boolean);
    return parts.length ? parts : undefined;
  };
  const standard = Array.isArray(field.default) && field.default.length ? field.default.join(", ") : "none";
  return (
    <label>
      {words(name)}
      <input type="text" placeholder={standard} value={Array.isArray(value) ? value.join(",") : ""} onChange={(event) => change(parse(event.currentTarget.value))} />
    </label>
  );
}

function Text({ name, field, value, change }: FieldProps) {
  return (
    <label>
      {words(name)}
      <input
        type="text"
        {...(field.maxLength === undefined ? {} : { maxLength: field.maxLength })}
        placeholder={field.default == null ? "gpudiag decides" : String(field.default)}
        value={String(value ?? "")}
        onInput={(event) => change(event.currentTarget.value || undefined)}
      />
    </label>
  );
}
