// What can be run, and what is asked for it: `GET /api/v1/runs` and the JSON Schema of a kind's plan, which is no document of
// gpudiag/model.

import type { Run } from "./model";

// The part of JSON Schema that plans are written in.
export interface PlanField {
  type?: string | string[];
  title?: string;
  description?: string;
  enum?: (string | number)[];
  const?: unknown;
  default?: unknown;
  minimum?: number;
  maximum?: number;
  maxLength?: number;
  maxItems?: number;
  items?: PlanField;
  anyOf?: PlanField[];
  oneOf?: PlanField[];
}

export interface PlanSchema extends PlanField {
  properties?: Record<string, PlanField>;
}

export interface RunKind {
  kind: string;
  title: string;
  uses_gpus: boolean;
  plan_schema: PlanSchema;
  presets?: Preset[]; // an older service has none
}

export type Plan = Record<string, unknown>;

// A plan that people want often.
export interface Preset {
  name: string;
  means: string;
  plan: Plan;
}

// That others may be disturbed was allowed for one run: it is asked again for the next.
export const unforced = (plan: Plan): Plan => ("force" in plan ? { ...plan, force: false } : plan);

// What of a plan is not as by default: what a form shows as filled in.
export const chosenOf = (plan: Plan, schema: PlanSchema): Plan =>
  Object.fromEntries(
    Object.entries(plan).filter(([name, value]) => {
      const field = schema.properties?.[name];
      return field && value !== null && JSON.stringify(value) !== JSON.stringify(field.default);
    }),
  );

export const samePlan = (a: Plan, b: Plan): boolean => {
  const text = (plan: Plan): string => JSON.stringify(Object.entries(plan).sort(([one], [other]) => (one < other ? -1 : 1)));
  return text(a) === text(b);
};

export interface Runs {
  runs: Run[];
  kinds: RunKind[];
  interpreters?: string[];
  actions_allowed: boolean;
}
