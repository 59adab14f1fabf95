// What stands between the numbers and the truth: the connection, the sampler, simulation. Each names what to do.

import type { ComponentChildren } from "preact";
import { clock, duration, seconds } from "../format";
import { useTicks } from "../load";
import type { Live, SamplerStatus } from "../model";
import { link } from "../route";
import { serviceNow, useStore } from "../store";
import { Command, Notice } from "./notice";

export function Banners({ live }: { live: Live }) {
  useTicks(1);
  const connection = useStore((state) => state.connection);
  const sampler = live.sampler;
  const age = serviceNow() - seconds(live.at);
  const lost = connection === "lost";
  return (
    <div class="banners">
      {live.simulated && (
        <Notice title={`Simulated GPUs: ${live.simulated}`}>No real GPU was read; every number on this page is made up.</Notice>
      )}
      {lost || age > Math.max(sampler.stale_after_seconds, 2 * sampler.interval_seconds) ? (
        <Notice tone="fail" title={`No news for ${duration(Math.round(age))}: these numbers are from ${clock(seconds(live.at))}.`} announce="These numbers are old.">
          {lost ? "gpudiag serve cannot be reached, and the page keeps trying. " : "gpudiag serve sends nothing. "}
          Is it still running on {live.host}? <Command>gpudiag serve</Command> starts it; <Command>gpudiag</Command> answers without it.
        </Notice>
      ) : (
        <SamplerNotice sampler={sampler} empty={live.devices.length === 0} />
      )}
    </div>
  );
}

const ANNOUNCED: Partial<Record<SamplerStatus["state"], string>> = {
  failed: "NVML cannot be asked.",
  paused: "Sampling is paused.",
};

function SamplerNotice({ sampler, empty }: { sampler: SamplerStatus; empty: boolean }) {
  const silent = sampler.last_good_at ? serviceNow() - seconds(sampler.last_good_at) : null;
  const age = silent === null ? null : duration(Math.round(silent));
  const stale = silent === null || silent > sampler.stale_after_seconds;
  const old = !stale || empty ? "" : age ? `The numbers below are ${age} old. ` : "There are no numbers yet. ";
  const banner = (tone: "quiet" | "warn" | "fail", title: string, body: ComponentChildren, announce = ANNOUNCED[sampler.state] ?? "") => (
    <Notice tone={tone} title={title} announce={announce}>{body}</Notice>
  );
  switch (sampler.state) {
    case "wedged": {
      if (sampler.wedged_call === null) {
        const silent = "gpudiag's own process that reads the GPUs is silent.";
        return banner("fail", `${silent} ${sampler.reason ?? ""}`, (
          <>
            {old}gpudiag replaces that process by itself. If this stays, the machine has no processor time left for it: look at <Command>top</Command> and <Command>dmesg</Command>.
          </>
        ), silent);
      }
      const hangs = stale ? "The driver does not answer." : "A call into the driver hangs.";
      return banner("fail", `${hangs} ${sampler.reason ?? `${sampler.wedged_call} has not come back.`}`, (
        <>
          {stale ? old : "The other GPUs' numbers are current. "}
          gpudiag has given that call up and asks again. Look at the kernel log, <Command>dmesg | grep -i -e NVRM -e Xid</Command>: a GPU that stays
          silent needs a reset, or the machine a restart. <a href={link("explain", "gpu.hung")}>What this means</a>
        </>
      ), hangs);
    }
    case "failed":
      return empty ? null : banner("fail", sampler.reason ? `NVML cannot be asked: ${sampler.reason}` : "NVML cannot be asked.", <>{old}The page recovers by itself once the driver answers. <a href={link("sources")}>What each source reports</a></>);
    case "paused":
      return banner("quiet", "Sampling is paused while a bandwidth test of ours runs.", <>{old}It continues when the test ends. <a href={link("runs")}>Runs</a></>);
    case "off":
      return banner("quiet", "The GPUs are not polled: the service was started with --no-poll.", <>{old}Restart it without <Command>--no-poll</Command> for live numbers.</>);
    case "starting":
      return banner("quiet", "The first reading is on its way.", "It takes a few seconds where the driver must wake the GPUs.");
    default:
      return null;
  }
}
