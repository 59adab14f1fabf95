// Every process on every GPU, narrowed by a text, with what it had of its GPU over the last minutes, each user's share and
// the idle holders first.

import { useState } from "preact/hooks";
import { SharesChart } from "../charts/shares";
import { DASH, duration, gib, program } from "../format";
import { useLoaded, useTicks } from "../load";
import type { Live, LiveDevice, Processes, ProcessUse } from "../model";
import { gpuKey, gpuLink, gpuName } from "../parts/gpu";
import { Loading, Notice, ProblemNotice } from "../parts/notice";
import { ProcessTable } from "../parts/process_table";
import { Reading } from "../parts/reading";
import { Table } from "../parts/table";

export function ProcessView({ live }: { live: Live }) {
  const { value, problem } = useLoaded<Processes>("processes", useTicks(5));
  const [text, setText] = useState("");
  const fits = (process: ProcessUse): boolean =>
    [process.user, process.command, process.container_id, String(process.pid)].some((field) => field?.toLowerCase().includes(text.toLowerCase()));
  const silent = live.devices.filter((device) => !device.responding).length;
  const idle = value?.processes.filter((process) => process.idle_holder) ?? [];
  const shown = value?.processes.filter(fits) ?? [];
  return (
    <>
      <h1>Processes</h1>
      {problem && <ProblemNotice problem={problem} />}
      {!value && !problem && <Loading what="the processes" />}
      {value && value.processes.length === 0 && <p class="empty">No process is on a GPU of {live.host}{silent > 0 && `, as far as GPUs answer: ${silent} of ${live.devices.length} do not`}.</p>}
      {idle.length > 0 && (
        <Notice tone="warn" title={`${idle.length} of them ${idle.length > 1 ? "hold over 1 GiB and have" : "holds over 1 GiB and has"} done nothing for 15 minutes or more.`}>
          Ask {[...new Set(idle.map((process) => process.user ?? "their users"))].join(", ")} whether they are still needed.
        </Notice>
      )}
      {value && value.processes.length > 0 && (
        <>
          <p><label>Filter <input type="search" value={text} onInput={(event) => setText(event.currentTarget.value)} placeholder="user, command, container, pid" size={28} /></label></p>
          <ProcessTable processes={shown} none="No process fits this filter." />
          {shown.length > 0 && <Shares processes={shown} times={value.times ?? []} devices={live.devices} />}
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

function Shares({ processes, times, devices }: { processes: ProcessUse[]; times: number[]; devices: LiveDevice[] }) {
  if (times.length < 2) return <p class="loading">Shares over time are recorded every 10 s: the first are on their way.</p>;
  const used = devices.filter((device) => processes.some((process) => process.uuid === device.uuid));
  const span = (times.at(-1) ?? 0) - (times[0] ?? 0);
  return (
    <section>
      <h2>Shares of each GPU <small>the last {duration(span)}, up to the whole GPU</small></h2>
      <div class="gpu-shares">
        {used.map((device) => <GpuShares key={gpuKey(device)} device={device} processes={processes.filter((process) => process.uuid === device.uuid)} times={times} />)}
      </div>
    </section>
  );
}

function GpuShares({ device, processes, times }: { device: LiveDevice; processes: ProcessUse[]; times: number[] }) {
  const total = device.memory_total_bytes;
  const key = (process: ProcessUse): string => String(process.pid);
  const memory = processes.map((process) => ({ key: key(process), values: (process.recent_memory_bytes ?? []).map((bytes) => (bytes === null || !total ? null : bytes / total)) }));
  const sm = processes.map((process) => ({ key: key(process), values: (process.recent_sm_percent ?? []).map((percent) => (percent === null ? null : percent / 100)) }));
  const hasSm = sm.some(({ values }) => values.some((value) => value !== null));
  const percent = (bytes: number | null): string => (bytes === null || !total ? DASH : `${Math.round((bytes / total) * 100)}%`);
  return (
    <figure class="chart">
      <figcaption><span class="title"><a href={gpuLink(device)}>{gpuName(device)}</a></span> <span class="unit">{processes.length === 1 ? "1 process" : `${processes.length} processes`}</span></figcaption>
      <div class="two">
        <div><SharesChart shares={memory} times={times} label={`Memory of ${gpuName(device)} by process over time; the list below has the numbers of now`} /><span class="unit">memory</span></div>
        <div>{hasSm ? <SharesChart shares={sm} times={times} label={`SMs of ${gpuName(device)} by process over time; the list below has the numbers of now`} /> : <p class="no-shares">{processes.some((process) => process.sm_utilization_percent !== null) ? "no point yet" : "not reported"}</p>}<span class="unit">SMs</span></div>
      </div>
      <ul class="legend" aria-label={`Shares of ${gpuName(device)} now`}>
        {processes.map((process, position) => (
          <li key={key(process)}>
            <span class={`swatch line-${position % 8}`} aria-hidden="true" /> {process.user ?? "?"} {process.command ? program(process.command) : process.pid}{" "}
            <b>{percent(process.memory_used_bytes)}</b> memory, <b><Reading of={process} field="sm_utilization_percent">{process.sm_utilization_percent}%</Reading></b> SMs
          </li>
        ))}
      </ul>
    </figure>
  );
}
