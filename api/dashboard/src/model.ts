// The documents of docs/api.md that the page reads. Written by
// `python -m tools.write_model` from gpudiag/model.

// A missing reading is null; `missing` has its reason, `missing_detail` the source's words.
export type Missing = Record<string, string>;

export interface WithMissing {
  missing?: Missing;
  missing_detail?: Missing;
}

// `gpudiag.live/1`: every GPU at one tick, the verdict of the instant checks, and how the sampler is.
export interface Live extends WithMissing {
  schema: string;
  sequence: number;
  at: string;
  host: string;
  simulated: string | null;
  version: string;
  driver_version: string | null;
  cuda_driver_version: string | null;
  verdict: string | null;
  headline: string;
  sampler: SamplerStatus;
  sources: SourceStatus[];
  devices: LiveDevice[];
  findings_version: number;
  finding_count: number;
  findings: Finding[];
  active_runs: ActiveRun[];
  host_activity: HostActivity | null;
  verdict_since: string | null;
}

// The sampler's state since when, and how old the numbers may be.
export interface SamplerStatus extends WithMissing {
  state: SamplerState;
  since: string;
  interval_seconds: number;
  restarts: number;
  stale_after_seconds: number;
  reason: string | null;
  last_good_at: string | null;
  wedged_call: string | null;
  tick_seconds: number | null;
}

// How the sampler is doing.
export type SamplerState = "starting" | "ok" | "slow" | "paused" | "wedged" | "no_gpu" | "failed" | "off";

// How one source (nvml, gputil, torch, host) answered, and in how many seconds.
export interface SourceStatus extends WithMissing {
  name: string;
  state: SourceState;
  reason: string | null;
  seconds: number | null;
  device_count: number | null;
}

// How a source answered.
export type SourceState = "ok" | "no_devices" | "library_absent" | "driver_not_loaded" | "version_mismatch" | "no_permission" | "timed_out" | "failed" | "not_asked";

// One GPU at one tick: the readings of a first screen, its health, and who uses it.
export interface LiveDevice extends WithMissing {
  uuid: string | null;
  bus_id: string | null;
  nvml_index: number | null;
  cuda_ordinal: number | null;
  responding: boolean | null;
  health: string;
  finding_codes: string[];
  last_good_at: string | null;
  name: string | null;
  utilization_percent: number | null;
  memory_utilization_percent: number | null;
  memory_total_bytes: number | null;
  memory_used_bytes: number | null;
  memory_free_bytes: number | null;
  temperature_celsius: number | null;
  memory_temperature_celsius: number | null;
  temperature_slowdown_celsius: number | null;
  power_draw_watts: number | null;
  power_limit_enforced_watts: number | null;
  sm_clock_mhz: number | null;
  sm_clock_max_mhz: number | null;
  memory_clock_mhz: number | null;
  pstate: number | null;
  clocks_event_reasons: string[] | null;
  throttled: boolean | null;
  fan_speed_percent: number | null;
  ecc_uncorrected_volatile: number | null;
  mig_mode: string | null;
  recovery_action: string | null;
  mig_instances: MigInstance[] | null;
  processes: GpuProcess[] | null;
  last_good: LastGood | null;
  signs_of_use: string[];
  not_free_because: string[];
  pods: PodUse[];
  slurm_jobs: JobUse[];
  sm_activity_percent: number | null;
  tensor_activity_percent: number | null;
  pcie_transmitted_bytes_per_second: number | null;
  pcie_received_bytes_per_second: number | null;
  nvlink_transmitted_bytes_per_second: number | null;
  nvlink_received_bytes_per_second: number | null;
}

// One MIG compute instance of a GPU, with a UUID and memory of its own.
export interface MigInstance extends WithMissing {
  uuid: string | null;
  name: string | null;
  gpu_instance_id: number | null;
  compute_instance_id: number | null;
  memory_total_bytes: number | null;
  memory_used_bytes: number | null;
  memory_free_bytes: number | null;
  graphics_activity_percent: number | null;
  sm_activity_percent: number | null;
  sm_occupancy_percent: number | null;
  tensor_activity_percent: number | null;
  dram_activity_percent: number | null;
  fp64_activity_percent: number | null;
  fp32_activity_percent: number | null;
  fp16_activity_percent: number | null;
  pcie_transmitted_bytes_per_second: number | null;
  pcie_received_bytes_per_second: number | null;
  free: boolean | null;
}

