// The unit tests that start no process, under CPython compiled to WebAssembly: for a Python that cannot be had otherwise.
//
//   npm install --prefix DIR pyodide@314.0.7
//   pip install --target DIR/site --python-version 3.13 --only-binary :all: \
//       click pytest hypothesis==6.140.0 attrs markdown-it-py
//   node tools/under_wasm.mjs DIR tests/unit/model tests/unit/test_compat.py ...
//
// First every source file is compiled, with warnings as errors.
import { pathToFileURL } from "node:url";

const [folder, ...tests] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${folder}/node_modules/pyodide/pyodide.mjs`));
const python = await loadPyodide();
for (const [place, root] of [["/repo", process.cwd()], ["/site", `${folder}/site`]]) {
  python.FS.mkdir(place);
  python.FS.mount(python.FS.filesystems.NODEFS, { root }, place);
}
python.globals.set("tests", python.toPy(tests));
process.exitCode = python.runPython(`
import os, pathlib, sys, warnings
sys.dont_write_bytecode = True
sys.path[:0] = ["/repo", "/repo/api"]
sys.path.append("/site")
os.chdir("/repo")
warnings.simplefilter("error")
files = [path for name in ("gpudiag", "api/gpudiag_api", "tools") for path in pathlib.Path(name).rglob("*.py")]
for path in files:
    compile(path.read_text(), str(path), "exec")
print(sys.version.split()[0], len(files), "files compile without a warning")
warnings.resetwarnings()
marks = "\\n".join(f"  {name}: m" for name in ("slow", "ranks", "frameworks", "stand_in", "gpu", "browser"))
options = "--import-mode=importlib -p no:cacheprovider -p no:hypothesispytest -p no:logging"
pathlib.Path("/tmp/p.ini").write_text(f"[pytest]\\naddopts = {options}\\nmarkers =\\n{marks}\\nfilterwarnings =\\n  error\\n")
import pytest
int(pytest.main(["-q", "--no-header", "-c", "/tmp/p.ini", "--rootdir", "/repo", *tests]))
`);
