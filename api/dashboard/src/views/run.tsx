// One run: followed while it goes on, cancelled, its report read when it is done, and started again.

import { useEffect, useRef, useState } from "preact/hooks";
import { address, asProblem, type Problem, readText, send } from "../api";
import { dateClock, duration, seconds, words } from "../format";
import { useLoaded, useTicks } from "../load";
import type { Run } from "../model";
import { Loading, Notice, ProblemNotice } from "../parts/notice";
import { Reproduce } from "../parts/reproduce";
import { unforced } from "../plan";
import { useRoute } from "../parts/shell";
import { Status } from "../parts/status";
import { link } from "../route";
import { serviceNow, useEvents, useStore } from "../store";
import { ReportView } from "./report";
import { JOB } from "./report_job";
import { RunsBeside } from "./run_beside";
import { RunLive } from "./run_live";
import { Refusal } from "./start_run";

const ACTIVE = ["queued", "running", "cancelling"];
const LOG_DELAY_MS = 500;
const REREAD_SECONDS = 5;

export function RunView({ id }: { id: string }) {
  const before = useRoute().settings.get("with");
  return before ? <RunsBeside key={before} before={before} now={id} /> : <OneRun id={id} />;
}

function OneRun({ id }: { id: string }) {
  const [changes, setChanges] = useState(0);
  const [newest, setNewest] = useState<Run | null>(null);
  useEvents((event) => {
    const run = event.data as Run;
    if (event.name !== "run" || run.id !== id) return;
    setNewest(run);
    if (!ACTIVE.includes(run.state)) setChanges((count) => count + 1);
  }, [id]);
  // Read again now and then: an event may have been lost.
  const { value, problem } = useLoaded<Run>(`runs/${encodeURIComponent(id)}`, `${changes} ${useTicks(REREAD_SECONDS)}`);
  // The newest counts: an end that came by the stream is not undone by a slower answer.
  useEffect(() => {
    if (value) setNewest((before) => (before && !ACTIVE.includes(before.state) ? before : value));
  }, [value]);
  const run = newest ?? value;
  if (!run && problem?.code === "run.not_found") return <p class="empty">There is no run {id}. <a href={link("runs")}>All runs</a></p>;
  if (!run) return problem ? <ProblemNotice problem={problem} /> : <Loading what="the run" />;
  const active = ACTIVE.includes(run.state);
  return (
    <>
      <h1>{run.kind} <small>{dateClock(run.started_at ?? run.requested_at)}</small></h1>
      <RunHead run={run} active={active} onChange={setNewest} />
      {active && <RunLive run={run} />}
      {run.has_report && !active && <Report run={run} />}
      {run.kind === JOB ? <p class="calm">The job's output is its own: gpudiag keeps none of it.</p> : <RunLog id={id} state={run.state} />}
    </>
  );
}

function RunHead({ run, active, onChange }: { run: Run; active: boolean; onChange: (run: Run) => void }) {
  useTicks(active ? 1 : 60);
  const took = run.started_at ? (run.ended_at ? seconds(run.ended_at) : serviceNow()) - seconds(run.started_at) : null;
  return (
    <section class="panel run-head">
      <p class="headline">
        {run.outcome && <Status state={run.outcome} large />}
        <Status state={run.state} large={!run.outcome} />
        {run.stage && active && <span>stage {words(run.stage)}</span>}
        {took !== null && <span>{duration(took)}</span>}
        {active && <Cancel run={run} onChange={onChange} />}
      </p>
      {active && <Progress run={run} />}
      {run.reason && <p>{run.reason}</p>}
      {run.state === "lost" && <Notice tone="warn" title="The service ended during this run.">What it stored until then is below. <a href={link("runs")}>Start it again</a></Notice>}
      <Reproduce run={run} />
      {!active && run.kind !== JOB && <Again run={run} />}
    </section>
  );
}

// The same plan once more, on the same GPUs.
function Again({ run }: { run: Run }) {
  const session = useStore((state) => state.session);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  if (session?.role !== "act" || !session.actions_allowed) return null;
  const start = (more: Record<string, boolean> = {}): void => {
    const { kind, gpus, interpreter } = run;
    const plan = unforced(run.plan);
    setProblem(null);
    setBusy(true);
    send<Run>("runs", { kind, plan, ...(gpus.length ? { gpus } : {}), ...(interpreter ? { interpreter } : {}), ...more })
      .then((next) => {
        location.hash = link("runs", next.id);
      }, (error: unknown) => setProblem(asProblem(error)))
      .finally(() => setBusy(false));
  };
  return (
    <>
      <p class="again">
        <button type="button" disabled={busy} onClick={() => start()}>{busy ? "Starting …" : "Run again"}</button>
        <a href={link("runs", "", { like: run.id })}>Change the plan first</a>
      </p>
      {problem && <Refusal problem={problem} again={start} />}
    </>
  );
}

function Progress({ run }: { run: Run }) {
  if (run.state === "queued") return <p>Waits{run.queue_position ? `, number ${run.queue_position} in the queue` : ""}.</p>;
  const text = run.planned ? `${run.done ?? 0} of ${run.planned}` : "working";
  return (
    <p class="progress">
      <progress aria-label="Progress of the run" max={1} {...(run.progress === null ? {} : { value: run.progress })} /> {text}
    </p>
  );
}

function Cancel({ run, onChange }: { run: Run; onChange: (run: Run) => void }) {
  const session = useStore((state) => state.session);
  const [problem, setProblem] = useState<Problem | null>(null);
  if (session?.role !== "act" || !session.actions_allowed) return null;
  const cancel = (): void => {
    setProblem(null);
    send<Run>(`runs/${encodeURIComponent(run.id)}/cancel`, {}).then(onChange, (error: unknown) => setProblem(asProblem(error)));
  };
  return (
    <>
      <button type="button" disabled={run.state === "cancelling"} onClick={cancel}>{run.state === "cancelling" ? "Cancelling …" : "Cancel"}</button>
      {problem && <ProblemNotice problem={problem} />}
    </>
  );
}

function Report({ run }: { run: Run }) {
  const path = `runs/${encodeURIComponent(run.id)}/report`;
  const { value, problem } = useLoaded<Record<string, unknown>>(path);
  return (
    <section>
      <h2>Report</h2>
      <p class="formats">
        As{run.report_formats.map((format) => <a key={format} href={address(`${path}?format=${format}`)} target="_blank" rel="noreferrer">{format}</a>)}
      </p>
      {problem && <ProblemNotice problem={problem} />}
      {!value && !problem && <Loading what="the report" />}
      {value && <ReportView document={value} run={run} />}
    </section>
  );
}

function RunLog({ id, state }: { id: string; state: string }) {
  const [text, setText] = useState<string | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const box = useRef<HTMLPreElement>(null);
  const timer = useRef(0);
  const load = (): void => {
    readText(`runs/${encodeURIComponent(id)}/log`).then(setText, (error: unknown) => setProblem(asProblem(error)));
  };
  useEffect(load, [id, state]);
  useEffect(() => () => clearTimeout(timer.current), []);
  // The log is read again rather than pieced together: what the stream lost is in it.
  useEvents((event) => {
    if (event.name !== "run_log" || (event.data as { run: string }).run !== id || timer.current) return;
    timer.current = window.setTimeout(() => {
      timer.current = 0;
      load();
    }, LOG_DELAY_MS);
  }, [id]);
  const atEnd = !box.current || box.current.scrollHeight - box.current.scrollTop - box.current.clientHeight < 40;
  useEffect(() => {
    if (atEnd && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text]);
  return (
    <section>
      <h2>Log</h2>
      {problem && <ProblemNotice problem={problem} />}
      {text === "" && <p class="empty">It has printed nothing{ACTIVE.includes(state) ? " yet" : ""}.</p>}
      {text && <pre class="log" ref={box} role="region" tabIndex={0} aria-label="Log of the run">{text}</pre>}
    </section>
  );
}
