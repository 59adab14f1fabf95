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

// `base: "./"` makes every address relative, so that the page works under any path prefix.
// The licences of what is bundled go beside it, as their terms ask.
// A hub has a page of its own (`--mode hub`), built after the machine's: in one build both would share a third file.
export default defineConfig(({ mode }) => ({
  base: "./",
  plugins: [lessOfUplot()],
  build: {
    outDir: process.env.GPUDIAG_STATIC ?? "../gpudiag_api/static",
    emptyOutDir: mode !== "hub",
    rollupOptions: { input: mode === "hub" ? "hub.html" : "index.html" },
    target: "es2023",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    license: mode === "hub" ? false : { fileName: "licenses.md" },
  },
}));
