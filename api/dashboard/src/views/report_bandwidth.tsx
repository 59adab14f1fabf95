// Active tests: what each GPU copied, computed and remembered, a row per test.

import { duration, rate, significant, size, words } from "../format";
import type { WithMissing } from "../model";
import { gpuName } from "../parts/gpu";
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
  bandwidth?: Copy[];
  compute?: Product[];
}

export function BandwidthReport({ document }: { document: BandwidthDocument }) {
  const live = useStore((state) => state.live);
  const name = (rank: number, uuid: string | null): string => {
    const device = uuid ? live?.devices.find((one) => one.uuid === uuid) : undefined;
    return device ? gpuName(device) : `rank ${rank}`;
  };
  return (
    <>
      {(document.bandwidth?.length ?? 0) > 0 && (
        <Table caption="Copies" columns={["Copy", "Where", { name: "Size", number: true }, { name: "Speed", number: true }, { name: "p50", number: true }, { name: "Times", number: true }, "Data"]}>
          {document.bandwidth?.map((copy, position) => (
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
