// Every view but the first screen: loaded when one of them is opened, so that the first screen stays small.

import { late } from "../parts/late";
import { addStyle } from "../parts/style_sheet";
import style from "../styles/machine.css?inline";

addStyle(style);

export { savePicture } from "../charts/picture";
export { CheckView } from "./checks";
export { DeviceView } from "./device";
export { ExplainView } from "./explain";
export { HistoryView } from "./history";
export { ProcessView } from "./processes";
export { SourceView } from "./sources";
export { TopologyView } from "./topology";

const ofRuns = () => import("./of_runs");
export const RunView = late(ofRuns, (views) => views.RunView);
export const RunsView = late(ofRuns, (views) => views.RunsView);
