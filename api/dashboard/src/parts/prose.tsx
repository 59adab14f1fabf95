// A sentence of gpudiag's; what stands in backquotes is a command.

import { degrees } from "../format";

export function Prose({ text }: { text: string }) {
  return <>{text.split("`").map((part, position) => (position % 2 ? <code class="command" key={position}>{part}</code> : degrees(part)))}</>;
}
