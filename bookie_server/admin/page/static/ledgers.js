// SPDX-License-Identifier: Apache-2.0
// Ledgers: the list, page by page, and one ledger with a drawing of its fragments.

import { fragmentsDrawn } from "./charts.js";
import { el, facts, link, show, table } from "./dom.js";
import { toBookie } from "./overview.js";
import { bytes, count, isUp, moment, since } from "./words.js";

const STATES = { OPEN: "open", IN_RECOVERY: "in recovery", CLOSED: "closed" };
const AWAY = { away: "down", silent: "does not answer" };
const ROWS_MAX = 500;

export function ledgers(ask, wanted) {
  const list = el("div", { "aria-live": "polite" });
  const rows = [];
  const field = (name, attributes, ...children) => el(children.length ? "select" : "input", { id: `f-${name}`, name, ...attributes }, ...children);
  const chosen = (name) => document.getElementById(`f-${name}`).value.trim();

  async function more(after) {
    const query = new URLSearchParams({ ...(after === null ? {} : { after }), ...(wanted.state ? { state: wanted.state } : {}), ...(wanted.bookie ? { bookie: wanted.bookie } : {}) });
    let found;
    try {
      found = await ask(`page/ledgers?${query}`);
    } catch (error) {
      show(list, el("p", { class: "note" }, error.message));
      return;
    }
    rows.push(...found.ledgers);
    rows.splice(0, rows.length - ROWS_MAX);
    show(list,
      rows.length ? ledgerTable(rows) : el("p", {}, found.after === null ? "No ledger matches." : "No match so far."),
      found.unreadable.length ? el("p", { class: "note" }, `Records that cannot be read: ${found.unreadable.join(", ")} (bk ledger show gives the reason)`) : null,
      found.after === null ? el("p", {}, "End of the list.")
        : el("button", { id: "more", type: "button", onclick: () => more(found.after) }, rows.length ? "More" : `Continue after ledger ${found.after}`));
  }

  const view = [
    el("h1", {}, "Ledgers"),
    el("form", { role: "search", onsubmit: (event) => { event.preventDefault(); const id = chosen("id"); if (/^[0-9]{1,19}$/.test(id)) location.hash = `#/ledger/${id}`; } },
      el("label", { for: "f-id" }, "Ledger id"), field("id", { inputmode: "numeric", pattern: "[0-9]{1,19}", required: true, size: 14 }), el("button", {}, "Show")),
    el("form", { onsubmit: (event) => { event.preventDefault(); location.hash = `#/ledgers?${new URLSearchParams({ state: chosen("state"), bookie: chosen("bookie") })}`; } },
      el("label", { for: "f-state" }, "State"), field("state", {}, el("option", { value: "" }, "any"), Object.entries(STATES).map(([value, word]) => el("option", { value, selected: wanted.state === value }, word))),
      el("label", { for: "f-bookie" }, "On bookie"), field("bookie", { value: wanted.bookie ?? "", size: 18 }), el("button", {}, "List")),
    list,
  ];
  more(null);
  return view;
}

function ledgerTable(rows) {
  return table("Ledgers, by id", ["Ledger", "State", "Entries", "Size", "E/Qw/Qa", "Fragments", "Copies", "Created"], rows.map((each) => [
    link(`#/ledger/${each.ledgerId}`, String(each.ledgerId)),
    STATES[each.state],
    each.lastEntryId === null ? "–" : count(each.lastEntryId + 1),
    bytes(each.length),
    `${each.ensembleSize}/${each.writeQuorumSize}/${each.ackQuorumSize}`,
    count(each.fragmentCount),
    each.missing.length ? el("span", { class: "state warn" }, `! lacks ${each.missing.join(", ")}`) : "complete",
    moment(each.ctimeMs),
  ]));
}

