// The words for NVML's clocks event reasons. Written by `python -m tools.write_vocabulary` from
// gpudiag/reference/vocabulary.py, where they are explained.

export interface EventReason {
  word: string;
  means: string;
  short: string; // for a narrow column
}

// Bit by bit, as in `clocks_event_mask`.
export const EVENT_REASONS: readonly EventReason[] = [
  { word: "gpu_idle", means: "idle", short: "idle" },
  { word: "applications_clocks_setting", means: "setting", short: "clocks set" },
  { word: "sw_power_cap", means: "power", short: "power cap" },
  { word: "hw_slowdown", means: "fault", short: "slowdown" },
  { word: "sync_boost", means: "peers", short: "sync boost" },
  { word: "sw_thermal_slowdown", means: "fault", short: "heat" },
  { word: "hw_thermal_slowdown", means: "fault", short: "heat" },
  { word: "hw_power_brake_slowdown", means: "fault", short: "power brake" },
  { word: "display_clocks_setting", means: "setting", short: "display clocks" },
  { word: "board_limit", means: "limit", short: "board limit" },
  { word: "reliability", means: "limit", short: "reliability" },
];
