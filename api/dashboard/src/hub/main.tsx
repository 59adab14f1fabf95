import { render } from "preact";
import { start } from "../store";
import "../styles/page.css";
import "../styles/parts.css";
import "../styles/hub.css";
import { applyTheme } from "../theme";
import { HubApp } from "./app";

applyTheme();
void start();
render(<HubApp />, document.getElementById("app")!);
