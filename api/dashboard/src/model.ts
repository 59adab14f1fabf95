// The documents of docs/api.md, as far as the page reads them. A missing reading is null; `missing` has its reason.

import type { LiveReadings, Readings } from "./readings";

export type Missing = Record<string, string>;
export type Health = "ok" | "warn" | "fail" | "error";
export type Outcome = "pass" | "warn" | "fail" | "error" | "skip";

export interface WithMissing {
  missing?: Missing;
  missing_detail?: Missing;
}

export interface Evidence {
  name: string;
  value: string | number | boolean;
  unit: string | null;
  limit: string | number | boolean | null;
  source: string;
}

export interface Subject extends WithMissing {
  kind: "device" | "rank" | "link" | "host" | "source" | "file";
  host?: string;
  uuid?: string | null;
  bus_id?: string | null;
  nvml_index?: number | null;
  rank?: number;
  ends?: string[];
  source?: string;
  path?: string;
  line?: number;
}

export interface Finding {
  code: string;
  outcome: Outcome;
  severity: string;
  category: string;
  owner: string;
  subject: Subject;
  message: string;
  evidence: Evidence[];
  remedy: string;
}

export interface GpuProcess extends WithMissing {
  pid: number;
  kind: string;
  memory_used_bytes: number | null;
  visible: boolean;
  user: string | null;
  command: string | null;
  container_id: string | null;
  started_at: string | null;
}

export interface MigInstance extends WithMissing {
  uuid: string | null;
  name: string | null;
  gpu_instance_id: number | null;
  compute_instance_id: number | null;
  memory_total_bytes: number | null;
  memory_used_bytes: number | null;
}

export interface LastGood
  extends Pick<Readings, "utilization_percent" | "memory_used_bytes" | "temperature_celsius" | "power_draw_watts" | "sm_clock_mhz"> {
  at: string;
}

export interface LiveDevice extends WithMissing, LiveReadings {
  nvml_index: number | null;
  responding: boolean | null;
  health: Health;
  finding_codes: string[];
  throttled: boolean | null;
  mig_instances: MigInstance[] | null;
  processes: GpuProcess[] | null;
  last_good: LastGood | null;
  signs_of_use: string[];
  [reading: string]: unknown;
}

export interface SourceStatus extends WithMissing {
  name: string;
  state: string;
  reason: string | null;
  seconds: number | null;
  device_count: number | null;
}

export interface SamplerStatus extends WithMissing {
  state: "starting" | "ok" | "slow" | "paused" | "wedged" | "no_gpu" | "failed" | "off";
  reason: string | null;
  since: string;
  last_good_at: string | null;
  interval_seconds: number;
  restarts: number;
  wedged_call: string | null;
  stale_after_seconds: number;
}

export interface ActiveRun {
  id: string;
  kind: string;
  state: string;
  started_at: string | null;
  progress: number | null;
}

export interface Live extends WithMissing {
  schema: string;
  sequence: number;
  at: string;
  host: string;
  simulated: string | null;
  version: string;
  driver_version: string | null;
  cuda_driver_version: string | null;
  verdict: Outcome | null;
  headline: string;
  sampler: SamplerStatus;
  sources: SourceStatus[];
  devices: LiveDevice[];
  findings_version: number;
  finding_count: number;
  findings: Finding[];
  active_runs: ActiveRun[];
}

export interface Session {
  role: "act" | "read" | null;
  actions_allowed: boolean;
  token_required: boolean;
}

export interface TimelineEntry {
  number: number;
  at: string;
  kind: string;
  message: string;
  severity: string;
  uuid: string | null;
  nvml_index: number | null;
  xid_code: number | null;
  reasons: string[];
}

export interface DeviceSeries {
  uuid: string;
  nvml_index: number | null;
  name: string | null;
  series: Record<string, (number | null)[]>;
}

export interface Series {
  step_seconds: number;
  resolution_seconds: number;
  times: number[];
  devices: DeviceSeries[];
  events: TimelineEntry[];
}

export interface Run {
  id: string;
  kind: string;
  state: string;
  plan: Record<string, unknown>;
  gpus: string[];
  requested_at: string;
  started_at: string | null;
  ended_at: string | null;
  outcome: Outcome | null;
  reason: string | null;
  stage: string | null;
  done: number | null;
  planned: number | null;
  progress: number | null;
  command: string;
  has_report: boolean;
  report_formats: string[];
  queue_position: number | null;
}

export interface RunKind {
  kind: string;
  title: string;
  plan_schema: PlanSchema;
}

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

export interface Runs {
  runs: Run[];
  kinds: RunKind[];
  actions_allowed: boolean;
}
