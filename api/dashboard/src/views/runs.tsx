// Every run, newest first, two of which can be laid side by side; and the form that starts one where that is allowed.

import { useState } from "preact/hooks";
import { dateClock, duration, seconds } from "../format";
import { useLoaded } from "../load";
import type { Live, Run, Session } from "../model";
import { Command, Loading, Notice, ProblemNotice } from "../parts/notice";
import { useRoute } from "../parts/shell";
import { Status } from "../parts/status";
import { Table } from "../parts/table";
import type { Runs } from "../plan";
import { link } from "../route";
import { serviceNow, useEvents, useStore } from "../store";
import { TokenForm } from "./log_in";
import { StartRun } from "./start_run";

export function RunsView({ live }: { live: Live }) {
  const [changes, setChanges] = useState(0);
  const session = useStore((state) => state.session);
  const like = useRoute().settings.get("like");
  useEvents((event) => event.name === "run" && setChanges((count) => count + 1), []);
  const { value, problem } = useLoaded<Runs>("runs", changes);
  const mayStart = session?.actions_allowed && session.role === "act";
  return (
    <>
      <h1>Runs</h1>
      {problem && <ProblemNotice problem={problem} />}
      {!value && !problem && <Loading what="the runs" />}
      {value && (mayStart ? <StartRun key={like} runs={value} live={live} like={value.runs.find((run) => run.id === like)} /> : <HowToStart session={session} />)}
      {value && (value.runs.length ? <RunTable runs={value.runs} /> : <p class="empty">No run yet: {mayStart ? "the form above starts the first" : "this service has started none, and no job under gpudiag run has ended here"}.</p>)}
    </>
  );
}

function HowToStart({ session }: { session: Session | null }) {
  if (!session?.actions_allowed) {
    return (
      <Notice title="This service only looks; it starts nothing.">
        Restart it with <Command>gpudiag serve --allow-actions</Command> to start runs from here. A run that you start in a terminal, with <Command>gpudiag nccl-test</Command>, prints its report there and does not appear on this page; a job under <Command>gpudiag run -- COMMAND</Command> does once it has ended.
      </Notice>
    );
  }
  return (
    <Notice title="Starting a run needs the token for actions.">
      Open the address that <Command>gpudiag serve --allow-actions</Command> printed, or paste a token that may act here. <TokenForm />
    </Notice>
  );
}

const COLUMNS = ["Choose", "Started", "Kind", "Outcome", "State", { name: "Took", number: true }, "Command"];

function RunTable({ runs }: { runs: Run[] }) {
  const [chosen, setChosen] = useState<string[]>([]);
  const there = chosen.filter((id) => runs.some((run) => run.id === id));
  // The third one takes the place of the one that was chosen first.
  const toggle = (id: string): void => setChosen(there.includes(id) ? there.filter((one) => one !== id) : [...there, id].slice(-2));
  const [now, before] = runs.filter((run) => there.includes(run.id));
  return (
    <section>
      <h2>{runs.length === 1 ? "One run" : `${runs.length} runs`}</h2>
      {runs.length > 1 && (
        <p class="beside-choice">
          {now && before ? <a class="button" href={link("runs", now.id, { with: before.id })}>Show both side by side</a> : <span class="calm">Choose two runs to see them side by side{there.length === 1 && ": one more"}.</span>}
        </p>
      )}
      <div class="run-table"><Table caption="Runs" columns={COLUMNS} hideCaption>
        {runs.map((run) => (
          <tr key={run.id}>
            <td><input type="checkbox" checked={there.includes(run.id)} onChange={() => toggle(run.id)} aria-label={`Choose the ${run.kind} of ${dateClock(run.started_at ?? run.requested_at)}`} /></td>
            <th scope="row"><a href={link("runs", run.id)}>{dateClock(run.started_at ?? run.requested_at)}</a></th>
            <td>{run.kind}</td>
            <td>{run.outcome ? <Status state={run.outcome} /> : <span class="calm">{run.reason ?? "none yet"}</span>}</td>
            <td><Status state={run.state} /></td>
            <td class="number">{run.started_at ? duration((run.ended_at ? seconds(run.ended_at) : serviceNow()) - seconds(run.started_at)) : "waits"}</td>
            <td class="wide"><code>{run.command}</code></td>
          </tr>
        ))}
      </Table></div>
    </section>
  );
}
