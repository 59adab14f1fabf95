import { defineConfig, type Plugin } from "vite";

// uPlot hangs its other kinds of lines, and what plugins may want, on its constructor, where no bundler can leave
// them out. The page draws straight lines only.
const UNUSED = [
  "(paths.stepped = stepped);",
  "(paths.bars    = bars);",
  "(paths.spline  = monotoneCubic);",
  "uPlot.join = join;",
  "uPlot.tzDate  = tzDate;",
];

function lessOfUplot(): Plugin {
  return {
    name: "less-of-uplot",
    transform(code, id) {
      if (!id.endsWith("uPlot.esm.js")) return null;
      const absent = UNUSED.filter((line) => !code.includes(line));
      if (absent.length) throw new Error(`uPlot has changed: ${absent.join(" ")} is no longer in it`);
      return { code: UNUSED.reduce((rest, line) => rest.replace(line, ""), code), map: null };
    },
  };
}

// A page on a recording (`--mode recorded`) is opened from a folder too, where browsers load neither modules nor what
// asks for another origin's leave: one script of the old kind, after the elements that it needs.
function withoutModules(): Plugin {
  return {
    name: "without-modules",
    transformIndexHtml: { order: "post", handler: (html) => html.replace('<script type="module"', "<script defer").replaceAll(" crossorigin", "") },
  };
}

// `base: "./"` makes every address relative, so that the page works under any path prefix.
// The licences of what is bundled go beside it, as their terms ask.
// A hub has a page of its own (`--mode hub`), and so has a recording; that of a hub is built after the machine's: in one build both would share a third file.
const INPUTS: Record<string, string> = { hub: "hub.html", recorded: "recorded.html" };

export default defineConfig(({ mode }) => ({
  base: "./",
  plugins: mode === "recorded" ? [lessOfUplot(), withoutModules()] : [lessOfUplot()],
  build: {
    outDir: process.env.GPUDIAG_STATIC ?? "../gpudiag_api/static",
    emptyOutDir: mode !== "hub",
    rollupOptions: { input: INPUTS[mode] ?? "index.html", ...(mode === "recorded" ? { output: { format: "iife" as const, codeSplitting: false } } : {}) },
    target: "es2023",
    modulePreload: mode === "recorded" ? false : { polyfill: false },
    assetsInlineLimit: 0,
    license: mode === "hub" ? false : { fileName: "licenses.md" },
  },
}));
