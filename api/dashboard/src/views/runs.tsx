// Every run, newest first, and the form that starts one where that is allowed.

import { useState } from "preact/hooks";
import { dateClock, duration, seconds } from "../format";
import { useLoaded } from "../load";
import type { Live, Run, Session } from "../model";
import type { Runs } from "../plan";
import { Command, Loading, Notice, ProblemNotice } from "../parts/notice";
import { Status } from "../parts/status";
import { Table } from "../parts/table";
import { link } from "../route";
import { serviceNow, useEvents, useStore } from "../store";
import { TokenForm } from "./log_in";
import { StartRun } from "./start_run";

export function RunsView({ live }: { live: Live }) {
  const [changes, setChanges] = useState(0);
  const session = useStore((state) => state.session);
  useEvents((event) => event.name === "run" && setChanges((count) => count + 1), []);
  const { value, problem } = useLoaded<Runs>("runs", changes);
  return (
    <>
      <h1>Runs</h1>
      {problem && <ProblemNotice problem={problem} />}
      {!value && !problem && <Loading what="the runs" />}
      {value && (session?.actions_allowed && session.role === "act" ? <StartRun kinds={value.kinds} live={live} /> : <HowToStart session={session} />)}
      {value && (value.runs.length ? <RunTable runs={value.runs} /> : <p class="empty">No run yet.</p>)}
    </>
  );
}

function HowToStart({ session }: { session: Session | null }) {
  if (!session?.actions_allowed) {
    return (
      <Notice title="This service only looks; it starts nothing.">
        Restart it with <Command>gpudiag serve --allow-actions</Command> to start runs from here. A run that you start in a terminal, with <Command>gpudiag nccl-test</Command>, prints its report there and does not appear on this page.
      </Notice>
    );
  }
  return (
    <Notice title="Starting a run needs the token for actions.">
      Open the address that <Command>gpudiag serve --allow-actions</Command> printed, or paste a token that may act here. <TokenForm />
    </Notice>
  );
}

function RunTable({ runs }: { runs: Run[] }) {
  return (
    <section>
      <h2>{runs.length === 1 ? "One run" : `${runs.length} runs`}</h2>
      <Table caption="Runs" columns={["Started", "Kind", "State", "Outcome", "Took", "Command"]} hideCaption>
        {runs.map((run) => (
          <tr key={run.id}>
            <th scope="row"><a href={link("runs", run.id)}>{dateClock(run.started_at ?? run.requested_at)}</a></th>
            <td>{run.kind}</td>
            <td><Status state={run.state} /></td>
            <td>{run.outcome ? <Status state={run.outcome} /> : <span class="calm">{run.reason ?? "none yet"}</span>}</td>
            <td>{run.started_at ? duration((run.ended_at ? seconds(run.ended_at) : serviceNow()) - seconds(run.started_at)) : "waits"}</td>
            <td class="wide"><code>{run.command}</code></td>
          </tr>
        ))}
      </Table>
    </section>
  );
}
