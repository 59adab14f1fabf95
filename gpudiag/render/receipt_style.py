"""The style of a receipt's page: on a wide screen, on a phone, and on paper."""

CSS = """
:root {
  color-scheme: light; --ink: #16202a; --soft: #55606b; --rule: #cfd6dc;
  --fail: #b3261e; --warn: #8a5a00; --pass: #1b6b3a;
}
* { box-sizing: border-box; }
body {
  margin: 0; color: var(--ink); background: #fff;
  font: 14px/1.45 system-ui, "Segoe UI", "Liberation Sans", Arial, sans-serif;
}
main { max-width: 1120px; margin: 0 auto; padding: 24px 20px 48px; }
header { border-left: 8px solid var(--soft); padding: 4px 0 4px 16px; }
header.fail { border-color: var(--fail); }
header.warn { border-color: var(--warn); }
header.pass { border-color: var(--pass); }
header.error { border-color: var(--fail); }
h1 { font-size: 26px; margin: 0 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 28px 0 6px; border-bottom: 1px solid var(--rule); padding-bottom: 3px; }
h3 { font-size: 14px; margin: 12px 0 4px; }
p, ul { margin: 4px 0; }
.kind { text-transform: uppercase; letter-spacing: .08em; font-size: 11px; color: var(--soft); margin: 0; }
.note, .missing, figcaption { color: var(--soft); font-size: 12.5px; }
.simulated { color: var(--warn); font-weight: 600; }
.fail, .error { color: var(--fail); font-weight: 700; }
.warn { color: var(--warn); font-weight: 700; }
span.pass { color: var(--pass); font-weight: 700; }
td.pass { color: inherit; font-weight: 400; }
header { color: var(--ink) !important; font-weight: 400 !important; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 6px 0 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
td .missing { font-size: inherit; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 6px 0; font-size: 12.5px; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 1px solid var(--rule); }
th, td { padding: 3px 8px 3px 0; vertical-align: top; }
td { border-bottom: 1px solid #eef1f3; }
.numbers td:not(:first-child):not(:last-child) { font-variant-numeric: tabular-nums; white-space: nowrap; }
.skipped, .checks { table-layout: fixed; min-width: 560px; }
.skipped th:nth-child(1), .checks th:nth-child(1) { width: 4.2em; }
.skipped th:nth-child(2) { width: 42%; }
.checks th:nth-child(2) { width: 17em; }
.skipped td:nth-child(2) { overflow-wrap: anywhere; }
.parts td, .checks td:nth-child(2) { overflow-wrap: anywhere; }
.numbers td:first-child { min-width: 11em; }
.numbers td:last-child { min-width: 10em; }
.finding { border-left: 3px solid var(--rule); padding-left: 12px; margin: 10px 0; break-inside: avoid; }
code, pre { font: 12px/1.4 ui-monospace, "Liberation Mono", Consolas, monospace; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; background: #f4f6f8; padding: 8px 10px; }
figure { margin: 10px 0; break-inside: avoid; }
svg { width: 100%; max-width: 760px; height: auto; }
svg text { font-size: 9px; fill: var(--soft); }
polyline { fill: none; stroke-width: 1.2; } .axis { fill: none; stroke: var(--rule); }
.line0 { stroke: #0b5fa5; }
.line1 { stroke: #b3261e; }
.line2 { stroke: #1b6b3a; }
.line3 { stroke: #8a5a00; }
.line4 { stroke: #6a3d9a; }
.line5 { stroke: #16202a; }
.line6 { stroke: #0c7c83; }
.line7 { stroke: #c2417c; }
@media (max-width: 640px) {
  .parts { min-width: 760px; }
  main { padding: 14px 12px 32px; }
  h1 { font-size: 21px; }
}
@media print {
  @page { size: A4; margin: 14mm 12mm; }
  body { font-size: 9.5pt; }
  main { max-width: none; padding: 0; }
  table { font-size: 7.6pt; }
  .wide { overflow: visible; }
  h2 { font-size: 12pt; margin-top: 14pt; break-after: avoid; }
  h3 { break-after: avoid; }
  tr, .finding, figure { break-inside: avoid; }
  .skipped, .checks { min-width: 0; } .checks th:nth-child(2) { width: 15em; }
  thead { display: table-header-group; }
  th, td { padding: 1.5pt 4pt 1.5pt 0; }
  .numbers td:first-child, .numbers td:last-child { min-width: 0; }
  code, pre { font-size: 7.6pt; }
}
"""
