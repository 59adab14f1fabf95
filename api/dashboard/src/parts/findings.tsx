// Findings, worst first: what is wrong with what, how that is known, and what to do.

import { DASH, words } from "../format";
import type { Evidence, Finding, Subject } from "../model";
import { link } from "../route";
import { gpuName } from "./gpu";
import { Prose } from "./prose";
import { Status } from "./status";

export function subjectText(subject: Subject): string {
  switch (subject.kind) {
    case "device":
      return gpuName(subject);
    case "rank":
      return `rank ${subject.rank} on ${subject.host}`;
    case "ranks":
      return `ranks ${subject.ranks.join(", ")} on ${subject.host}`;
    case "link":
      return subject.ends.join(" – ");
    case "source":
      return subject.source;
    case "file":
      return `${subject.path}:${subject.line}`;
    case "host":
      return subject.host;
  }
}

export function FindingList({ findings, compact = false }: { findings: Finding[]; compact?: boolean }) {
  return (
    <ol class="findings">
      {findings.map((finding, position) => (
        <li key={`${finding.code} ${position}`}>
          <FindingItem finding={finding} compact={compact} />
        </li>
      ))}
    </ol>
  );
}

function FindingItem({ finding, compact }: { finding: Finding; compact: boolean }) {
  return (
    <article class="finding">
      <p class="what">
        <Status state={finding.outcome} /> <span><Prose text={finding.message} /></span>
      </p>
      <p class="remedy"><span class="do">What to do</span> <Prose text={finding.remedy} /></p>
      {!compact && finding.evidence.length > 0 && <EvidenceList evidence={finding.evidence} />}
      <p class="about">
        <a href={link("explain", finding.code)}>{finding.code}</a>
        <span>{subjectText(finding.subject)}</span>
        <span>for {finding.owner} to act</span>
        {!compact && <span>severity {finding.severity}</span>}
      </p>
    </article>
  );
}

function EvidenceList({ evidence }: { evidence: Evidence[] }) {
  return (
    <ul class="evidence" aria-label="Evidence">
      {evidence.map((fact) => (
        <li key={fact.name}>
          <span>{words(fact.name)}</span> <b>{valueText(fact.value)}{fact.unit ? ` ${fact.unit}` : ""}</b>
          {fact.limit !== null && <span> (limit {valueText(fact.limit)})</span>}
          {fact.source && <span class="source"> {fact.source}</span>}
        </li>
      ))}
    </ul>
  );
}

function valueText(value: unknown): string {
  if (value === null || value === undefined) return DASH;
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(4))) : String(value);
}
