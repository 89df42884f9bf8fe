// SPDX-License-Identifier: Apache-2.0
// Ledgers that lack copies, with the bookies, the time since when, and the reason why the copies have not been replaced yet.

import { el, facts, link, table } from "./dom.js";
import { count, since } from "./words.js";

const SHOWN_MAX = 1000;

export function repair(ask) {
  let shown = 50;
  return async () => {
    const rows = [];
    let found;
    let after = null;
    do {
      const limit = Math.min(200, shown - rows.length);
      found = await ask(`page/repair?${new URLSearchParams({ limit, ...(after === null ? {} : { after }) })}`);
      rows.push(...found.ledgers);
      after = found.after;
    } while (after !== null && rows.length < shown);
    const status = found.replication;
    const delay = status.lostBookieDelayS;
    return [
      el("h1", {}, "Repair"),
      facts([
        ["Ledgers that lack copies", `${status.allMarksCounted === false ? "more than " : ""}${count(status.underReplicated)}`],
        ["Under repair now", count(status.underRepair)],
        ["Replication", status.enabled === false ? "✕ paused (bk replication resume)" : "enabled"],
        ["Auditor", status.auditor ?? "✕ none (start bk autorecovery)"],
        ["A bookie counts as lost after", delay === null || delay === undefined ? "the setting of the auditor" : `${delay} s`],
      ]),
      rows.length ? table("Ledgers that lack copies", ["Ledger", "Lacks copies on", "Since", "Why"], rows.map((each) => [
        link(`#/ledger/${each.ledgerId}`, String(each.ledgerId), { id: `lacking-${each.ledgerId}` }), each.missing.join(", "), since(each.sinceMs), each.why,
      ])) : el("p", { class: "banner good" }, el("span", { class: "sign", "aria-hidden": "true" }, "✓"), "No ledger lacks a copy."),
      after !== null && shown < SHOWN_MAX ? el("button", { id: "more", type: "button", onclick: () => { shown += 200; window.dispatchEvent(new Event("again")); } }, `More: ${count(rows.length)} of ${count(status.underReplicated)} are shown`) : null,
    ];
  };
}
