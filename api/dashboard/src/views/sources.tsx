// NVML, GPUtil, torch and the host side by side, each GPU as each of them sees it, and where they disagree.

import { DASH, gib } from "../format";
import { useLoaded, useTicks } from "../load";
import type { SourceStatus, WithMissing } from "../model";
import { Loading, Notice, ProblemNotice } from "../parts/notice";
import { Reading } from "../parts/reading";
import { SourceTable } from "../parts/source_table";
import { Status } from "../parts/status";
import { Table } from "../parts/table";

interface DeviceView extends WithMissing {
  source: string;
  source_index: number;
  uuid: string | null;
  bus_id: string | null;
  name: string | null;
  memory_total_bytes: number | null;
  memory_used_bytes: number | null;
  utilization_percent: number | null;
}
interface Disagreement {
  field: string;
  values: Record<string, string | number | boolean | null>;
  reason: string;
  expected: boolean;
  uuid: string | null;
}
interface Sources {
  sources: SourceStatus[];
  views: DeviceView[];
  disagreements: Disagreement[];
}

export function SourceView() {
  const { value, problem } = useLoaded<Sources>("sources", useTicks(10));
  return (
    <>
      <h1>Sources</h1>
      {problem && <ProblemNotice problem={problem} />}
      {!value && !problem && <Loading what="what NVML, GPUtil and torch say" />}
      {value && (
        <>
          <SourceTable sources={value.sources} />
          <section><h2>Where they disagree</h2><Disagreements disagreements={value.disagreements} /></section>
          <section><h2>Each GPU as each source sees it</h2><Views views={value.views} /></section>
        </>
      )}
    </>
  );
}

function Disagreements({ disagreements }: { disagreements: Disagreement[] }) {
  if (!disagreements.length) return <Notice title="They agree.">On every GPU that more than one of them sees: count, name, memory, driver.</Notice>;
  const names = [...new Set(disagreements.flatMap((one) => Object.keys(one.values)))];
  return (
    <Table caption="Disagreements" columns={["What", "GPU", ...names, "Why"]} hideCaption>
      {disagreements.map((one, position) => (
        <tr key={position}>
          <th scope="row"><Status state={one.expected ? "skip" : "warn"} text={one.field.replaceAll("_", " ")} /></th>
          <td>{one.uuid ? <code title={one.uuid}>{one.uuid.slice(0, 12)}</code> : "machine"}</td>
          {names.map((name) => <td key={name}>{String(one.values[name] ?? DASH)}</td>)}
          <td class="wide">{one.reason}</td>
        </tr>
      ))}
    </Table>
  );
}

function Views({ views }: { views: DeviceView[] }) {
  if (!views.length) return <p class="empty">No source sees a GPU.</p>;
  const ordered = [...views].sort((a, b) => `${a.bus_id ?? a.uuid}`.localeCompare(`${b.bus_id ?? b.uuid}`) || a.source.localeCompare(b.source));
  const columns = ["Bus id", "Source", { name: "Index", number: true }, "Name", { name: "Memory GiB", number: true }, { name: "Used GiB", number: true }, { name: "Busy %", number: true }];
  return (
    <Table caption="GPUs by source" columns={columns} hideCaption>
      {ordered.map((view) => (
        <tr key={`${view.source} ${view.source_index}`}>
          <th scope="row"><Reading of={view} field="bus_id">{view.bus_id?.replace(/^0{4}/, "")}</Reading></th>
          <td>{view.source}</td>
          <td class="number">{view.source_index}</td>
          <td><Reading of={view} field="name">{view.name}</Reading></td>
          <td class="number"><Reading of={view} field="memory_total_bytes">{gib(view.memory_total_bytes ?? 0)}</Reading></td>
          <td class="number"><Reading of={view} field="memory_used_bytes">{gib(view.memory_used_bytes ?? 0)}</Reading></td>
          <td class="number"><Reading of={view} field="utilization_percent">{view.utilization_percent}</Reading></td>
        </tr>
      ))}
    </Table>
  );
}
