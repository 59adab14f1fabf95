// How each source answered: its state in words, how many GPUs it sees, how long it took.

import { DASH, duration, words } from "../format";
import type { SourceStatus } from "../model";
import { Prose } from "./prose";
import { Reading } from "./reading";
import { Status } from "./status";
import { Table } from "./table";

const LOOKS: Record<string, string> = { ok: "ok", no_devices: "skip", not_asked: "skip", library_absent: "skip" };

const COUNTS_GPUS = new Set(["nvml", "gputil", "torch"]);

export function SourceTable({ sources }: { sources: SourceStatus[] }) {
  return (
    <Table caption="Sources" columns={["Source", "State", { name: "GPUs", number: true, detail: true }, { name: "Took", number: true, detail: true }, "What it reports"]} hideCaption>
      {sources.map((source) => (
        <tr key={source.name}>
          <th scope="row">{source.name}</th>
          <td><Status state={LOOKS[source.state] ?? "fail"} text={words(source.state)} /></td>
          <td class="number detail">{COUNTS_GPUS.has(source.name) ? <Reading of={source} field="device_count">{source.device_count}</Reading> : <span class="calm">{DASH}</span>}</td>
          <td class="number detail"><Reading of={source} field="seconds">{duration(source.seconds ?? 0)}</Reading></td>
          <td class="wide">{source.reason && <Prose text={source.reason} />}</td>
        </tr>
      ))}
    </Table>
  );
}
