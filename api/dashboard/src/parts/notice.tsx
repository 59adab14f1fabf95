// What the page says where there is nothing to show, or where what it shows is not current: what it is, and what to do.

import type { ComponentChildren } from "preact";
import type { Problem } from "../api";

interface NoticeProps {
  tone?: "quiet" | "warn" | "fail";
  title: string;
  children?: ComponentChildren;
  live?: boolean; // it appears while someone reads: tell a screen reader
}

export function Notice({ tone = "quiet", title, children, live = false }: NoticeProps) {
  return (
    <div class={`notice ${tone}`} {...(live ? { role: tone === "fail" ? "alert" : "status" } : {})}>
      <strong>{title}</strong>
      {children && <div>{children}</div>}
    </div>
  );
}

export function ProblemNotice({ problem }: { problem: Problem }) {
  return (
    <Notice tone="fail" title={problem.detail} live>
      {problem.hint}
    </Notice>
  );
}

export const Loading = ({ what }: { what: string }) => <p class="loading" role="status">Reading {what} …</p>;

export const Command = ({ children }: { children: ComponentChildren }) => <code class="command">{children}</code>;
