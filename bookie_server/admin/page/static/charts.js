// SPDX-License-Identifier: Apache-2.0
// Plots as SVG, without a library. Each has a label for screen readers.

import { el, svg } from "./dom.js";
import { share } from "./words.js";

const last = (values) => values.findLast((value) => value !== null) ?? null;

/** Return the label of a series: its current and its largest value. */
function inWords(name, values, words) {
  const known = values.filter((value) => value !== null);
  return known.length ? `${name}: now ${words(values.at(-1))}, at most ${words(Math.max(...known))}` : `${name}: not known yet`;
}

/** Return the runs of known values of a series as points in a box, whose right edge is the present. */
function runs(values, most, width, height, steps) {
  const found = [];
  let run = [];
  values.forEach((value, at) => {
    if (value === null) { run = []; return; }
    if (!run.length) found.push(run);
    const x = width - ((values.length - 1 - at) * width) / steps;
    run.push(`${x.toFixed(1)},${(height - (value / most) * height).toFixed(1)}`);
  });
  return found;
}

/** A line as small as a word, with the value of now beside it. */
export function spark(name, values, words) {
  const [width, height] = [84, 24];
  const most = Math.max(1e-9, ...values.filter((value) => value !== null));
  const drawn = runs(values, most, width - 4, height - 4, Math.max(24, values.length - 1)).map((run) => run.length > 1
    ? svg("polyline", { points: run.join(" ") })
    : svg("circle", { cx: run[0].split(",")[0], cy: run[0].split(",")[1], r: 1.5 }));
  const label = inWords(name, values, words);
  return el("span", { class: "spark" },
    svg("svg", { width, height, viewBox: `-2 -2 ${width} ${height}`, role: "img", "aria-label": label },
      svg("title", {}, label), svg("line", { class: "base", x1: 0, x2: width - 4, y1: height - 4, y2: height - 4 }), drawn),
    el("span", {}, words(last(values))));
}

/** A chart of one or two series over the last minutes, with its scale. */
export function chart(name, series, seconds, words) {
  const [width, height] = [320, 90];
  const all = series.flatMap(([, values]) => values).filter((value) => value !== null);
  const most = Math.max(1e-9, ...all);
  const steps = Math.max(12, ...series.map(([, values]) => values.length - 1));
  const minutes = Math.round(seconds.reduce((sum, each) => sum + each, 0) / 60);
  const drawn = series.map(([, values], at) => runs(values, most, width, height, steps).map((run) =>
    svg("polyline", { class: at ? "second" : "first", points: run.length > 1 ? run.join(" ") : `${run[0]} ${run[0]}` })));
  const label = series.map(([kind, values]) => inWords(kind || name, values, words)).join("; ");
  return el("figure", {},
    el("figcaption", {}, el("b", {}, name), " ", series.map(([kind, values], at) =>
      el("span", { class: at ? "second" : "first" }, `${kind} ${words(last(values))} `))),
    svg("svg", { viewBox: `0 -2 ${width} ${height + 4}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
      svg("title", {}, label), svg("line", { class: "base", x1: 0, x2: width, y1: height, y2: height }),
      svg("line", { class: "base", x1: 0, x2: width, y1: 0, y2: 0 }), drawn),
    el("p", { class: "scale" }, el("span", {}, minutes ? `${minutes} min ago` : "a moment ago"),
      el("span", {}, `top: ${words(all.length ? Math.max(...all) : null)}`), el("span", {}, "now")));
}

/** Draw how full a disk is. */
export function disk(used, text) {
  const rank = used === null ? "none" : used >= 0.95 ? "bad" : used >= 0.85 ? "warn" : "good";
  return el("span", { class: "disk" },
    svg("svg", { class: rank, viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": `${share(used)} used` },
      svg("rect", { class: "all", width: 100, height: 8 }), svg("rect", { class: "used", width: (used ?? 0) * 100, height: 8 })),
    el("span", {}, text));
}

/**
 * Draw which bookie has which entries of a ledger: a row for each bookie, a column for each fragment. `answers` tells
 * whether a bookie is running, `lacks` whether copies on it are marked as missing.
 */
export function fragmentsDrawn(ledger, answers, lacks) {
  const fragments = ledger.fragments;
  const end = ledger.lastEntryId === null ? null : ledger.lastEntryId + 1;
  const sizes = fragments.map((each, at) => Math.max(0, (fragments[at + 1]?.firstEntryId ?? end ?? each.firstEntryId + 1) - each.firstEntryId));
  const total = sizes.reduce((sum, size) => sum + size, 0) || 1;
  const least = Math.min(0.06, 1 / fragments.length / 2); // so that a short fragment is visible
  const weights = sizes.map((size) => Math.max(size / total, least));
  const sum = weights.reduce((all, weight) => all + weight, 0);
  const bookies = [...new Set(fragments.flatMap((each) => each.ensemble))];
  const rows = bookies.map((bookie) => {
    const rank = !answers(bookie) ? "away" : lacks(bookie) ? "lacks" : "there";
    let x = 0;
    const boxes = fragments.map((each, at) => {
      const [from, width] = [x, (weights[at] / sum) * 100];
      x += width;
      return each.ensemble.includes(bookie) ? box(from, width, rank) : null;
    });
    const sign = { away: "✕ ", lacks: "! ", there: "" }[rank];
    return [el("span", { class: `member ${rank}` }, sign, bookie), svg("svg", { height: 22 }, boxes)];
  });
  return el("div", { class: "fragments", "aria-hidden": "true" }, rows,
    el("span", {}, "from entry"), el("span", { class: "scale" }, ticks(fragments, weights, sum, end)));
}

function box(from, width, rank) {
  const place = { x: `${from}%`, y: 2, width: `${Math.max(0.4, width - 0.4)}%`, height: 18, rx: 2, class: rank };
  const cross = rank === "there" ? null : svg("text", { x: `${from + width / 2}%`, y: 16, "text-anchor": "middle" }, rank === "away" ? "✕" : "!");
  return [svg("rect", place), cross];
}

/** Where fragments begin, as far as there is room to say it. */
function ticks(fragments, weights, sum, end) {
  let x = 0;
  let free = 0;
  const found = fragments.map((each, at) => {
    const from = x;
    x += (weights[at] / sum) * 100;
    if (from < free || (at && from > 86)) return null; // the end stands there
    free = from + 14;
    const tick = el("span", {}, String(each.firstEntryId));
    tick.style.left = `${from}%`;
    return tick;
  });
  return [found, el("span", { class: "end" }, end === null ? "open" : String(end))];
}
