// The shell: where we are, which views there are, what is wrong with the data, and the view itself.

import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import type { Live } from "./model";
import { Banners } from "./parts/banners";
import { find } from "./parts/filter";
import { Loading, Notice } from "./parts/notice";
import { Connection, Help, jumpToMain, ThemeChoice, useKeys, useRoute, Waiting } from "./parts/shell";
import { Outdated } from "./parts/status";
import { link, type Route } from "./route";
import { outdatedSince, state, useStore } from "./store";
import { LogIn } from "./views/log_in";
import { Overview } from "./views/overview";
import type * as More from "./views/more";

const VIEWS: [view: string, title: string][] = [
  ["overview", "GPUs"],
  ["processes", "Processes"],
  ["checks", "Checks"],
  ["history", "History"],
  ["topology", "Topology"],
  ["sources", "Sources"],
  ["runs", "Runs"],
];

// Since when the numbers are old; the whole page is dimmed then, whichever view is open.
function useOutdated(): number | null {
  const since = useStore(outdatedSince);
  const [, redraw] = useState(since);
  useEffect(() => {
    // They grow old while nothing happens; only then is anything drawn again.
    const timer = setInterval(() => !document.hidden && redraw(outdatedSince(state)), 1000);
    return () => clearInterval(timer);
  }, []);
  useLayoutEffect(() => void document.documentElement.toggleAttribute("data-outdated", since !== null), [since !== null]);
  return since;
}

export function App() {
  const live = useStore((state) => state.live);
  const session = useStore((state) => state.session);
  const outdated = useOutdated();
  const route = useRoute();
  const [view] = useState({ last: route.view + route.subject });
  const [helps, setHelps] = useState(false);
  useKeys((key) => {
    if (key === "?") setHelps(true);
    else if (key === "/") find();
    else if (VIEWS[Number(key) - 1]) location.hash = link(VIEWS[Number(key) - 1]![0]);
  });
  const locked = session !== null && session.token_required && session.role === null;
  useEffect(() => {
    document.title = [live?.host, route.view === "overview" ? null : route.view, "gpudiag"].filter(Boolean).join(" · ");
    const here = route.view + route.subject;
    if (view.last === here) return;
    view.last = here;
    document.getElementById("main")?.focus();
    scrollTo(0, 0);
  });
  return (
    <>
      <a class="skip" href="#main" onClick={jumpToMain}>Skip to content</a>
      <Header live={live} current={route.view} onHelp={() => setHelps(true)} />
      {helps && <Help views={VIEWS.map(([, title]) => title)} onClose={() => setHelps(false)} />}
      <main id="main" tabIndex={-1}>
        {locked ? <LogIn /> : live ? (
          <>
            <Banners live={live} />
            <div class="view">
              <Outdated.Provider value={outdated}><View route={route} live={live} /></Outdated.Provider>
            </div>
          </>
        ) : <Waiting what="the GPUs" />}
      </main>
    </>
  );
}

function Header({ live, current, onHelp }: { live: Live | null; current: string; onHelp: () => void }) {
  return (
    <header>
      <p class="brand"><a href={link("overview")}>gpudiag</a> <span class="host">{live?.host}</span></p>
      <nav aria-label="Views">
        <ul>
          {VIEWS.map(([view, title], place) => (
            <li key={view}>
              <a href={link(view)} aria-keyshortcuts={String(place + 1)} {...(current === view ? { "aria-current": "page" } : {})}>{title}</a>
            </li>
          ))}
        </ul>
      </nav>
      <p class="facts">
        {live && <Connection at={live.at} />}
        <ThemeChoice />
        <button type="button" class="small" aria-label="Help" aria-keyshortcuts="?" onClick={onHelp}>?</button>
      </p>
    </header>
  );
}

let more: typeof More | null = null;

function View({ route, live }: { route: Route; live: Live }) {
  const first = route.view === "overview";
  const [failed, setFailed] = useState(false);
  const [, redraw] = useState(0);
  useEffect(() => {
    if (first || more) return;
    import("./views/more").then(
      (views) => {
        more = views;
        redraw(1);
      },
      () => setFailed(true),
    );
  }, [first]);
  if (first) return <Overview live={live} route={route} />;
  if (failed) {
    return <Notice tone="fail" title="This view could not be loaded." announce="This view could not be loaded.">gpudiag serve may have been updated or stopped: reload the page.</Notice>;
  }
  return more ? <OtherView views={more} route={route} live={live} /> : <Loading what="the view" />;
}

function OtherView({ views, route, live }: { views: typeof More; route: Route; live: Live }) {
  const { subject } = route;
  switch (route.view) {
    case "gpu":
      return <views.DeviceView key={subject} subject={subject} live={live} />;
    case "processes":
      return <views.ProcessView live={live} />;
    case "checks":
      return <views.CheckView live={live} />;
    case "history":
      return <views.HistoryView settings={route.settings} live={live} />;
    case "topology":
      return <views.TopologyView />;
    case "sources":
      return <views.SourceView live={live} />;
    case "runs":
      return subject ? <views.RunView key={subject} id={subject} /> : <views.RunsView live={live} />;
    case "explain":
      return <views.ExplainView topic={subject} />;
    default:
      return <><h1>No such view</h1><p class="empty">There is no view called {route.view}. <a href={link("overview")}>The GPUs</a></p></>;
  }
}
