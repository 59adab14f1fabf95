// What the page shows where there is nothing to show, or where what it shows is not current: what it is, and what to do.

import type { ComponentChildren } from "preact";
import type { Problem } from "../api";
import { Prose } from "./prose";

interface NoticeProps {
  tone?: "quiet" | "warn" | "fail";
  title: string;
  children?: ComponentChildren;
  announce?: string; // read by a screen reader once, as the notice appears: its own text may change every second
}

export function Notice({ tone = "quiet", title, children, announce }: NoticeProps) {
  return (
    <div class={`notice ${tone}`}>
      {announce && <span class="unseen" role={tone === "fail" ? "alert" : "status"}>{announce}</span>}
      <strong><Prose text={title} /></strong>
      {children && <div>{children}</div>}
    </div>
  );
}

export function ProblemNotice({ problem }: { problem: Problem }) {
  return (
    <Notice tone="fail" title={problem.detail} announce={problem.detail}>
      {problem.hint && <Prose text={problem.hint} />}
    </Notice>
  );
}

export const Loading = ({ what }: { what: string }) => <p class="loading" role="status">Reading {what} …</p>;

export const Command = ({ children }: { children: ComponentChildren }) => <code class="command">{children}</code>;
