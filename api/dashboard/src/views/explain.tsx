// What a finding, a check or an Xid means, where its limit comes from, and what to do.

import { useLoaded } from "../load";
import { Prose } from "../parts/prose";
import { Command, Loading, ProblemNotice } from "../parts/notice";
import { link } from "../route";

interface Explanation {
  topic: string;
  title: string;
  meaning: string;
  facts: string[];
  reads: string;
  limit: string;
  remedy: string;
  look_also: string[];
  proof: string;
  source: string;
}

const PARTS: [keyof Explanation, string][] = [
  ["meaning", "What it means"],
  ["remedy", "What to do"],
  ["reads", "What is read"],
  ["limit", "Limit"],
  ["proof", "What proves it"],
  ["source", "Source"],
];

// A finding's code, a check or an Xid is explained here too; anything else is a command.
const TOPIC = /^(s?xid) (\d+)$|^[a-z_]+\.[a-z_]+$/;

function Also({ text }: { text: string }) {
  return TOPIC.test(text) ? <a href={link("explain", text.replace(" ", "-"))}>{text}</a> : <Command>{text}</Command>;
}

export function ExplainView({ topic }: { topic: string }) {
  const { value, problem } = useLoaded<Explanation & { explanation?: Explanation }>(`explain/${encodeURIComponent(topic)}`);
  const explanation = value?.explanation ?? value;
  return (
    <>
      <h1>{explanation?.topic ?? topic} <small>{explanation?.title}</small></h1>
      {problem && <ProblemNotice problem={problem} />}
      {!value && !problem && <Loading what="the explanation" />}
      {explanation && (
        <article class="panel prose">
          {explanation.facts.length > 0 && <ul class="plain">{explanation.facts.map((fact) => <li key={fact}><Prose text={fact} /></li>)}</ul>}
          {PARTS.filter(([part]) => explanation[part]).map(([part, title]) => (
            <section key={part}><h2>{title}</h2><p><Prose text={String(explanation[part])} /></p></section>
          ))}
          {explanation.look_also.length > 0 && (
            <section>
              <h2>Look also</h2>
              <ul class="plain">{explanation.look_also.map((also) => <li key={also}><Also text={also} /></li>)}</ul>
            </section>
          )}
        </article>
      )}
      <p><a href="#/" onClick={(event) => { event.preventDefault(); history.back(); }}>Back</a></p>
    </>
  );
}
