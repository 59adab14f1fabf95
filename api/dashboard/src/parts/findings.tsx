// Findings, worst first: what is wrong with what, how that is known, and what to do; what several GPUs share, once.

import type { ComponentChildren } from "preact";
import { DASH, dateClock, preciseDuration, size, words } from "../format";
import { useLoaded } from "../load";
import type { Evidence, Finding, Findings, JoinedFinding, Live, Subject } from "../model";
import { link } from "../route";
import { useStore } from "../store";
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

const alone = (finding: Finding): JoinedFinding => ({ finding, subject: subjectText(finding.subject), message: finding.message, facts: [], remedy: finding.remedy, count: 1 });

// All findings of the machine. The tick has the first few, and a number that changes with them; until the others are there, those before stay.
export function useFindings(live: Live): JoinedFinding[] {
  const known = useStore((state) => state.findings);
  const isNewest = known?.version === live.findings_version;
  const { value } = useLoaded<Findings>(isNewest || !live.finding_count ? null : "findings", live.findings_version);
  if (!live.finding_count) return [];
  return (isNewest ? known : value ?? known)?.joined ?? live.findings.map(alone);
}

// Whether each word is somewhere in the finding.
export function isAbout(joined: JoinedFinding, query: string): boolean {
  const text = `${joined.finding.code} ${joined.finding.outcome} ${joined.subject} ${joined.message} ${joined.remedy}`.toLowerCase();
  return query.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

export const FindingList = ({ findings, compact = false }: { findings: Finding[]; compact?: boolean }) => <JoinedList joined={findings.map(alone)} compact={compact} />;

export function JoinedList({ joined, compact = false }: { joined: JoinedFinding[]; compact?: boolean }) {
  return (
    <ol class="findings">
      {joined.map((one) => <li key={`${one.finding.code} ${one.subject}`}><Item joined={one} compact={compact} /></li>)}
    </ol>
  );
}

function Item({ joined, compact }: { joined: JoinedFinding; compact: boolean }) {
  const { finding, subject, message, remedy, count } = joined;
  return (
    <article class={`finding ${finding.outcome}`}>
      <p class="what">
        <Status state={finding.outcome} />
        <span><Lead subject={subject} message={message} /><Prose text={message} /></span>
      </p>
      <p class="remedy"><span class="do">What to do</span> <Prose text={remedy} /></p>
      {!compact && (count > 1 ? <Facts>{joined.facts.map((fact) => <li key={fact}><Prose text={fact} /></li>)}</Facts> : <EvidenceList evidence={finding.evidence} />)}
      <p class="about">
        <a href={link("explain", finding.code)}>{finding.code}</a>
        <span>owner {finding.owner}</span>
        {!compact && <span>severity {finding.severity}</span>}
      </p>
    </article>
  );
}

// What the sentence does not name itself: of "rank 1 on a1", before "rank 1 failed first", the host alone.
function Lead({ subject, message }: { subject: string; message: string }) {
  if (message.includes(subject)) return null;
  const [part = "", host] = subject.split(" on ");
  return <b class="subject">{host && message.includes(part) ? `${host}:` : subject} </b>;
}

const Facts = ({ children }: { children: ComponentChildren[] }) => (children.length ? <ul class="evidence" aria-label="Evidence">{children}</ul> : null);

function EvidenceList({ evidence }: { evidence: Evidence[] }) {
  return (
    <Facts>
      {evidence.map((fact) => (
        <li key={fact.name}>
          <span>{words(fact.name.replace(UNIT_IN_NAME, ""))}</span> <b><Prose text={amount(fact.value, fact.unit)} /></b>
          {fact.limit !== null && <span> (limit <Prose text={amount(fact.limit, fact.unit)} />)</span>}
          {fact.source && <span class="source"> {fact.source}</span>}
        </li>
      ))}
    </Facts>
  );
}

const UNIT_IN_NAME = /_(bytes|seconds|celsius|watts|percent|mhz)$/; // the amount has it
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d/;

function amount(value: unknown, unit: string | null): string {
  if (typeof value === "number" && unit === "B") return size(value);
  if (typeof value === "number" && unit === "s") return preciseDuration(value);
  return unit ? `${valueText(value)} ${unit}` : valueText(value);
}

function valueText(value: unknown): string {
  if (value === null || value === undefined) return DASH;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string" && TIME.test(value)) return dateClock(value);
  return typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(4))) : String(value);
}