// A process that holds memory on a GPU, as NVML names it and /proc describes it.
export interface GpuProcess extends WithMissing {
  pid: number;
  kind: string;
  memory_used_bytes: number | null;
  visible: boolean;
  user: string | null;
  command: string | null;
  container_id: string | null;
  started_at: string | null;
  gpu_instance_id: number | null;
  compute_instance_id: number | null;
  state: string | null;
  slurm_job_id: number | null;
  parents: ParentProcess[] | null;
  sm_utilization_percent: number | null;
  processor_percent: number | null;
  resident_bytes: number | null;
}

// A process that started one that uses a GPU, or that started its parent.
export interface ParentProcess {
  pid: number;
  command: string;
}

// The last good numbers of a GPU that does not answer now.
export interface LastGood extends WithMissing {
  at: string;
  utilization_percent: number | null;
  memory_used_bytes: number | null;
  temperature_celsius: number | null;
  power_draw_watts: number | null;
  sm_clock_mhz: number | null;
}

// One container that has a GPU, or the MIG instance that is named.
export interface PodUse {
  namespace: string;
  pod: string;
  container: string;
  gpu_instance_id: number | null;
  replica: string | null;
}

// One Slurm job with processes on a GPU.
export interface JobUse extends WithMissing {
  slurm_job_id: number;
  user: string | null;
}

// One fault, or one fact worth knowing: what, where, how it is known, and what to do.
export interface Finding {
  code: string;
  outcome: Outcome;
  severity: Severity;
  category: Category;
  owner: Owner;
  subject: Subject;
  message: string;
  evidence: Evidence[];
  remedy: string;
  blocks_jobs: boolean;
}

// How a check, a report or a run ended.
export type Outcome = "pass" | "warn" | "fail" | "skip" | "error";

// What a finding asks for, in DCGM's words (dcgm_errors.h, dcgmErrorSeverity_t).
export type Severity = "none" | "monitor" | "isolate" | "unknown" | "triage" | "config" | "reset";

// Which part a finding is about, in DCGM's words (dcgm_errors.h, dcgmErrorCategory_t).
export type Category = "none" | "perf_threshold" | "perf_violation" | "sw_config" | "sw_library" | "sw_xid" | "sw_cuda" | "sw_other" | "hw_thermal" | "hw_memory" | "hw_nvlink" | "hw_nvswitch" | "hw_pcie" | "hw_power" | "hw_other" | "internal";

// Who must act.
export type Owner = "hardware" | "host" | "software" | "job";

// One GPU, by its identity; `nvml_index` is for people.
export interface DeviceSubject extends WithMissing {
  uuid: string | null;
  bus_id: string | null;
  nvml_index: number | null;
  host: string;
  kind: "device";
}

// One rank of a run and the host it ran on.
export interface RankSubject {
  rank: number;
  host: string;
  kind: "rank";
}

// Several ranks of a run, ascending, and their host; the host that looked where they are on several.
export interface RanksSubject {
  ranks: number[];
  host: string;
  kind: "ranks";
}

// A link between two ends, such as `rank 1` and `rank 2`, or a bus id and its switch.
export interface LinkSubject {
  ends: [string, string];
  host: string;
  kind: "link";
}

// One machine.
export interface HostSubject {
  host: string;
  kind: "host";
}

// A source of readings on one machine: nvml, gputil, torch or host.
export interface SourceSubject {
  source: string;
  host: string;
  kind: "source";
}

// A place in a file; `line` counts from 1.
export interface FileSubject {
  path: string;
  line: number;
  kind: "file";
}

export type Subject = DeviceSubject | RankSubject | RanksSubject | LinkSubject | HostSubject | SourceSubject | FileSubject;

// One fact: its value with the unit, the limit it was held against, and where it was read.
export interface Evidence {
  name: string;
  value: Scalar;
  unit: string | null;
  limit: string | number | boolean | null;
  source: string;
}

