// Start a run: its kind, its plan, its GPUs; and what to do where another run or a job holds them.

import { useState } from "preact/hooks";
import { asProblem, type Problem, send } from "../api";
import type { Live, Run } from "../model";
import { chosenOf, type Plan, type Runs, samePlan, unforced } from "../plan";
import { gpuName } from "../parts/gpu";
import { Notice } from "../parts/notice";
import { PlanForm } from "../parts/plan_form";
import { link } from "../route";

interface StartProps {
  runs: Runs;
  live: Live;
  like: Run | undefined; // the run whose plan the form begins with
}

export function StartRun({ runs: { kinds, interpreters = [] }, live, like }: StartProps) {
  const likeKind = kinds.find((one) => one.kind === like?.kind);
  const [name, setName] = useState(likeKind?.kind ?? kinds[0]?.kind ?? "");
  const [plan, setPlan] = useState<Plan>(like && likeKind ? chosenOf(unforced(like.plan), likeKind.plan_schema) : {});
  const [gpus, setGpus] = useState<string[]>(like?.gpus.filter((uuid) => live.devices.some((device) => device.uuid === uuid)) ?? []);
  const [interpreter, setInterpreter] = useState(like?.interpreter ?? "");
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const kind = kinds.find((one) => one.kind === name) ?? kinds[0];
  if (!kind) return <p class="empty">This service starts no runs.</p>;

  const start = async (more: Record<string, boolean> = {}): Promise<void> => {
    setBusy(true);
    setProblem(null);
    try {
      const run = await send<Run>("runs", { kind: kind.kind, plan, ...(gpus.length && kind.uses_gpus ? { gpus } : {}), ...(interpreter ? { interpreter } : {}), ...more });
      location.hash = link("runs", run.id);
    } catch (error) {
      setProblem(asProblem(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <form class="panel start" onSubmit={(event) => { event.preventDefault(); void start(); }}>
      <h2>Start a run</h2>
      <div class="kinds" role="radiogroup" aria-label="Kind of run">
        {kinds.map((one) => (
          <label class="check" key={one.kind}>
            <input type="radio" name="kind" checked={one === kind} onChange={() => { setName(one.kind); setPlan({}); }} />
            <b>{one.kind}</b> <span>{one.title}</span>
          </label>
        ))}
      </div>
      {(kind.presets?.length ?? 0) > 0 && (
        <div class="presets" role="group" aria-label="Presets">
          {kind.presets?.map((preset) => (
            <button type="button" key={preset.name} aria-pressed={samePlan(plan, preset.plan)} onClick={() => setPlan(preset.plan)}>
              <b>{preset.name}</b> <span>{preset.means}</span>
            </button>
          ))}
        </div>
      )}
      <details open={!matchMedia("(max-width: 640px)").matches}>
        <summary>Plan</summary>
        <PlanForm key={kind.kind} schema={kind.plan_schema} plan={plan} change={setPlan} />
      </details>
      {kind.uses_gpus && <GpuChoice live={live} chosen={gpus} choose={setGpus} />}
      {interpreters.length > 0 && (
        <p>
          <label>Python of the ranks <select value={interpreter} onChange={(event) => setInterpreter(event.currentTarget.value)}>
            <option value="">the service's own</option>
            {interpreters.map((one) => <option key={one}>{one}</option>)}
          </select></label>
        </p>
      )}
      <button type="submit" class="primary" disabled={busy}>{busy ? "Starting …" : `Start ${kind.kind}`}</button>
      {problem && <Refusal problem={problem} again={(more) => void start(more)} />}
    </form>
  );
}

function GpuChoice({ live, chosen, choose }: { live: Live; chosen: string[]; choose: (gpus: string[]) => void }) {
  const usable = live.devices.filter((device) => device.uuid && device.responding);
  if (!usable.length) return null;
  return (
    <fieldset>
      <legend>GPUs (none chosen: gpudiag decides)</legend>
      {usable.map((device) => {
        const uuid = device.uuid!;
        const on = chosen.includes(uuid);
        return (
          <label class="check" key={uuid}>
            <input type="checkbox" checked={on} onChange={() => choose(on ? chosen.filter((one) => one !== uuid) : [...chosen, uuid])} />
            {gpuName(device)}{device.processes?.length || device.signs_of_use?.length ? " (in use)" : ""}
          </label>
        );
      })}
    </fieldset>
  );
}

export function Refusal({ problem, again }: { problem: Problem; again: (more: Record<string, boolean>) => void }) {
  const holder = typeof problem.body.held_by === "string" ? problem.body.held_by : null;
  return (
    <Notice tone="fail" title={problem.detail} announce={problem.detail}>
      {problem.hint}
      {problem.code === "run.conflict" && (
        <p class="actions">
          {holder && <a href={link("runs", holder)}>The run that holds them</a>}
          <button type="button" onClick={() => again({ queue: true })}>Start when it is done</button>
        </p>
      )}
      {problem.code === "run.gpus_busy" && <p class="actions"><button type="button" onClick={() => again({ force: true })}>Start all the same, and disturb them</button></p>}
    </Notice>
  );
}
