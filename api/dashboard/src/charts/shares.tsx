// What each process of a GPU had of it over the last minutes: areas upon each other, up to the whole GPU.

export interface Share {
  key: string;
  values: (number | null)[]; // 0 to 1; null: it was not there, or it is not known
}

const WIDTH = 240;
const HEIGHT = 56;
const COLOURS = 8;

export function SharesChart({ shares, times, label }: { shares: Share[]; times: number[]; label: string }) {
  const [from, to] = [times[0] ?? 0, times.at(-1) ?? 1];
  const x = (place: number): string => ((((times[place] ?? from) - from) / (to - from || 1)) * WIDTH).toFixed(1);
  const below = times.map(() => 0);
  const areas = shares.map(({ key, values }) => {
    const lower = [...below];
    values.forEach((value, place) => {
      below[place] = Math.min(1, (below[place] ?? 0) + (value ?? 0));
    });
    const y = (share: number): string => (HEIGHT - share * HEIGHT).toFixed(1);
    const upper = below.map((share, place) => `${x(place)} ${y(share)}`);
    const back = lower.map((share, place) => `${x(place)} ${y(share)}`).reverse();
    return { key, path: `M${upper.join("L")}L${back.join("L")}Z` };
  });
  return (
    <svg class="shares-chart" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
      {areas.map(({ key, path }, position) => <path key={key} class={`line-${position % COLOURS}`} d={path} />)}
    </svg>
  );
}
