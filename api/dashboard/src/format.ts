// Numbers as people read them. Sizes are binary (GiB), rates decimal (GB/s = 1e9 bytes per second), as everywhere in gpudiag.

const GIB = 1024 ** 3;
const SIZE_UNITS: [string, number][] = [["TiB", 1024 ** 4], ["GiB", GIB], ["MiB", 1024 ** 2], ["KiB", 1024]];

export const DASH = "–";

export const gib = (bytes: number): string => (bytes / GIB).toFixed(1);

export function size(bytes: number): string {
  for (const [unit, factor] of SIZE_UNITS) {
    if (bytes >= factor) {
      const value = bytes / factor;
      return `${value === Math.round(value) || value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${unit}`;
    }
  }
  return `${bytes} B`;
}

// Three significant figures, no exponent.
export function significant(value: number): string {
  if (value === 0) return "0";
  const magnitude = Math.floor(Math.log10(Math.abs(value)));
  return value.toFixed(Math.min(8, Math.max(0, 2 - magnitude)));
}

const LEAST_GB = 1e-3; // below it the digits are latency, and `gpudiag nccl-test` shows none either
export const rate = (bytesPerSecond: number): string => {
  const gigabytes = bytesPerSecond / 1e9;
  return gigabytes > 0 && gigabytes < LEAST_GB ? `<${LEAST_GB} GB/s` : `${significant(gigabytes)} GB/s`;
};

export function duration(seconds: number): string {
  if (seconds < 0) return duration(0);
  for (const [unit, factor] of [["d", 86400], ["h", 3600], ["min", 60]] as const) {
    if (seconds >= 2 * factor) return `${Math.round(seconds / factor)} ${unit}`;
  }
  if (seconds >= 1 || seconds === 0) return `${Math.round(seconds)} s`;
  return seconds >= 1e-3 ? `${significant(seconds * 1e3)} ms` : `${significant(seconds * 1e6)} µs`;
}

// gpudiag's sentences are for terminals too, where a degree is a plain C.
export const degrees = (text: string): string => text.replace(/(\d) C\b/g, "$1 °C");

// As evidence: 2.1 s against a limit of 2 s is not 2 s.
export const preciseDuration = (seconds: number): string => (seconds >= 1 && seconds < 120 ? `${significant(seconds)} s` : duration(seconds));

export const plural = (count: number, noun: string): string => `${count} ${noun}${count === 1 ? "" : "s"}`;

const two = (value: number): string => String(value).padStart(2, "0");

export function clock(unixSeconds: number): string {
  const date = new Date(unixSeconds * 1000);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function dateClock(time: number | string): string {
  const date = new Date(typeof time === "string" ? time : time * 1000);
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${clock(date.getTime() / 1000)}`;
}

// Times on the page are the browser's; gpudiag's own sentences name UTC.
export const timeZone = (): string => Intl.DateTimeFormat().resolvedOptions().timeZone;

export const seconds = (iso: string): number => Date.parse(iso) / 1000;

// "NVIDIA H100 80GB HBM3" is "H100 80GB" to whoever scans a table, as in `gpudiag list`.
export const shortName = (name: string): string =>
  name.replace(/^NVIDIA /, "").replace(/^GeForce /, "").replace(/ HBM\w+$/, "");

export const words = (name: string): string => name.replaceAll("_", " ");

const REASONS: Record<string, string> = {
  not_supported: "not supported",
  function_not_found: "driver too old",
  no_permission: "no permission",
  device_lost: "GPU lost",
  reset_required: "GPU must be reset",
  source_absent: "no source",
  timed_out: "no answer in time",
  attaching: "the driver starts it",
  not_asked: "not asked",
  in_use: "others use it",
  error: "error",
};

export const reasonText = (reason: string | undefined): string => (reason ? REASONS[reason] ?? words(reason) : "unknown");

// The program and its script, without interpreter and arguments: `train.py` of `python train.py --config x`.
export function program(command: string): string {
  const parts = command.split(" ").filter(Boolean);
  const base = (path: string): string => path.slice(path.lastIndexOf("/") + 1);
  const first = base(parts[0] ?? "");
  const script = parts.slice(1).find((part) => !part.startsWith("-"));
  return /^(python[\d.]*|bash|sh|torchrun)$/.test(first) && script ? base(script) : first;
}
