// Who is on which GPU: user, command, container, memory, since when; and who holds memory without using it.

import { duration, gib, seconds } from "../format";
import type { GpuProcess } from "../model";
import { serviceNow } from "../store";
import { gpuLink, gpuName } from "./gpu";
import { Reading } from "./reading";
import { Status } from "./status";
import { Table } from "./table";

export interface ProcessRow extends GpuProcess {
  uuid: string | null;
  nvml_index: number | null;
  idle_since?: string | null; // only of the processes of the whole machine
  idle_holder?: boolean;
}

const COLUMNS = ["GPU", "User", "Command", { name: "Memory GiB", number: true }, "Running for", "Idle", "Container", { name: "PID", number: true }];

export function ProcessTable({ processes, none }: { processes: ProcessRow[]; none: string }) {
  if (!processes.length) return <p class="empty">{none}</p>;
  return (
    <Table caption="Processes on GPUs" columns={COLUMNS} hideCaption>
      {processes.map((process) => <Row key={`${process.uuid} ${process.pid}`} process={process} />)}
    </Table>
  );
}

function Row({ process }: { process: ProcessRow }) {
  const age = (iso: string): string => duration(serviceNow() - seconds(iso));
  return (
    <tr>
      <th scope="row"><a href={gpuLink(process)}>{gpuName(process)}</a></th>
      <td><Reading of={process} field="user">{process.user}</Reading></td>
      <td class="wide">
        {process.visible ? <Reading of={process} field="command"><code>{process.command}</code></Reading> : <span class="absent">not visible from here: run gpudiag with the host's pids (--pid=host)</span>}
      </td>
      <td class="number"><Reading of={process} field="memory_used_bytes">{gib(process.memory_used_bytes ?? 0)}</Reading></td>
      <td><Reading of={process} field="started_at">{age(process.started_at ?? "")}</Reading></td>
      <td>{process.idle_holder ? <Status state="warn" text={`idle holder, ${age(process.idle_since ?? "")}`} /> : process.idle_since ? age(process.idle_since) : "no"}</td>
      <td>{process.container_id ? <code title={process.container_id}>{process.container_id.slice(0, 12)}</code> : <span class="calm">none</span>}</td>
      <td class="number">{process.pid}</td>
    </tr>
  );
}