export function ledger(ask, id) {
  let lac = null;
  return async () => {
    const found = await ask(`page/ledger?id=${id}`);
    const { ledger: one, members } = found;
    if (found.entries && one.state !== "CLOSED") lac = await ask(`page/lac?id=${id}`).catch((error) => ({ error: error.message }));
    const answers = (bookie) => isUp(members[bookie]);
    const lacks = (bookie) => found.missing.includes(bookie);
    return [
      el("h1", {}, `Ledger ${id}`),
      ...trouble(found),
      el("h2", {}, "Fragments"),
      one.fragmentCount > one.fragments.length ? el("p", {}, `The last ${one.fragments.length} of ${count(one.fragmentCount)}.`) : null,
      fragmentsDrawn(one, answers, lacks),
      el("p", { class: "legend", "aria-hidden": "true" }, el("span", { class: "there" }, "has it"), el("span", { class: "lacks" }, "! marked as lacking entries"), el("span", { class: "away" }, "✕ bookie is not running")),
      fragmentTable(found),
      el("h2", {}, "Record"),
      record(one, lac),
    ];
  };
}

function trouble(found) {
  const one = found.ledger;
  const least = Math.min(...found.copies.map((each) => each.least));
  const said = [];
  if (least === 0) said.push(["bad", "Some entries cannot be read now, because none of the bookies that store them is running. Start one of the bookies marked ✕ (bk ledger explain names it)."]);
  if (found.missing.length) said.push(["warn", `It lacks copies on ${found.missing.join(", ")} since ${since(found.sinceMs)}: ${found.why}.`]);
  if (one.state === "IN_RECOVERY") said.push(["warn", `A client is recovering the ledger: it is fenced, and its end is not decided yet. bk ledger explain ${one.ledgerId} shows what blocks the recovery.`]);
  if (one.state === "OPEN" && least > 0 && least < one.ackQuorumSize) said.push(["warn", "Fewer bookies of the ensemble are running than must confirm an entry. The writer replaces the others with its next entry."]);
  if (!said.length) said.push(["good", one.state === "OPEN" ? "The ledger is open, and a writer may be using it." : "All copies of the ledger are there."]);
  return said.map(([rank, text]) => el("p", { class: `banner ${rank}` }, el("span", { class: "sign", "aria-hidden": "true" }, { good: "✓", warn: "!", bad: "✕" }[rank]), text));
}

function fragmentTable(found) {
  const one = found.ledger;
  return table("Bookies of each fragment", ["From entry", "Bookies", "Copies of an entry that can be read"], one.fragments.map((each, at) => [
    count(each.firstEntryId),
    el("span", {}, each.ensemble.map((bookie, place) => [place ? ", " : "", link(toBookie(bookie), bookie),
      isUp(found.members[bookie]) ? (found.missing.includes(bookie) ? " (lacks entries)" : "") : ` (${AWAY[found.members[bookie]] ?? found.members[bookie]})`])),
    answersInWords(found.copies[at], one),
  ]));
}

function answersInWords({ least, most }, one) {
  const text = least === most ? `${least} of ${one.writeQuorumSize}` : `${least} to ${most} of ${one.writeQuorumSize}`;
  return least < one.writeQuorumSize ? el("span", { class: `state ${least ? "warn" : "bad"}` }, `${least ? "!" : "✕"} ${text}`) : text;
}

function record(one, lac) {
  const custom = Object.entries(one.customMetadata).map(([name, value]) => [name, value.text ?? `${value.base64} (base64)`]);
  const confirmed = lac && (lac.error ?? (lac.lac < 0 ? "no entry yet" : `entry ${count(lac.lac)}`));
  return facts([
    ["State", STATES[one.state]],
    ["Last entry", one.lastEntryId === null ? null : one.lastEntryId < 0 ? "none (the ledger is empty)" : count(one.lastEntryId)],
    ["Last add confirmed", confirmed],
    ["Size", one.length === null ? null : bytes(one.length)],
    ["Ensemble, write and ack quorum", `${one.ensembleSize}, ${one.writeQuorumSize}, ${one.ackQuorumSize}`],
    ["Digest", one.digestType],
    ["Created", since(one.ctimeMs)],
    ["Version", String(one.version)],
    ...custom,
  ]);
}
