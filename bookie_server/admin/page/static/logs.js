// SPDX-License-Identifier: Apache-2.0
// Named logs: the list, page by page; and one log with its chain of ledgers and its newest entries.

import { el, facts, link, show, table } from "./dom.js";
import { bytes, count, many, moment, since } from "./words.js";

const TAIL_MS = 1000;
const ROWS_MAX = 200;

export function logs(ask) {
  const list = el("div", { "aria-live": "polite" });
  const rows = [];
  async function more(after) {
    let found;
    try {
      found = await ask(`page/logs${after === null ? "" : `?${new URLSearchParams({ after })}`}`);
    } catch (error) {
      show(list, el("p", { class: "note" }, error.message));
      return;
    }
    rows.push(...found.logs);
    show(list, rows.length ? logTable(rows) : el("p", {}, "There is no log yet. The first append to a log creates it."),
      found.after === null ? null : el("button", { id: "more", type: "button", onclick: () => more(found.after) }, `More: ${count(rows.length)} of ${count(found.logCount)} are shown`));
  }
  more(null);
  return [el("h1", {}, "Logs"),
    el("form", { role: "search", onsubmit: (event) => { event.preventDefault(); location.hash = `#/log/${encodeURIComponent(document.getElementById("f-log").value.trim())}`; } },
      el("label", { for: "f-log" }, "Name"), el("input", { id: "f-log", pattern: "[A-Za-z0-9._\\-]{1,200}", required: true }), el("button", {}, "Show")),
    list];
}

function logTable(rows) {
  return table("Logs, by name", ["Log", "Entries", "First offset", "Next offset", "Leader", "Created"], rows.map((each) => each.error
    ? [each.log, el("span", { class: "state bad" }, `✕ ${each.error}`), "–", "–", "–", "–"]
    : [link(`#/log/${encodeURIComponent(each.log)}`, each.log), each.openExtents ? `${count(each.nextOffset - each.startOffset)} and the open ledger's` : count(each.nextOffset - each.startOffset),
      count(each.startOffset), count(each.nextOffset), each.openExtents ? "● writing" : "none", moment(each.createdMs)]));
}

export function log(ask, name) {
  const earlier = [];
  let rest = null;
  let tail = null;
  const older = async () => {
    const found = await ask(`page/log?${new URLSearchParams({ name, before: rest })}`);
    earlier.unshift(...found.extents);
    rest = found.before;
    window.dispatchEvent(new Event("again"));
  };
  return async () => {
    const found = await ask(`page/log?${new URLSearchParams({ name })}`);
    if (!earlier.length) rest = found.before;
    if (found.entries) tail ??= liveTail(ask, name);
    const one = found.log;
    const first = found.extents[0]?.baseOffset ?? 0;
    const shown = [...earlier.filter((each) => each.baseOffset < first), ...found.extents];
    return [
      el("h1", {}, `Log ${name}`),
      facts([
        ["Offsets", one.nextOffset > one.startOffset ? `${count(one.startOffset)} to ${count(one.nextOffset - 1)}` : `none yet; the next is ${count(one.nextOffset)}`],
        ["Leader", one.openExtents ? `a leader is writing (${many(one.openExtents, "open ledger")})` : "none (no open ledger)"],
        ["Keeps", kept(one)],
        ["Epoch", count(one.epoch)],
        ["Created", since(one.createdMs)],
      ]),
      el("h2", {}, "Chain of ledgers"),
      rest === null ? null : el("button", { id: "older", type: "button", onclick: older }, "Earlier ledgers"),
      shown.length ? chain(shown) : el("p", {}, "The log has no ledgers."),
      el("h2", {}, "Newest entries"),
      tail ? tail.node : el("p", { class: "note" }, "The page of a bookie shows no entries. bk web does."),
    ];
  };
}

function kept(one) {
  const parts = [one.retentionMs ? `${count(one.retentionMs / 86400000)} days` : null, one.retentionBytes ? bytes(one.retentionBytes) : null];
  return parts.filter(Boolean).join(", ") || "everything";
}

