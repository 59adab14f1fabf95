// Axes that fit what is drawn, with round numbers on them.

const STEPS = [1, 2, 2.5, 5, 10];

function niceStep(raw: number): number {
  const power = 10 ** Math.floor(Math.log10(raw));
  return (STEPS.find((step) => step * power >= raw * 0.999) ?? 10) * power;
}

// The smallest round number that is not below the value.
export const niceTop = (value: number): number => (value > 0 ? niceStep(value) : 1);

export interface Scale {
  low: number;
  high: number;
  ticks: number[];
}

const LEAST: Record<string, number> = { "%": 10, W: 30, "°C": 6, GiB: 1, MHz: 60, "GB/s": 1 };

// Less than this is no change worth a slope, or a colour.
export const leastOf = (unit: string): number => LEAST[unit] ?? 1;

// From a round number below the least to one above the most; where the least is near 0, from 0.
export function fit(values: (number | null)[][], unit: string): Scale {
  const least = leastOf(unit);
  let low = Infinity;
  let high = -Infinity;
  for (const list of values) {
    for (const value of list) {
      if (value === null) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return { low: 0, high: least, ticks: [0, least] };
  const spare = Math.max(0, least - (high - low)) / 2;
  [low, high] = [low >= 0 && (low < high / 3 || low < spare) ? 0 : low - spare, unit === "%" && high <= 100 ? Math.min(100, high + spare) : high + spare];
  const step = niceStep((high - low) / 3);
  low = Math.floor(low / step) * step;
  high = Math.max(Math.ceil(high / step) * step, low + step);
  const count = Math.round((high - low) / step);
  return { low, high, ticks: Array.from({ length: count + 1 }, (_, at) => low + at * step) };
}