export type Scalar = string | number | boolean;

// A run that waits or goes on, in a line.
export interface ActiveRun {
  id: string;
  kind: string;
  state: string;
  started_at: string | null;
  progress: number | null;
}

// Load of one host; rates and shares are means between the last two looks, which the first look has not.
export interface HostActivity extends WithMissing {
  processors_busy_percent: number | null;
  processors_waiting_percent: number | null;
  load_average: number | null;
  memory_total_bytes: number | null;
  memory_available_bytes: number | null;
  swap_used_bytes: number | null;
  network_received_bytes_per_second: number | null;
  network_transmitted_bytes_per_second: number | null;
  disk_read_bytes_per_second: number | null;
  disk_written_bytes_per_second: number | null;
  uptime_seconds: number | null;
}

// `gpudiag.findings/1`: the verdict of the instant checks and every finding, worst first.
export interface Findings {
  schema: string;
  version: number;
  verdict: string;
  at: string;
  findings: Finding[];
  joined: JoinedFinding[];
}

// One fault as people read it, of one GPU or of all that share it.
export interface JoinedFinding {
  finding: Finding;
  subject: string;
  message: string;
  facts: string[];
  remedy: string;
  count: number;
}

// `gpudiag.session/1`: what this caller may do.
export interface Session {
  schema: string;
  role: string | null;
  actions_allowed: boolean;
  token_required: boolean;
}

// `gpudiag.series/1`: readings over a range of time.
export interface Series {
  schema: string;
  first_at: number;
  from_at: number;
  to_at: number;
  step_seconds: number;
  resolution_seconds: number;
  times: number[];
  devices: DeviceSeries[];
  events: TimelineEntry[];
}

// The series of one GPU; null where there is no reading.
export interface DeviceSeries {
  uuid: string;
  nvml_index: number | null;
  name: string | null;
  series: Record<string, (number | null)[]>;
}

// One thing that happened; `severity` is pass, warn or fail.
export interface TimelineEntry {
  number: number;
  at: string;
  kind: TimelineKind;
  message: string;
  severity: string;
  uuid: string | null;
  nvml_index: number | null;
  xid_code: number | null;
  reasons: string[];
}

// What an entry reports.
export type TimelineKind = "xid" | "gpu_lost" | "gpu_silent" | "gpu_back" | "throttle_start" | "throttle_end" | "driver" | "sampler" | "run" | "job";

// `gpudiag.processes/1`: who uses which GPU.
export interface Processes {
  schema: string;
  at: string;
  processes: ProcessUse[];
  users: UserUse[];
  times: number[];
}

// One process on one GPU; an idle holder has held over 1 GiB of a GPU at 0 % for 15 minutes.
export interface ProcessUse extends WithMissing {
  uuid: string | null;
  nvml_index: number | null;
  pid: number;
  kind: string;
  memory_used_bytes: number | null;
  visible: boolean;
  user: string | null;
  command: string | null;
  container_id: string | null;
  started_at: string | null;
  gpu_instance_id: number | null;
  compute_instance_id: number | null;
  state: string | null;
  slurm_job_id: number | null;
  parents: ParentProcess[] | null;
  sm_utilization_percent: number | null;
  processor_percent: number | null;
  resident_bytes: number | null;
  idle_since: string | null;
  idle_holder: boolean;
  recent_memory_bytes: (number | null)[];
  recent_sm_percent: (number | null)[];
}

// What one user holds of the machine's GPUs.
export interface UserUse {
  user: string;
  memory_used_bytes: number;
  gpu_count: number;
  process_count: number;
}

// `gpudiag.topology/1`: a machine's GPUs, what lies between each two, and between GPUs and network cards.
export interface Topology extends WithMissing {
  schema: string;
  host: string;
  devices: TopologyDevice[];
  links: TopologyLink[];
  simulated: string | null;
  nics: TopologyNic[];
  nic_paths: NicPath[];
  switches: TopologySwitch[];
  numa_nodes: TopologyNode[] | null;
  nccl: NcclLevels | null;
  verdict: Outcome | null;
  findings: Finding[];
}

