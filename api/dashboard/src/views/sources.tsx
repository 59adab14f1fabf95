// NVML, GPUtil, torch and the host side by side, each GPU as each of them sees it, and where they disagree.

import { DASH, gib } from "../format";
import { useLoaded, useTicks } from "../load";
import type { Live, LiveDevice, SourceStatus, WithMissing } from "../model";
import { gpuName } from "../parts/gpu";
import { Loading, Notice, ProblemNotice } from "../parts/notice";
import { Reading } from "../parts/reading";
import { SourceTable } from "../parts/source_table";
import { Status } from "../parts/status";
import { Table } from "../parts/table";

interface DeviceView extends WithMissing {
  source: string;
  source_index: number | null;
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

export function SourceView({ live }: { live: Live }) {
  const { value, problem } = useLoaded<Sources>("sources", useTicks(10));
  return (
    <>
      <h1>Sources</h1>
      {problem && <ProblemNotice problem={problem} />}
      {!value && !problem && <Loading what="what NVML, GPUtil and torch report" />}
      {value && (
        <>
          <SourceTable sources={value.sources} />
          <section><h2>Where they disagree</h2><Disagreements {...value} devices={live.devices} /></section>
          <section><h2>Each GPU as each source sees it</h2><Views views={value.views} devices={live.devices} /></section>
        </>
      )}
    </>
  );
}

function nameOf(uuid: string, devices: LiveDevice[]): string {
  const device = devices.find((one) => one.uuid === uuid);
  return device ? gpuName(device) : uuid.slice(0, 12);
}

function Disagreements({ disagreements, views, devices }: Pick<Sources, "disagreements" | "views"> & { devices: LiveDevice[] }) {
  const seeing = [...new Set([...(devices.some((device) => device.responding) ? ["nvml"] : []), ...views.map((view) => view.source)])];
  if (!disagreements.length && seeing.length < 2)
    return <Notice title="Not compared.">{seeing.length ? `Only ${seeing[0]} shows GPUs, so nothing confirms it.` : "No source shows a GPU."}</Notice>;
  if (!disagreements.length) return <Notice title="They agree.">On every GPU that more than one of them sees: count, name, memory, driver.</Notice>;
  const names = [...new Set(disagreements.flatMap((one) => Object.keys(one.values)))];
  return (
    <Table caption="Disagreements" columns={["What", "GPU", ...names, "Why"]} hideCaption>
      {disagreements.map((one, position) => (
        <tr key={position}>
          <th scope="row"><Status state={one.expected ? "skip" : "warn"} text={one.field.replaceAll("_", " ")} /></th>
          <td>{one.uuid ? <span title={one.uuid}>{nameOf(one.uuid, devices)}</span> : "machine"}</td>
          {names.map((name) => <td key={name}>{String(one.values[name] ?? DASH)}</td>)}
          <td class="wide">{one.reason}</td>
        </tr>
      ))}
    </Table>
  );
}

// What NVML reads is the live picture; the other sources' views are laid beside it.
function nvmlView(device: LiveDevice): DeviceView {
  const { uuid, bus_id, name, memory_total_bytes, memory_used_bytes, utilization_percent, missing } = device;
  return { source: "nvml", source_index: device.nvml_index, uuid, bus_id, name, memory_total_bytes, memory_used_bytes, utilization_percent, missing: missing ?? {} };
}

// The views of one GPU together, by UUID or place on the bus, in NVML's order; then those that fit no GPU of NVML's.
function grouped(views: DeviceView[], devices: LiveDevice[]): { name: string; views: DeviceView[] }[] {
  const fits = (view: DeviceView, device: LiveDevice): boolean =>
    (view.uuid !== null && view.uuid === device.uuid) || (view.bus_id !== null && view.bus_id === device.bus_id);
  const known = devices.map((device) => ({ name: gpuName(device), views: [nvmlView(device), ...views.filter((view) => fits(view, device))] }));
  const rest = views.filter((view) => !devices.some((device) => fits(view, device)));
  return rest.length ? [...known, { name: "unknown to NVML", views: rest }] : known;
}

const COLUMNS = ["GPU", "Source", { name: "Index", number: true }, "Name", { name: "Memory GiB", number: true }, { name: "Used GiB", number: true }, { name: "Busy %", number: true }];

function Views({ views, devices }: { views: DeviceView[]; devices: LiveDevice[] }) {
  if (!views.length && !devices.length) return <p class="empty">No source sees a GPU.</p>;
  return (
    <Table caption="GPUs by source" columns={COLUMNS} hideCaption>
      {grouped(views, devices).flatMap((group) => group.views.map((view, position) => (
        <tr key={`${view.source} ${view.source_index ?? view.bus_id}`}>
          {position === 0 && <th scope="rowgroup" rowSpan={group.views.length} class={group.name.startsWith("GPU") ? "gpu-name" : ""}>{group.name}</th>}
          <td>{view.source}</td>
          <td class="number">{view.source_index ?? DASH}</td>
          <td><Reading of={view} field="name">{view.name}</Reading></td>
          <td class="number"><Reading of={view} field="memory_total_bytes">{gib(view.memory_total_bytes ?? 0)}</Reading></td>
          <td class="number"><Reading of={view} field="memory_used_bytes">{gib(view.memory_used_bytes ?? 0)}</Reading></td>
          <td class="number"><Reading of={view} field="utilization_percent">{view.utilization_percent}</Reading></td>
        </tr>
      )))}
    </Table>
  );
}
