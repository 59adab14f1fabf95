// How GPUs, network cards and processors are joined, with what was measured, and what NCCL would choose.

import { DASH, gib, rate, significant, words } from "../format";
import { useLoaded } from "../load";
import type { NcclLevels, NicPath, Topology, TopologyDevice, TopologyLink, TopologyNic } from "../model";
import { FindingList } from "../parts/findings";
import { gpuLink, gpuName } from "../parts/gpu";
import { Loading, Notice, ProblemNotice } from "../parts/notice";
import { Reading } from "../parts/reading";
import { Table } from "../parts/table";
import { link } from "../route";
import { useStore } from "../store";

// The letters of nvidia-smi topo -m, from the nearest on.
const LETTERS: [string, string][] = [
  ["NV", "that many NVLinks"],
  ["PIX", "one PCIe switch"],
  ["PXB", "several PCIe switches"],
  ["PHB", "the host bridge of a processor"],
  ["NODE", "host bridges of one NUMA node"],
  ["SYS", "the link between NUMA nodes"],
];
const NEAR = ["PIX", "PXB"];

export function TopologyView() {
  const { value, problem } = useLoaded<Topology>("topology");
  return (
    <>
      <h1>Topology</h1>
      {problem && <ProblemNotice problem={problem} />}
      {!value && !problem && <Loading what="the links" />}
      {value && value.devices.length === 0 && <p class="empty">No GPU answers, so there are no links to show. <a href={link("sources")}>What each source reports</a></p>}
      {value && value.devices.length > 0 && <Whole topology={value} />}
    </>
  );
}

const DENSE_FROM = 17; // GPUs: from here on a cell has room for one number
const SLOW_SHARE = 0.9; // of the median of links of the same label: a pair below it is framed

interface Measured {
  link: TopologyLink;
  value: number; // bytes per second
  slow: boolean;
}

// What was measured as a speed, slowest first, and what is well below its own kind.
function measuredOf(links: TopologyLink[]): Measured[] {
  const known = links.flatMap((link) => (link.measured?.unit === "B/s" ? [{ link, value: link.measured.value }] : []));
  const median = (label: string | null): number => {
    const values = known.filter((one) => one.link.label === label).map((one) => one.value).sort((a, b) => a - b);
    return values[Math.floor(values.length / 2)] ?? 0;
  };
  const medians = new Map([...new Set(known.map((one) => one.link.label))].map((label) => [label, median(label)]));
  return known.map((one) => ({ ...one, slow: one.value < SLOW_SHARE * (medians.get(one.link.label) ?? 0) })).sort((a, b) => a.value - b.value);
}

const pairKey = (link: TopologyLink): string => `${link.from_uuid} ${link.to_uuid}`;

// How many pairs have which link, and how many of them were measured, how fast.
function LinkSummary({ topology: { devices, links }, measured }: { topology: Topology; measured: Measured[] }) {
  const counts = new Map<string, number>();
  for (const one of links) counts.set(one.label ?? "unknown", (counts.get(one.label ?? "unknown") ?? 0) + 1);
  const name = (uuid: string | null): string => {
    const device = devices.find((one) => one.uuid === uuid);
    return device ? gpuName(device) : "?";
  };
  const [slowest, fastest] = [measured[0], measured.at(-1)];
  const slow = measured.filter((one) => one.slow);
  return (
    <>
      <ul class="link-summary" aria-label="Links between GPUs">
        {[...counts].sort((a, b) => b[1] - a[1]).map(([label, count]) => <li key={label}><b>{count}</b> x {label}</li>)}
        <li><b>{measured.length}</b> of {links.length} directions measured</li>
        {slowest && fastest && <li>{rate(slowest.value) !== rate(fastest.value) && <><b>{rate(slowest.value)}</b> to </>}<b>{rate(fastest.value)}</b></li>}
      </ul>
      {slow.length > 0 && (
        <p>Slower than others of their kind by over 10 %: {slow.slice(0, 6).map(({ link: one, value }) => `${name(one.from_uuid)} to ${name(one.to_uuid)} ${rate(value)}`).join(", ")}{slow.length > 6 && ` and ${slow.length - 6} more`}.</p>
      )}
    </>
  );
}