// One GPU's place in the machine.
export interface TopologyDevice extends WithMissing {
  uuid: string | null;
  bus_id: string | null;
  nvml_index: number | null;
  name: string | null;
  numa_node: number | null;
  pcie_generation: number | null;
  pcie_width: number | null;
  pcie_generation_slot_max: number | null;
  pcie_width_slot_max: number | null;
  nvlinks_active: number | null;
  nvlinks_total: number | null;
  processors: string | null;
  root: string | null;
  bridges: string[] | null;
  nvlink_bytes_per_second: number | null;
  nics: string[];
}

// What lies between two GPUs, in the words of `PeerAccess`, in one direction.
export interface TopologyLink extends WithMissing {
  from_uuid: string | null;
  to_uuid: string | null;
  path: string | null;
  read: string | null;
  nvlink: string | null;
  nvlink_count: number | null;
  measured: MeasuredLink | null;
  label: string | null;
  bytes_per_second: number | null;
  nccl_path: string | null;
  nccl_transport: string | null;
}

// What was measured between two GPUs, the last time: the stored metric, which names the method.
export interface MeasuredLink {
  metric: string;
  value: number;
  unit: string;
  at: string;
}

// One network card: an RDMA device, or a network interface without RDMA.
export interface TopologyNic extends WithMissing {
  name: string;
  bus_id: string;
  number: number | null;
  interfaces: string[];
  numa_node: number | null;
  processors: string | null;
  root: string;
  bridges: string[];
  link_layer: string | null;
  active: boolean | null;
  rate_gbit_per_second: number | null;
  pcie_generation: number | null;
  pcie_width: number | null;
  virtual_function: boolean;
}

// What lies between a GPU and a network card; `path` and `label` as in `TopologyLink`.
export interface NicPath extends WithMissing {
  uuid: string | null;
  nic: string;
  path: string | null;
  label: string | null;
  nccl_path: string | null;
  gpu_direct: boolean | null;
  bytes_per_second: number | null;
}

// One NVSwitch on the PCI bus.
export interface TopologySwitch extends WithMissing {
  bus_id: string;
  numa_node: number | null;
  root: string;
  bridges: string[];
}

// One NUMA node: its processors as a kernel list, and the bus ids of the GPUs and network cards in it.
export interface TopologyNode {
  node: number;
  processors: string;
  gpus: string[];
  nics: string[];
}

// The farthest path over which NCCL uses each way here, and the setting for it.
export interface NcclLevels extends WithMissing {
  p2p: string;
  p2p_setting: string | null;
  gpu_direct: string;
  gpu_direct_setting: string | null;
  gpu_direct_ready: boolean | null;
  version: string;
}

// `gpudiag.run/1`: one run that the service started, or the ended job of a `gpudiag run` (kind `run`).
export interface Run {
  schema: string;
  id: string;
  kind: string;
  state: RunState;
  plan: Record<string, PlanValue>;
  gpus: string[];
  lock: string[];
  command: string;
  deadline_seconds: number | null;
  requested_at: string;
  started_at: string | null;
  ended_at: string | null;
  outcome: string | null;
  exit_status: number | null;
  reason: string | null;
  stage: string | null;
  done: number;
  planned: number;
  progress: number | null;
  has_report: boolean;
  report_formats: string[];
  queue_position: number | null;
  log_bytes: number;
  interpreter: string | null;
}

// Where a run is.
export type RunState = "queued" | "running" | "cancelling" | "succeeded" | "failed" | "cancelled" | "lost";

export type PlanValue = string | number | boolean | string[] | null;

// `gpudiag.run_events/1`: what a run has reported.
export interface RunEvents {
  schema: string;
  run: string;
  events: NumberedEvent[];
}

// One event of a run, counted from 1.
export interface NumberedEvent {
  number: number;
  event: RunEvent;
}

// `gpudiag.event/1`: one thing that happened in a run, `at_seconds` after it started.
export interface RunEvent {
  schema: string;
  kind: EventKind;
  at_seconds: number;
  done: number;
  planned: number;
  stage: string | null;
  result: CollectiveResult | null;
  finding: Finding | null;
  outcome: string | null;
  strategy: StrategyResult | null;
  ranks: RankStanding[];
}

