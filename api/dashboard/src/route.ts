// Which view, of what, with which settings: all of it stands behind the `#`, so that a link reproduces the view.

export interface Route {
  view: string;
  subject: string;
  settings: URLSearchParams;
}

export function parseRoute(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const slash = path.indexOf("/");
  const [view, subject] = slash < 0 ? [path, ""] : [path.slice(0, slash), path.slice(slash + 1)];
  return { view: view || "overview", subject: decode(subject), settings: new URLSearchParams(query) };
}

// A link that someone broke in two must not break the page.
function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function link(view: string, subject = "", settings: Record<string, string> = {}): string {
  const query = new URLSearchParams(settings).toString();
  const path = view === "overview" ? "" : view + (subject ? `/${encodeURIComponent(subject)}` : "");
  return `#/${path}${query ? `?${query}` : ""}`;
}
