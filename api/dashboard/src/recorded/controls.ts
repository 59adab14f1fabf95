// The strip above the page: that it is a recording of a simulation, where it is, and its chapters to go to.

import { recording } from "./recording";

const place = document.getElementById("recorded")!;

function element(name: string, text: string, attributes: Record<string, string> = {}): HTMLElement {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  return made;
}

const clock = (seconds: number): string => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;

void recording.then((played) => {
  const what = element("p", "A recording of ");
  const day = new Date(1000 * played.recordedAt).toLocaleDateString(undefined, { dateStyle: "medium" });
  what.append(element("code", "gpudiag demo"), ` of ${day}: simulated GPUs, no server behind it. `);
  const where = element("span", "");
  what.append(where);
  const chapters = document.createElement("ol");
  const links = played.chapters.map(({ at, title }) => {
    const item = document.createElement("li");
    const link = element("a", title, { href: `?at=${Math.ceil(at)}` }) as HTMLAnchorElement;
    item.append(link);
    chapters.append(item);
    return { at, link };
  });
  // A link of a chapter stays in the view that is open.
  chapters.addEventListener("click", (event) => {
    const link = (event.target as Element).closest("a");
    if (link) link.hash = location.hash;
  });
  place.append(what, chapters);
  const draw = (): void => {
    const now = played.passed();
    where.textContent = now < played.seconds ? `${clock(now)} of ${clock(played.seconds)}` : "It has ended; a chapter plays it again.";
    const current = links.findLast(({ at }) => at <= now);
    for (const one of links) {
      if (one === current) one.link.setAttribute("aria-current", "step");
      else one.link.removeAttribute("aria-current");
    }
  };
  draw();
  setInterval(draw, 1000);
});