// What an event reports.
export type EventKind = "stage" | "result" | "finding" | "ranks" | "outcome";

// One operation at one size: times over ranks, bandwidths as nccl-tests defines them.
export interface CollectiveResult extends WithMissing {
  op: string;
  reduce: string | null;
  dtype: string;
  size_bytes: number;
  elements: number;
  iterations: number;
  time_p50_seconds: number;
  time_p99_seconds: number;
  time_average_seconds: number;
  algbw_bytes_per_second: number | null;
  busbw_bytes_per_second: number | null;
  verified: boolean | null;
  verified_iterations: number;
  wrong_elements: number | null;
  in_place: boolean;
  unaligned: boolean;
  time_variation: number | null;
  algorithm: string | null;
  isolated_p50_seconds: number | null;
  verify_share: number | null;
}

// One strategy: its verdict, what was verified, what was measured.
export interface StrategyResult extends WithMissing {
  strategy: string;
  kind: string;
  framework: string;
  outcome: Outcome;
  world_size: number;
  workload: string;
  dtype: string;
  optimizer: string;
  reason: string | null;
  hint: string | null;
  launcher: string | null;
  backend: string | null;
  device_kind: string | null;
  parameters: number | null;
  steps: number;
  verified: boolean | null;
  verifications: Verification[];
  samples_per_second: number | null;
  step_p50_seconds: number | null;
  step_p99_seconds: number | null;
  shares: StepShares | null;
  scaling_efficiency: number | null;
  host_memory_bytes: number | null;
  device_memory_bytes: number | null;
  code_needed: string;
  paces: RankPace[];
  ranks: RankReport[];
  incidents: Incident[];
  injected: InjectedFault[];
  findings: Finding[];
  seconds: number;
  lateness: LatenessSeries | null;
}

// One thing that was proved or disproved: what was found, and the limit it was held against.
export interface Verification extends WithMissing {
  name: string;
  passed: boolean | null;
  value: number | null;
  limit: number | null;
}

// Where the time of a step goes; the shares add up to 1.
export interface StepShares {
  data: number;
  forward: number;
  backward: number;
  optimizer: number;
  communication: number;
}

// One rank's step times and peak memory.
export interface RankPace extends WithMissing {
  rank: number;
  step_p50_seconds: number;
  step_p99_seconds: number;
  own_p50_seconds: number;
  host_memory_bytes: number;
  device_memory_bytes: number | null;
}

// What one rank did: the last stage it reached, and how its process ended.
export interface RankReport extends WithMissing {
  rank: number;
  local_rank: number;
  host: string;
  pid: number | null;
  stage: string;
  exit: number | null;
  sequence: number | null;
  stack: string[] | null;
  flight_recorder: string[] | null;
  device_uuid: string | null;
}

// What happened to one rank: when, at which stage, and how it is known. No verdict.
export interface Incident {
  kind: IncidentKind;
  rank: number;
  host: string;
  stage: string;
  at_seconds: number;
  evidence: Evidence[];
}

// What can happen to a rank or a link.
export type IncidentKind = "died" | "stopped" | "silent" | "late" | "mismatched" | "corrupted" | "not_started" | "unreached" | "split" | "cut_off" | "parted" | "narrowed" | "outage" | "lossy" | "misnamed" | "filtered" | "conflicting" | "start_failed" | "raised" | "stalled" | "passed" | "ended" | "throttled" | "skewed" | "paused" | "interrupted";

// A fault that `--inject` asked for, whether it really happened, and when: seconds since the start.
export interface InjectedFault extends WithMissing {
  specification: string;
  fired: boolean;
  at_seconds: number | null;
}

// Which rank was slow when, over the timed iterations of a run, in spans of equal length.
export interface LatenessSeries {
  from_seconds: number;
  span_seconds: number;
  iterations: number;
  limit_seconds: number;
  ranks: RankLateness[];
}

// How late one rank came to the timed collectives: the mean of each span; None where it came to none.
export interface RankLateness {
  rank: number;
  late_seconds: (number | null)[];
}

// Where one rank of a run is, and whether it waits for others.
export interface RankStanding {
  rank: number;
  host: string;
  life: string;
  stage: string;
  operation: string | null;
  iteration: number | null;
  waits: boolean;
  behind: boolean;
  still_seconds: number;
}

