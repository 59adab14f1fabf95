// Every view but the first screen: loaded when one of them is opened, so that the first screen stays small.

export { savePicture } from "../charts/picture";
export { CheckView } from "./checks";
export { DeviceView } from "./device";
export { ExplainView } from "./explain";
export { HistoryView } from "./history";
export { ProcessView } from "./processes";
export { RunView } from "./run";
export { RunsView } from "./runs";
export { SourceView } from "./sources";
export { TopologyView } from "./topology";
