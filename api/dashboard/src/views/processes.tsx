// Every process on every GPU, narrowed by a text, with each user's share and the idle holders first.

import { useState } from "preact/hooks";
import { gib } from "../format";
import { useLoaded, useTicks } from "../load";
import type { Live } from "../model";
import { Loading, Notice, ProblemNotice } from "../parts/notice";
import { type ProcessRow, ProcessTable } from "../parts/process_table";
import { Table } from "../parts/table";

interface Processes {
  processes: ProcessRow[];
  users: { user: string | null; memory_used_bytes: number; gpu_count: number; process_count: number }[];
}

export function ProcessView({ live }: { live: Live }) {
  const { value, problem } = useLoaded<Processes>("processes", useTicks(5));
  const [text, setText] = useState("");
  const fits = (process: ProcessRow): boolean =>
    [process.user, process.command, process.container_id, String(process.pid)].some((field) => field?.toLowerCase().includes(text.toLowerCase()));
  const silent = live.devices.filter((device) => !device.responding).length;
  const idle = value?.processes.filter((process) => process.idle_holder) ?? [];
  return (
    <>
      <h1>Processes</h1>
      {problem && <ProblemNotice problem={problem} />}
      {!value && !problem && <Loading what="the processes" />}
      {value && value.processes.length === 0 && <p class="empty">No process is on a GPU of {live.host}{silent > 0 && `, as far as GPUs answer: ${silent} of ${live.devices.length} do not`}.</p>}
      {idle.length > 0 && (
        <Notice tone="warn" title={`${idle.length} of them hold over 1 GiB and have done nothing for 15 minutes or more.`}>
          Ask {[...new Set(idle.map((process) => process.user ?? "their users"))].join(", ")} whether they are still needed.
        </Notice>
      )}
      {value && value.processes.length > 0 && (
        <>
          <p><label>Filter <input type="search" value={text} onInput={(event) => setText(event.currentTarget.value)} placeholder="user, command, container, pid" size={28} /></label></p>
          <ProcessTable processes={value.processes.filter(fits)} none="No process fits this filter." />
          <h2>By user</h2>
          <Table caption="Memory by user" columns={["User", { name: "GPUs", number: true }, { name: "Processes", number: true }, { name: "Memory GiB", number: true }]} hideCaption>
            {value.users.map((user) => (
              <tr key={user.user}>
                <th scope="row">{user.user ?? "unknown"}</th>
                <td class="number">{user.gpu_count}</td>
                <td class="number">{user.process_count}</td>
                <td class="number">{gib(user.memory_used_bytes)}</td>
              </tr>
            ))}
          </Table>
        </>
      )}
    </>
  );
}
