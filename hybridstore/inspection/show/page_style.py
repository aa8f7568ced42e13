"""Page style: the style sheet of the report and its only script. The colours follow the reader's setting, light or
dark.
"""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root {
  --ink: #1d2430; --dim: #5c6675; --paper: #fbfbfa; --card: #ffffff; --line: #dfe3e8; --bar: #2f6fb3; --bad: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e4e8ee; --dim: #9aa5b4; --paper: #14181e; --card: #1b2028; --line: #323a46; --bar: #6aa9ea; --bad: #ff8a80;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
header, main { max-width: 62rem; margin: 0 auto; padding: 1rem; }
header p, dt, th, svg text { color: var(--dim); }
h1 { font-size: 1.35rem; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 0 0 .6rem; }
h3 { font-size: .95rem; margin: 1rem 0 .3rem; overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 1rem; margin: 0 0 1rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: 0; }
dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; margin: .5rem 0; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td { font-family: ui-monospace, monospace; font-size: .85rem; overflow-wrap: anywhere; max-width: 32rem; }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.wide { overflow-x: auto; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 9px system-ui, sans-serif; fill: var(--dim); }
.bar { fill: var(--bar); }
.scale { color: var(--dim); font-size: .85rem; margin: .2rem 0 0; }
.fault { color: var(--bad); }
input { width: 100%; padding: .5rem; font: inherit; color: inherit; }
input { background: var(--paper); border: 1px solid var(--line); border-radius: 6px; }
"""

SCRIPT: Final = """
const box = document.getElementById('search');
if (box) box.addEventListener('input', () => {
  const wanted = box.value.toLowerCase();
  for (const row of document.querySelectorAll('table.searched tbody tr'))
    row.hidden = !row.textContent.toLowerCase().includes(wanted);
});
"""
