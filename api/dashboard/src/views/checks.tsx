// Every finding with its evidence, then every check with its outcome: also those that could not look, and why.

import { useState } from "preact/hooks";
import { useLoaded } from "../load";
import type { Finding, Live, Outcome } from "../model";
import { Filter } from "../parts/filter";
import { isAbout, JoinedList, useFindings } from "../parts/findings";
import { Command, Loading, ProblemNotice } from "../parts/notice";
import { Status } from "../parts/status";
import { Table } from "../parts/table";
import { Verdict } from "../parts/verdict";
import { link } from "../route";

export interface CheckResult {
  check: string;
  outcome: Outcome;
  findings: Finding[];
  reason: string | null;
}
interface Report {
  verdict: Outcome;
  results: CheckResult[];
}

const WORST_FIRST: Outcome[] = ["fail", "error", "warn", "pass", "skip"];

export function CheckView({ live }: { live: Live }) {
  const { value, problem } = useLoaded<Report>("checks", live.findings_version);
  const [query, setQuery] = useState("");
  const findings = useFindings(live).filter((finding) => isAbout(finding, query));
  return (
    <>
      <h1>Checks</h1>
      <Verdict live={live} />
      {live.finding_count > 0 && (
        <section>
          <div class="tools"><h2>Findings</h2><Filter label="Find findings" placeholder="GPU, code, words  ( / )" query={query} onQuery={setQuery} /></div>
          {findings.length ? <JoinedList joined={findings} /> : <p class="empty">No finding fits “{query}”.</p>}
        </section>
      )}
      {problem && <ProblemNotice problem={problem} />}
      {!value && !problem && <Loading what="the checks" />}
      {value && <CheckTable results={value.results} />}
      <p>These are the checks that disturb nothing. <Command>gpudiag preflight</Command> also measures: <a href={link("runs")}>start one</a>.</p>
    </>
  );
}

export function CheckTable({ results }: { results: CheckResult[] }) {
  const [all, setAll] = useState(false);
  const count = (outcome: Outcome): number => results.filter((result) => result.outcome === outcome).length;
  const sorted = [...results].sort((a, b) => WORST_FIRST.indexOf(a.outcome) - WORST_FIRST.indexOf(b.outcome));
  const shown = all ? sorted : sorted.filter((result) => result.outcome !== "skip");
  return (
    <section>
      <h2>{results.length} checks</h2>
      <p class="counts">
        {WORST_FIRST.filter(count).map((outcome) => <Status key={outcome} state={outcome} text={`${count(outcome)} ${outcome}`} />)}
        {count("skip") > 0 && <label><input type="checkbox" checked={all} onChange={() => setAll(!all)} /> show what was skipped</label>}
      </p>
      <Table caption="Checks" columns={["Check", "Outcome", "Why"]} hideCaption>
        {shown.map((result) => (
          <tr key={result.check}>
            <th scope="row"><a href={link("explain", result.check)}>{result.check.split(/(?<=[._])/).map((part) => <>{part}<wbr /></>)}</a></th>
            <td><Status state={result.outcome} /></td>
            <td class="wide">{[...result.findings.map((finding) => finding.message), result.reason].filter(Boolean).join("; ")}</td>
          </tr>
        ))}
      </Table>
    </section>
  );
}
