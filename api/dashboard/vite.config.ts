import { defineConfig, type Plugin } from "vite";

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
  plugins: mode === "recorded" ? [withoutModules()] : [],
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
