// How GPUs, network cards and processors are joined, with what was measured, and what NCCL would choose.

import { DASH, rate, significant, words } from "../format";
import { useLoaded } from "../load";
import type { NcclLevels, NicPath, Topology, TopologyDevice, TopologyLink, TopologyNic } from "../model";
import { FindingList } from "../parts/findings";
import { gpuLink, gpuName } from "../parts/gpu";
import { Loading, Notice, ProblemNotice } from "../parts/notice";
import { Reading } from "../parts/reading";
import { Table } from "../parts/table";
import { link } from "../route";

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

function Whole({ topology }: { topology: Topology }) {
  const { devices, links, nics, findings } = topology;
  const cards = nics.filter((nic) => nic.number !== null && !nic.virtual_function);
  const measured = links.some((one) => one.measured);
  return (
    <>
      {findings.length > 0 && <FindingList findings={findings} compact />}
      {devices.length > 1 ? <Matrix topology={topology} /> : <p class="empty">One GPU: there are no links between GPUs.</p>}
      {!measured && devices.length > 1 && (
        <Notice title="Nothing was measured between these GPUs yet.">A <a href={link("runs")}>standard preflight or bandwidth run</a> writes the measured bandwidth into this matrix.</Notice>
      )}
      {cards.length > 0 && <CardMatrix topology={topology} cards={cards} />}
      <Letters topology={topology} />
      {topology.nccl && <Nccl levels={topology.nccl} devices={devices} />}
      <h2>Slots</h2>
      <SlotTable devices={devices} />
      {nics.length > 0 && <CardTable nics={nics.filter((nic) => !nic.virtual_function)} />}
      <Nodes topology={topology} />
    </>
  );
}

function Matrix({ topology: { devices, links } }: { topology: Topology }) {
  const between = new Map(links.map((one) => [`${one.from_uuid} ${one.to_uuid}`, one]));
  return (
    <Table caption="Row to column: the path, what NCCL would use, and what was measured in that direction" columns={["From \\ to", ...devices.map(gpuName)]}>
      {devices.map((from) => (
        <tr key={from.uuid}>
          <th scope="row"><a href={gpuLink(from)}>{gpuName(from)}</a></th>
          {devices.map((to) => <Cell key={to.uuid} own={from === to} between={between.get(`${from.uuid} ${to.uuid}`)} />)}
        </tr>
      ))}
    </Table>
  );
}

function Cell({ own, between }: { own: boolean; between: TopologyLink | undefined }) {
  if (own) return <td class="link own"><span class="unseen">itself</span></td>;
  if (!between) return <td class="link" title="not known: one of the two does not answer">{DASH}</td>;
  const { measured, label } = between;
  return (
    <td class={`link ${label?.startsWith("NV") ? "nvlink" : "pcie"}`} title={[between.path ? words(between.path) : "", between.bytes_per_second ? `links of ${rate(between.bytes_per_second)} each way` : ""].filter(Boolean).join(", ")}>
      <span><Reading of={between} field="label">{label}</Reading></span>
      {between.nccl_transport && <span class="calm">{between.nccl_transport}</span>}
      {measured && <b>{measured.unit === "B/s" ? rate(measured.value) : `${significant(measured.value)} ${measured.unit}`}</b>}
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