function chain(extents) {
  const most = Math.max(1, ...extents.map((each) => each.bytes ?? 0));
  return el("ol", { class: "chain", "aria-label": "Ledgers of this log, the oldest first" }, extents.map((each) => {
    const open = each.state === "open";
    const item = el("li", { class: each.state }, link(`#/ledger/${each.ledgerId}`, `ledger ${each.ledgerId}`, { id: `extent-${each.ledgerId}-${each.firstEntryId}` }),
      el("span", {}, open ? "● open for writing" : `offsets ${count(each.baseOffset)} to ${count(each.baseOffset + each.entries - 1)}`),
      el("span", {}, open ? each.codec : `${bytes(each.bytes)}, ${each.codec}`));
    item.style.flexGrow = String(1 + 3 * ((each.bytes ?? 0) / most));
    return item;
  }));
}

/** Asks once a second for the next entries, while it is visible and not paused. */
function liveTail(ask, name) {
  const rows = [];
  const status = el("span", { role: "status" }, "Loading …");
  const body = el("tbody", {});
  const pause = el("button", { id: "pause", type: "button", "aria-pressed": "false", onclick: () => { paused = !paused; pause.textContent = paused ? "Continue" : "Pause"; pause.setAttribute("aria-pressed", String(paused)); } }, "Pause");
  const from = el("input", { id: "f-from", inputmode: "numeric", pattern: "[0-9]{1,19}", size: 12, placeholder: "the newest" });
  let [paused, next, how, generation] = [false, null, "text", 0];

  const choice = (value, word) => el("label", {}, el("input", { type: "radio", name: "how", value, checked: value === how, onchange: () => { how = value; draw(); } }), word);
  const cell = (entry) => {
    if (how === "hex") return el("code", {}, entry.hex, entry.bytes > 96 ? " …" : "");
    if (how === "columns") return entry.rows ? columns(entry) : el("span", { class: "note" }, "no columns");
    return el("code", {}, entry.text, entry.cut ? " …" : "");
  };
  const draw = () => {
    const box = node.querySelector(".scroll");
    const follows = box.scrollTop + box.clientHeight > box.scrollHeight - 40;
    drawRows();
    if (follows) box.scrollTop = box.scrollHeight;
  };
  const drawRows = () => show(body, rows.map((entry) => el("tr", {}, el("th", { scope: "row" }, count(entry.offset)), el("td", {}, bytes(entry.bytes)), el("td", {}, cell(entry)))));

  async function step() {
    const mine = generation;
    if (!node.isConnected) return; // another part of the page is shown
    if (!paused && !document.hidden) {
      try {
        const found = await ask(`page/tail?${new URLSearchParams({ log: name, ...(next === null ? {} : { from: next }) })}`);
        if (mine !== generation) return;
        next = found.next;
        if (found.entries.length) { rows.push(...found.entries); rows.splice(0, rows.length - ROWS_MAX); draw(); }
        status.textContent = found.entries.length && next < found.endOffset ? `Reading: ${count(found.endOffset - next)} more entries.`
          : `Up to offset ${count(found.endOffset)}. ${found.live ? "A leader is writing." : "No leader is writing."}`;
      } catch (error) {
        status.textContent = error.message;
      }
    }
    if (mine === generation) setTimeout(step, TAIL_MS);
  }
  const again = (event) => {
    event.preventDefault();
    generation += 1;
    rows.length = 0;
    next = /^[0-9]{1,19}$/.test(from.value.trim()) ? from.value.trim() : null;
    draw();
    step();
  };
  const node = el("div", { class: "tail" },
    el("form", { onsubmit: again }, el("fieldset", {}, el("legend", {}, "Show as"), choice("text", "text"), choice("hex", "bytes"), choice("columns", "columns")), pause,
      el("label", { for: "f-from" }, "From offset"), from, el("button", {}, "Go"), status),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Entries" }, el("table", {}, el("caption", {}, "The newest entries, long ones shortened"),
      el("thead", {}, el("tr", {}, ["Offset", "Size", "Entry"].map((word) => el("th", { scope: "col" }, word)))), body)));
  setTimeout(step, 0);
  return { node, step };
}

function columns(entry) {
  const names = Object.keys(entry.rows[0] ?? {});
  return el("div", {}, el("table", { class: "inner" }, el("thead", {}, el("tr", {}, names.map((each) => el("th", { scope: "col" }, each)))),
    el("tbody", {}, entry.rows.map((row) => el("tr", {}, names.map((each) => el("td", {}, String(row[each] ?? "null"))))))),
  entry.rows.length > 4 ? el("span", { class: "note" }, "only the first rows") : null);
}
