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
}

export interface Runs {
  runs: Run[];
  kinds: RunKind[];
  actions_allowed: boolean;
}