// `gpudiag.comparison/1`: what differs between two documents, what matters, and whose it is.
export interface Comparison {
  schema: string;
  outcome: Outcome;
  before: ComparedDocument;
  now: ComparedDocument;
  same_machine: boolean;
  differences: Difference[];
  alike: number;
  not_compared: string[];
}

// One of the two documents.
export interface ComparedDocument extends WithMissing {
  path: string;
  schema: string;
  host: string;
  taken_at: string;
  simulated: string | null;
  verdict: Outcome | null;
  whole: boolean | null;
}

// One fact that is not alike, of one part or of several that differ alike.
export interface Difference {
  whose: Whose;
  where: string;
  name: string;
  before: string;
  now: string;
  outcome: Outcome;
  why: string;
}

// The part that a difference belongs to.
export type Whose = "gpu" | "link" | "network" | "driver" | "container" | "host" | "software" | "job" | "document";

// `gpudiag.hub/1`: all machines of a hub, worst first.
export interface HubDocument {
  schema: string;
  sequence: number;
  at: string;
  host: string;
  version: string;
  counts: HubCounts;
  notes: string[];
  machines: HubMachine[];
}

// How many machines have which verdict, and their GPUs.
export interface HubCounts {
  machines: number;
  passed: number;
  warned: number;
  failed: number;
  unknown: number;
  silent: number;
  gpus: number;
  healthy_gpus: number;
}

// One machine: how it answers since when, and its last report.
export interface HubMachine {
  name: string;
  page: string;
  state: AnswerState;
  since: string;
  reason: string | null;
  verdict: string | null;
  verdict_since: string | null;
  answered_at: string | null;
  clock_offset_seconds: number | null;
  notes: string[];
  report: MachineReport | null;
}

// How a machine's service answers.
export type AnswerState = "asked" | "answers" | "silent" | "refused" | "unreadable";

// What a machine's service reported last; `lacks` names what its version does not have.
export interface MachineReport extends WithMissing {
  at: string;
  host: string;
  simulated: string | null;
  version: string;
  driver_version: string | null;
  verdict: string | null;
  headline: string;
  gpus: MachineGpu[];
  users: string[];
  jobs: string[];
  finding_count: number;
  findings: MachineFinding[];
  lacks: string[];
}

// One GPU of a machine, as its service reported it last.
export interface MachineGpu extends WithMissing {
  uuid: string | null;
  nvml_index: number | null;
  name: string | null;
  health: string;
  utilization_percent: number | null;
  memory_used_bytes: number | null;
  memory_total_bytes: number | null;
  temperature_celsius: number | null;
  power_draw_watts: number | null;
  serial: string | null;
}

// One finding of a machine, in a line and its remedy.
export interface MachineFinding {
  code: string;
  outcome: string;
  message: string;
  remedy: string;
  blocks_jobs: boolean;
}

// `gpudiag.hub_events/1`: what happened on all machines, oldest first.
export interface HubEvents {
  schema: string;
  entries: HubEvent[];
}

// One thing that happened to a machine: in its own words, or seen by the hub.
export interface HubEvent {
  number: number;
  at: string;
  machine: string;
  kind: string;
  message: string;
  severity: string;
}

// One rank's process on this machine, from when it was first seen to its end.
export interface RankRecord extends WithMissing {
  rank: number | null;
  pid: number;
  started: string;
  end: RankEnd;
  ended: string | null;
  exit_code: number | null;
  signal: string | null;
  order: number | null;
  attempt: number;
  error: string | null;
  error_place: string | null;
  last_place: string | null;
  raised: string | null;
  last_wait: string | null;
  still_seconds: number | null;
}

// How a rank's process ended.
export type RankEnd = "finished" | "failed" | "killed" | "ended" | "runs";

// A signal that reached gpudiag while the job ran.
export interface SignalSeen {
  name: string;
  at: string;
  passed_on: boolean;
}

// The job's own rhythm: how long one round of its work takes, from when all ranks run and wait.
export interface StepTime {
  seconds: number;
  rounds: number;
  strength: number;
  over_seconds: number;
}
