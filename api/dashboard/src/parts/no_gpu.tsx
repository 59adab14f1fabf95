// No GPU to show: what each source reports about it, and what can be done here all the same.

import type { Live } from "../model";
import { link } from "../route";
import { Command } from "./notice";
import { SourceTable } from "./source_table";

export function NoGpu({ live }: { live: Live }) {
  const starting = live.sampler.state === "starting";
  return (
    <section class="panel">
      <h2>{starting ? "Looking for GPUs …" : `No GPU to show on ${live.host}`}</h2>
      {live.sources.length > 0 && <SourceTable sources={live.sources} />}
      <p>What you can do here without one:</p>
      <ul class="plain">
        <li><a href={link("runs")}>Start an nccl-test</a> on CPU ranks, or <Command>gpudiag nccl-test</Command></li>
        <li><Command>gpudiag simulate h100x8 -- gpudiag serve</Command> shows this page on simulated GPUs</li>
        <li><Command>gpudiag list --sources all</Command> shows what NVML, GPUtil, torch and the host each see</li>
      </ul>
    </section>
  );
}
