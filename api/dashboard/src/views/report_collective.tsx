// nccl-test: the curve of bandwidth against size, every result with its verification, and what each rank did.

import { type Curve, CurveChart, type CurvePoint } from "../charts/curve";
import { LateRanks } from "../charts/late_ranks";
import { DASH, dateClock, duration, rate, size } from "../format";
import { useLoaded } from "../load";
import type { CollectiveResult, LatenessSeries, RankReport, Run } from "../model";
import { Reading } from "../parts/reading";
import { Status } from "../parts/status";
import { Table } from "../parts/table";

export interface CollectiveDocument {
  backend: string;
  world_size: number;
  device_kind: string;
  results: CollectiveResult[];
  ranks: RankReport[];
  lateness?: LatenessSeries | null;
}
interface Baselines {
  baselines: { metric: string; device_uuid: string | null; median: number }[];
}

export function CollectiveReport({ document, run }: { document: CollectiveDocument; run?: Run | undefined }) {
  const { value } = useLoaded<Baselines>("baselines");
  const before = useRunBefore(document, run);
  const baselines = value?.baselines ?? [];
  const curves = curvesOf(document.results).map((curve) => ({ ...curve, ...(before ? before(curve.name) : medianBefore(document, curve.name, baselines)) }));
  return (
    <>
      <p>{document.world_size} {document.backend} ranks on {document.device_kind === "cpu" ? "the CPU" : "GPUs"}. busbw as nccl-tests defines it.</p>
      <div class="beside">
        {curves.length > 0 && <CurveChart title="Bus bandwidth" curves={curves} />}
        {document.lateness && <LateRanks title="Slow ranks" lateness={document.lateness} />}
      </div>
      <Results results={document.results} />
      <Ranks ranks={document.ranks} />
    </>
  );
}

type Behind = Pick<Curve, "baseline" | "before">;

const nameOf = (result: CollectiveResult): string => `${result.op} ${result.dtype}`;

export function pointsOf(results: CollectiveResult[], name: string): CurvePoint[] {
  return results.flatMap((result) =>
    nameOf(result) === name && result.busbw_bytes_per_second !== null ? [{ size_bytes: result.size_bytes, value: result.busbw_bytes_per_second }] : [],
  );
}

export function curvesOf(results: CollectiveResult[]): Pick<Curve, "name" | "points">[] {
  const names = [...new Set(results.map(nameOf))];
  return names.map((name) => ({ name, points: pointsOf(results, name) })).filter((curve) => curve.points.length > 0);
}

// The last run before this one that passed, if it is of the same kind of ranks: its whole curve is what to compare with.
function useRunBefore(document: CollectiveDocument, run: Run | undefined): ((name: string) => Behind) | null {
  const runs = useLoaded<{ runs: Run[] }>(run ? "runs?kind=nccl-test&state=succeeded" : null).value?.runs ?? [];
  const earlier = runs.find((one) => one.outcome === "pass" && one.has_report && one.requested_at < (run?.requested_at ?? ""));
  const { value } = useLoaded<CollectiveDocument>(earlier ? `runs/${encodeURIComponent(earlier.id)}/report` : null);
  const alike = value && (["backend", "world_size", "device_kind"] as const).every((field) => value[field] === document[field]);
  return earlier && alike ? (name) => ({ baseline: pointsOf(value.results, name), before: `the run of ${dateClock(earlier.requested_at)}` }) : null;
}

// What the store remembers of good runs. A metric names its method: op.dtype.size.backend.world_size.busbw.
function medianBefore(document: CollectiveDocument, name: string, baselines: Baselines["baselines"]): Behind {
  const baseline = pointsOf(document.results, name).flatMap(({ size_bytes }) => {
    const metric = [name.replace(" ", "."), size_bytes, document.backend, document.world_size, "busbw"].join(".");
    const found = baselines.find((one) => one.metric === metric && one.device_uuid === null);
    return found ? [{ size_bytes, value: found.median }] : [];
  });
  return { baseline, before: "the median of this machine's good runs" };
}

function Results({ results }: { results: CollectiveResult[] }) {
  if (!results.length) return <p class="empty">No size was finished.</p>;
  const columns = ["Operation", { name: "Size", number: true }, { name: "p50", number: true }, { name: "p99", number: true }, { name: "algbw", number: true }, { name: "busbw", number: true }, { name: "Iterations", number: true }, "Data"];
  return (
    <Table caption="Results" columns={columns} hideCaption>
      {results.map((result) => (
        <tr key={`${result.op} ${result.dtype} ${result.size_bytes}`}>
          <th scope="row">{result.op} {result.dtype}</th>
          <td class="number">{size(result.size_bytes)}</td>
          <td class="number">{duration(result.time_p50_seconds)}</td>
          <td class="number">{duration(result.time_p99_seconds)}</td>
          <td class="number"><Reading of={result} field="algbw_bytes_per_second">{rate(result.algbw_bytes_per_second ?? 0)}</Reading></td>
          <td class="number"><Reading of={result} field="busbw_bytes_per_second">{rate(result.busbw_bytes_per_second ?? 0)}</Reading></td>
          <td class="number">{result.iterations}</td>
          <td>{result.verified === null ? <Status state="skip" text="not verified" /> : result.verified ? <Status state="pass" text="exact" /> : <Status state="fail" text={`${result.wrong_elements ?? DASH} wrong`} />}</td>
        </tr>
      ))}
    </Table>
  );
}

function Ranks({ ranks }: { ranks: RankReport[] }) {
  return (
    <details>
      <summary>{ranks.length} ranks</summary>
      <Table caption="Ranks" columns={[{ name: "Rank", number: true }, "Host", { name: "PID", number: true }, "Last stage", "Ended"]} hideCaption>
        {ranks.map((rank) => (
          <tr key={rank.rank}>
            <th scope="row" class="number">{rank.rank}</th>
            <td>{rank.host}</td>
            <td class="number"><Reading of={rank} field="pid">{rank.pid}</Reading></td>
            <td>{rank.stage}</td>
            <td><Reading of={rank} field="exit">{(rank.exit ?? 0) < 0 ? `signal ${-(rank.exit ?? 0)}` : `status ${rank.exit}`}</Reading></td>
          </tr>
        ))}
      </Table>
    </details>
  );
}
