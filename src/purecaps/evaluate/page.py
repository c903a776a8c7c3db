"""The frame of the HTML report: markup and style sheet. No script, and nothing loaded from elsewhere."""

from __future__ import annotations

from string import Template

# The policy makes a browser refuse anything but what is in the file, whatever a class may be called.
PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>$title</title>
<style>
$style
</style>
</head>
<body>
<main>
<h1>$title</h1>
$body
</main>
</body>
</html>
""")

STYLE = """
:root {
  --page: #ffffff; --card: #f5f7f9; --ink: #1f2328; --soft: #57606a; --line: #d0d7de;
  --accent: #0072b2; --bar: #c44e0030; --blue: #0072b2; --orange: #c44e00; --green: #008a64;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --card: #1d2227; --ink: #e6eaee; --soft: #a3adb8; --line: #363d45;
    --accent: #6cb6ff; --bar: #e06a1c55; --blue: #4fa8e0; --orange: #f08a45; --green: #2fc295;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
}
main { max-width: 62rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 1.25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0 0 .6rem; }
section { margin-top: 2.5rem; min-width: 0; }
.pair { display: grid; gap: 0 2rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.cards { display: flex; flex-wrap: wrap; gap: .75rem; margin: 0; }
.cards div, pre { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; }
.cards div { flex: 1 1 auto; min-width: 7rem; padding: .7rem .9rem; }
.cards dt { color: var(--soft); font-size: .85rem; }
.cards dd { margin: 0; font-size: 1.35rem; font-weight: 600; line-height: 1.35; overflow-wrap: break-word; }
.cards dd small { display: block; font-size: .8rem; font-weight: 400; color: var(--soft); line-height: 1.4; }
.cards div:first-child { flex: 2 1 auto; border-color: var(--accent); }
figure { margin: 0; }
figcaption, .note { color: var(--soft); font-size: .875rem; margin: .5rem 0 0; max-width: 44rem; }
.scroll { overflow-x: auto; }
.scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit !important; }
.scroll svg { min-width: var(--least); }
.grid {
  display: grid; gap: 1rem .75rem; grid-template-columns: repeat(auto-fill, minmax(6.25rem, 1fr));
  margin: 0; padding: 0; list-style: none;
}
.grid li { text-align: center; font-size: .9rem; line-height: 1.3; overflow-wrap: anywhere; }
.grid img { display: block; width: 100%; image-rendering: pixelated; border: 1px solid var(--line);
  border-radius: .25rem; margin-bottom: .3rem; }
.grid small { display: block; color: var(--soft); font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td {
  text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line);
}
thead th { color: var(--soft); font-weight: 600; }
tbody th { font-weight: 400; }
.numbers { width: 100%; max-width: 44rem; }
.numbers td.n, .numbers th.n { text-align: right; padding-right: .6rem; }
.numbers td:last-child, .numbers th:last-child { padding-left: 1rem; }
.bar { background: linear-gradient(90deg, var(--bar) var(--part), transparent 0); }
.pairs th { color: var(--soft); white-space: nowrap; padding-right: 1.5rem; }
.pairs td, pre { font: .85rem/1.5 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.pairs td { overflow-wrap: anywhere; }
pre { padding: .75rem .9rem; margin: 0; overflow-x: auto; }
summary { cursor: pointer; color: var(--soft); }
details pre { margin-top: .6rem; }
@media (prefers-color-scheme: dark) { .filters image, .map image { filter: brightness(1.5); } }
@media (max-width: 30rem) { .grid { grid-template-columns: repeat(auto-fill, minmax(5rem, 1fr)); } }
@media print { main { max-width: none; padding: 0; } section { break-inside: avoid; } }
"""