function MigTable() {
  const live = useStore((state) => state.live);
  const split = live?.devices.filter((device) => (device.mig_instances?.length ?? 0) > 0) ?? [];
  if (!split.length) return null;
  return (
    <>
      <h2>MIG instances</h2>
      <Table caption="MIG instances" columns={["GPU", "Instance", "Profile", { name: "Memory GiB", number: true }, { name: "SM activity", number: true }, "Free"]} hideCaption>
        {split.flatMap((device) => device.mig_instances?.map((part) => (
          <tr key={part.uuid}>
            <th scope="row"><a href={gpuLink(device)}>{gpuName(device)}</a></th>
            <td>{part.gpu_instance_id ?? DASH}{part.compute_instance_id !== null && ` / ${part.compute_instance_id}`}</td>
            <td><Reading of={part} field="name">{part.name}</Reading></td>
            <td class="number"><Reading of={part} field="memory_total_bytes">{part.memory_used_bytes === null ? DASH : gib(part.memory_used_bytes)} of {gib(part.memory_total_bytes ?? 0)}</Reading></td>
            <td class="number"><Reading of={part} field="sm_activity_percent">{part.sm_activity_percent?.toFixed(0)}%</Reading></td>
            <td><Reading of={part} field="free">{part.free ? "yes" : "in use"}</Reading></td>
          </tr>
        )))}
      </Table>
      <p class="calm">MIG instances have no peer access to each other.</p>
    </>
  );
}

function Whole({ topology }: { topology: Topology }) {
  const { devices, links, nics, findings } = topology;
  const cards = nics.filter((nic) => nic.number !== null && !nic.virtual_function);
  const measured = measuredOf(links);
  return (
    <>
      {findings.length > 0 && <FindingList findings={findings} compact />}
      {devices.length > 1 && <LinkSummary topology={topology} measured={measured} />}
      {devices.length > 1 ? <Matrix topology={topology} slow={new Set(measured.filter((one) => one.slow).map((one) => pairKey(one.link)))} /> : <p class="empty">One GPU: there are no links between GPUs.</p>}
      {!links.some((one) => one.measured) && devices.length > 1 && (
        <Notice title="Nothing was measured between these GPUs yet.">A <a href={link("runs")}>standard preflight or bandwidth run</a> writes the measured bandwidth into this matrix.</Notice>
      )}
      {cards.length > 0 && <CardMatrix topology={topology} cards={cards} />}
      <Letters topology={topology} />
      {topology.nccl && <Nccl levels={topology.nccl} devices={devices} />}
      <MigTable />
      <h2>Slots</h2>
      <SlotTable devices={devices} />
      {nics.length > 0 && <CardTable nics={nics.filter((nic) => !nic.virtual_function)} />}
      <Nodes topology={topology} />
    </>
  );
}

function Matrix({ topology: { devices, links }, slow }: { topology: Topology; slow: Set<string> }) {
  const between = new Map(links.map((one) => [pairKey(one), one]));
  const dense = devices.length >= DENSE_FROM;
  const short = (device: TopologyDevice): string => (dense && device.nvml_index !== null ? String(device.nvml_index) : gpuName(device));
  const caption = dense
    ? "Row to column: GB/s where it was measured in that direction, else the path"
    : "Row to column: the path, what NCCL would use, and what was measured in that direction";
  return (
    <div class={`matrix${dense ? " dense" : ""}`}>
      <Table caption={caption} columns={["From \\ to", ...devices.map(short)]}>
        {devices.map((from) => (
          <tr key={from.uuid}>
            <th scope="row"><a href={gpuLink(from)}>{gpuName(from)}</a></th>
            {devices.map((to) => {
              const key = `${from.uuid} ${to.uuid}`;
              const one = between.get(key);
              return dense ? <DenseCell key={to.uuid} own={from === to} between={one} slow={slow.has(key)} /> : <Cell key={to.uuid} own={from === to} between={one} slow={slow.has(key)} />;
            })}
          </tr>
        ))}
      </Table>
    </div>
  );
}

