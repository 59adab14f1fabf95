// The views of runs, with their style: one file, loaded when one of them is opened.

import { addStyle } from "../parts/style_sheet";
import style from "../styles/runs.css?inline";

addStyle(style);

export { RunView } from "./run";
export { RunsView } from "./runs";
