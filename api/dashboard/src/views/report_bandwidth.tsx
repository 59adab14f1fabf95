// Active tests: what each GPU copied, computed and remembered, a row per test.

import { duration, plural, rate, significant, size, words } from "../format";
import type { WithMissing } from "../model";
import { gpuName } from "../parts/gpu";
import { Notice } from "../parts/notice";
import { Status } from "../parts/status";
import { Table } from "../parts/table";
import { useStore } from "../store";

interface Copy extends WithMissing {
  test: string;
  rank: number;
  device_uuid: string | null;
  size_bytes: number;
  iterations: number;
  time_p50_seconds: number;
  bytes_per_second: number;
  wrong_bytes: number;
  concurrent: boolean;
  peer: number | null;
}
interface Product extends WithMissing {
  rank: number;
  device_uuid: string | null;
  dtype: string;
  size: number;
  iterations: number;
  time_p50_seconds: number;
  flops_per_second: number;
}
export interface BandwidthDocument {
  device_kind?: string;
  world_size?: number;
  torch_version?: string | null;
  untested?: { name: string; reason: string }[];
  bandwidth?: Copy[];
  compute?: Product[];
}

export function BandwidthReport({ document }: { document: BandwidthDocument }) {
  const live = useStore((state) => state.live);
  const name = (rank: number, uuid: string | null): string => {
    const device = uuid ? live?.devices.find((one) => one.uuid === uuid) : undefined;
    return device ? gpuName(device) : `rank ${rank}`;
  };
  const copies = [...(document.bandwidth ?? [])].sort((a, b) => a.test.localeCompare(b.test) || a.rank - b.rank);
  return (
    <>
      <Method document={document} />
      {copies.length > 0 && (
        <Table caption="Copies" columns={["Copy", "Where", { name: "Size", number: true }, { name: "Speed", number: true }, { name: "p50", number: true }, { name: "Times", number: true }, "Data"]}>
          {copies.map((copy, position) => (
            <tr key={position}>
              <th scope="row">{words(copy.test)}{copy.concurrent ? ", all at once" : ""}</th>
              <td>{name(copy.rank, copy.device_uuid)}{copy.peer !== null && ` to rank ${copy.peer}`}</td>
              <td class="number">{size(copy.size_bytes)}</td>
              <td class="number">{rate(copy.bytes_per_second)}</td>
              <td class="number">{duration(copy.time_p50_seconds)}</td>
              <td class="number">{copy.iterations}</td>
              <td>{copy.wrong_bytes ? <Status state="fail" text={`${copy.wrong_bytes} bytes wrong`} /> : <Status state="pass" text="exact" />}</td>
            </tr>
          ))}
        </Table>
      )}
      {(document.compute?.length ?? 0) > 0 && (
        <Table caption="Matrix products" columns={["Dtype", "Where", { name: "n", number: true }, { name: "TFLOP/s", number: true }, { name: "p50", number: true }, { name: "Times", number: true }]}>
          {document.compute?.map((product, position) => (
            <tr key={position}>
              <th scope="row">{product.dtype}</th>
              <td>{name(product.rank, product.device_uuid)}</td>
              <td class="number">{product.size}</td>
              <td class="number">{significant(product.flops_per_second / 1e12)}</td>
              <td class="number">{duration(product.time_p50_seconds)}</td>
              <td class="number">{product.iterations}</td>
            </tr>
          ))}
        </Table>
      )}
    </>
  );
}

// On what it was measured, and what was left out: a speed means nothing without it.
function Method({ document: { device_kind, world_size, torch_version, untested } }: { document: BandwidthDocument }) {
  const onCpu = device_kind === "cpu";
  return (
    <>
      {world_size !== undefined && (
        <p>Measured on {plural(world_size, onCpu ? "CPU rank" : "GPU")}{torch_version && `, torch ${torch_version}`}{onCpu && ". Speed is not judged on the CPU"}.</p>
      )}
      {(untested?.length ?? 0) > 0 && <Notice title="Left out">{untested?.map((one) => `${one.name}: ${one.reason}`).join("; ")}</Notice>}
    </>
  );
}