interface CellProps {
  own: boolean;
  between: TopologyLink | undefined;
  slow: boolean;
}

const classOf = (between: TopologyLink, slow: boolean): string => `link ${between.label?.startsWith("NV") ? "nvlink" : "pcie"}${slow ? " slow" : ""}`;

function DenseCell({ own, between, slow }: CellProps) {
  if (own) return <td class="link own"><span class="unseen">itself</span></td>;
  if (!between) return <td class="link">{DASH}</td>;
  const { measured, label } = between;
  return <td class={classOf(between, slow)}>{measured?.unit === "B/s" ? significant(measured.value / 1e9) : label ?? DASH}{slow && <span class="unseen"> slow</span>}</td>;
}

function Cell({ own, between, slow }: CellProps) {
  if (own) return <td class="link own"><span class="unseen">itself</span></td>;
  if (!between) return <td class="link" title="not known: one of the two does not answer">{DASH}</td>;
  const { measured, label } = between;
  return (
    <td class={classOf(between, slow)} title={[between.path ? words(between.path) : "", between.bytes_per_second ? `links of ${rate(between.bytes_per_second)} each way` : ""].filter(Boolean).join(", ")}>
      <span><Reading of={between} field="label">{label}</Reading></span>
      {between.nccl_transport && <span class="calm">{between.nccl_transport}</span>}
      {measured && <b>{measured.unit === "B/s" ? rate(measured.value) : `${significant(measured.value)} ${measured.unit}`}</b>}
      {slow && <span>slow</span>}
    </td>
  );
}

function CardMatrix({ topology: { devices, nic_paths }, cards }: { topology: Topology; cards: TopologyNic[] }) {
  const paths = new Map(nic_paths.map((one) => [`${one.uuid} ${one.nic}`, one]));
  return (
    <Table caption="From each GPU to each network card; bold: NCCL takes that card for this GPU" columns={["From \\ to", ...cards.map((nic) => nic.name)]}>
      {devices.map((device) => (
        <tr key={device.uuid}>
          <th scope="row"><a href={gpuLink(device)}>{gpuName(device)}</a></th>
          {cards.map((nic) => <CardCell key={nic.name} device={device} path={paths.get(`${device.uuid} ${nic.name}`)} />)}
        </tr>
      ))}
    </Table>
  );
}

function CardCell({ device, path }: { device: TopologyDevice; path: NicPath | undefined }) {
  if (!path) return <td class="link">{DASH}</td>;
  const taken = device.nics.includes(path.nic);
  return (
    <td class={`link ${NEAR.includes(path.label ?? "") ? "nvlink" : "pcie"}`} title={path.path ? words(path.path) : ""}>
      <Reading of={path} field="label">{taken ? <b>{path.label}</b> : <span>{path.label}</span>}</Reading>
      {taken && path.gpu_direct && <span class="calm">GPUDirect</span>}
    </td>
  );
}

function Letters({ topology: { links, nic_paths } }: { topology: Topology }) {
  const labels = [...links, ...nic_paths].map((one) => one.label ?? "");
  const used = LETTERS.filter(([letters]) => labels.some((label) => (letters === "NV" ? label.startsWith("NV") : label === letters)));
  return used.length > 0 ? <p class="calm">Paths over: {used.map(([letters, meaning]) => `${letters === "NV" ? "NV#" : letters} ${meaning}`).join("; ")}.</p> : null;
}

