import { render } from "preact";
import { App } from "./app";
import { start } from "./store";
import "./styles/page.css";
import "./styles/parts.css";
import "./styles/charts.css";
import { applyTheme } from "./theme";

applyTheme();
void start();
render(<App />, document.getElementById("app")!);
