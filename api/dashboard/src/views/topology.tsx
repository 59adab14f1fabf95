// What lies between any two GPUs, with what was measured there beside it.

import { DASH, rate, significant, words } from "../format";
import { useLoaded } from "../load";
import type { WithMissing } from "../model";
import { gpuLink, gpuName } from "../parts/gpu";
import { Loading, Notice, ProblemNotice } from "../parts/notice";
import { Reading } from "../parts/reading";
import { Table } from "../parts/table";
import { link } from "../route";

interface TopologyDevice extends WithMissing {
  uuid: string;
  bus_id: string | null;
  nvml_index: number | null;
  numa_node: number | null;
  pcie_generation: number | null;
  pcie_width: number | null;
  pcie_generation_slot_max: number | null;
  pcie_width_slot_max: number | null;
  nvlinks_active: number | null;
  nvlinks_total: number | null;
}
interface Link extends WithMissing {
  from?: string | null;
  to?: string | null;
  from_uuid?: string | null;
  to_uuid?: string | null;
  path: string | null;
  nvlink: string | null;
  nvlink_count: number | null;
  measured: { metric: string; value: number; unit: string; at: string } | null;
}
interface Topology {
  devices: TopologyDevice[];
  links: Link[];
}

export function TopologyView() {
  const { value, problem } = useLoaded<Topology>("topology");
  const measured = value?.links.some((one) => one.measured);
  return (
    <>
      <h1>Topology</h1>
      {problem && <ProblemNotice problem={problem} />}
      {!value && !problem && <Loading what="the links" />}
      {value && value.devices.length === 0 && <p class="empty">No GPU answers, so there are no links to show. <a href={link("sources")}>What each source reports</a></p>}
      {value && value.devices.length > 0 && (
        <>
          {value.devices.length > 1 ? <Matrix topology={value} /> : <p class="empty">One GPU: there are no links between GPUs.</p>}
          {!measured && value.devices.length > 1 && (
            <Notice title="Nothing was measured between these GPUs yet.">A <a href={link("runs")}>standard preflight or bandwidth run</a> writes the measured bandwidth into this matrix.</Notice>
          )}
          <h2>Slots</h2>
          <SlotTable devices={value.devices} />
        </>
      )}
    </>
  );
}

function Matrix({ topology: { devices, links } }: { topology: Topology }) {
  const between = new Map(links.map((one) => [`${one.from ?? one.from_uuid} ${one.to ?? one.to_uuid}`, one]));
  return (
    <Table caption="Row to column: the path, and what was measured in that direction" columns={["From \\ to", ...devices.map(gpuName)]}>
      {devices.map((from) => (
        <tr key={from.uuid}>
          <th scope="row"><a href={gpuLink(from)}>{gpuName(from)}</a></th>
          {devices.map((to) => <Cell key={to.uuid} own={from === to} between={between.get(`${from.uuid} ${to.uuid}`)} />)}
        </tr>
      ))}
    </Table>
  );
}

function Cell({ own, between }: { own: boolean; between: Link | undefined }) {
  if (own) return <td class="link own"><span class="unseen">itself</span></td>;
  if (!between) return <td class="link" title="not known: one of the two does not answer">{DASH}</td>;
  const { measured } = between;
  // Through a switch there is no count of links to that one GPU.
  const count = between.nvlink_count ? ` ×${between.nvlink_count}` : "";
  const nvlink = between.nvlink === "ok" || count !== "";
  return (
    <td class={`link ${nvlink ? "nvlink" : "pcie"}`}>
      {nvlink && <span>NVLink{count}</span>}
      <span class={nvlink ? "calm" : ""}><Reading of={between} field="path">{words(between.path ?? "")}</Reading></span>
      {measured && <b>{measured.unit === "B/s" ? rate(measured.value) : `${significant(measured.value)} ${measured.unit}`}</b>}
    </td>
  );
}

function SlotTable({ devices }: { devices: TopologyDevice[] }) {
  return (
    <Table caption="Slots and links of each GPU" columns={["GPU", "Bus id", { name: "NUMA node", number: true }, "PCIe now", "PCIe slot", "NVLinks up"]} hideCaption>
      {devices.map((device) => (
        <tr key={device.uuid}>
          <th scope="row"><a href={gpuLink(device)}>{gpuName(device)}</a></th>
          <td><Reading of={device} field="bus_id"><code>{device.bus_id}</code></Reading></td>
          <td class="number"><Reading of={device} field="numa_node">{device.numa_node}</Reading></td>
          <td><Reading of={device} field="pcie_generation">gen {device.pcie_generation} x{device.pcie_width ?? DASH}</Reading></td>
          <td><Reading of={device} field="pcie_generation_slot_max">gen {device.pcie_generation_slot_max} x{device.pcie_width_slot_max ?? DASH}</Reading></td>
          <td><Reading of={device} field="nvlinks_total">{device.nvlinks_active ?? DASH} of {device.nvlinks_total}</Reading></td>
        </tr>
      ))}
    </Table>
  );
}