function Nccl({ levels, devices }: { levels: NcclLevels; devices: TopologyDevice[] }) {
  const p2p = levels.p2p === "LOC" ? "no P2P" : `P2P up to ${levels.p2p}`;
  const direct = levels.gpu_direct_ready === false ? "no GPUDirect RDMA" : `GPUDirect RDMA up to ${levels.gpu_direct}`;
  const settings = [levels.p2p_setting, levels.gpu_direct_setting].filter(Boolean).join(", ");
  const without = devices.every((device) => device.nics.length === 0) ? " It finds no RDMA card to take." : "";
  return <p>NCCL {levels.version} would use {p2p} and {direct}{settings && ` (${settings})`}.{without}</p>;
}

function SlotTable({ devices }: { devices: TopologyDevice[] }) {
  return (
    <Table
      caption="Slots and links of each GPU"
      columns={["GPU", "Bus id", { name: "NUMA node", number: true }, "Host bridge", "PCIe now", "PCIe slot", "NVLinks up", "NCCL's cards"]}
      hideCaption
    >
      {devices.map((device) => (
        <tr key={device.uuid}>
          <th scope="row"><a href={gpuLink(device)}>{gpuName(device)}</a></th>
          <td><Reading of={device} field="bus_id"><code>{device.bus_id}</code></Reading></td>
          <td class="number"><Reading of={device} field="numa_node">{device.numa_node}</Reading></td>
          <td><Reading of={device} field="root"><code>{device.root}</code></Reading></td>
          <td><Reading of={device} field="pcie_generation">gen {device.pcie_generation} x{device.pcie_width ?? DASH}</Reading></td>
          <td><Reading of={device} field="pcie_generation_slot_max">gen {device.pcie_generation_slot_max} x{device.pcie_width_slot_max ?? DASH}</Reading></td>
          <td>
            <Reading of={device} field="nvlinks_total">{device.nvlinks_active ?? DASH} of {device.nvlinks_total}</Reading>
            {device.nvlinks_active && device.nvlink_bytes_per_second ? ` x ${rate(device.nvlink_bytes_per_second)}` : ""}
          </td>
          <td>{device.nics.join(", ") || DASH}</td>
        </tr>
      ))}
    </Table>
  );
}

function CardTable({ nics }: { nics: TopologyNic[] }) {
  return (
    <>
      <h2>Network cards</h2>
      <Table caption="Network cards" columns={["Card", "Interface", "Bus id", { name: "NUMA node", number: true }, "Host bridge", "PCIe now", "Port"]} hideCaption>
        {nics.map((nic) => (
          <tr key={nic.name}>
            <th scope="row">{nic.name}</th>
            <td>{nic.interfaces.join(", ") || DASH}</td>
            <td><code>{nic.bus_id}</code></td>
            <td class="number"><Reading of={nic} field="numa_node">{nic.numa_node}</Reading></td>
            <td><code>{nic.root}</code></td>
            <td><Reading of={nic} field="pcie_generation">gen {nic.pcie_generation} x{nic.pcie_width ?? DASH}</Reading></td>
            <td>{[nic.rate_gbit_per_second ? `${nic.rate_gbit_per_second} Gbit/s` : "", nic.link_layer ?? "", nic.active === false ? "down" : ""].filter(Boolean).join(" ") || DASH}</td>
          </tr>
        ))}
      </Table>
    </>
  );
}

function Nodes({ topology: { numa_nodes, devices, nics } }: { topology: Topology }) {
  if (!numa_nodes || numa_nodes.length === 0) return null;
  return (
    <>
      <h2>NUMA nodes</h2>
      <Table caption="NUMA nodes" columns={[{ name: "Node", number: true }, "Processors", "GPUs", "Network cards"]} hideCaption>
        {numa_nodes.map((node) => (
          <tr key={node.node}>
            <th scope="row" class="number">{node.node}</th>
            <td>{node.processors || "none"}</td>
            <td>{devices.filter((device) => node.gpus.includes(device.bus_id ?? "")).map(gpuName).join(", ") || DASH}</td>
            <td>{nics.filter((nic) => node.nics.includes(nic.bus_id)).map((nic) => nic.name).join(", ") || DASH}</td>
          </tr>
        ))}
      </Table>
    </>
  );
}
