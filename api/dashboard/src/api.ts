// Requests to the service, relative to the page: it may stand behind a path prefix.

const BASE = new URL(".", document.baseURI);
const TIME_LIMIT_MS = 15_000;

// What the service reported as wrong (RFC 9457), or why it could not be asked.
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly detail: string,
    readonly hint: string,
    readonly body: Record<string, unknown> = {},
  ) {
    super(detail);
  }
}

export const address = (path: string): string => new URL(`api/v1/${path}`, BASE).href;

export async function read<T>(path: string): Promise<T> {
  return (await (await ask(path, {})).json()) as T;
}

export async function readText(path: string): Promise<string> {
  return (await ask(path, {})).text();
}

export async function send<T>(path: string, body: unknown, headers: Record<string, string> = {}): Promise<T> {
  const request = { method: "POST", headers: { "Content-Type": "application/json", ...headers }, body: JSON.stringify(body) };
  const response = await ask(path, request);
  return (response.status === 204 ? null : await response.json()) as T;
}

async function ask(path: string, request: RequestInit): Promise<Response> {
  let response: Response;
  try {
    const signal = AbortSignal.timeout(TIME_LIMIT_MS);
    response = await fetch(address(path), { ...request, signal, credentials: "same-origin" });
  } catch (error) {
    const late = error instanceof DOMException && error.name === "TimeoutError";
    throw new Problem(
      0,
      late ? "timed_out" : "unreachable",
      late ? "gpudiag serve did not answer within 15 s." : "gpudiag serve cannot be reached.",
      "Is it still running? Start it again with: gpudiag serve",
    );
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

async function problemOf(response: Response): Promise<Problem> {
  const body = (await response.json().catch(() => ({}))) as Record<string, unknown>;
  const text = (name: string): string => (typeof body[name] === "string" ? (body[name] as string) : "");
  const detail = text("detail") || text("title") || `The service answered ${response.status}.`;
  return new Problem(response.status, text("code"), detail, text("hint"), body);
}

export function asProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  return new Problem(0, "page", `The page failed: ${String(error)}`, "Reload it; if it fails again, please report it.");
}
