// The page of a machine on a recording: the page itself is as it is, and asks the network that this puts in its place.

import "./network";
import "../main";
import "./recorded.css";
import "./controls";
