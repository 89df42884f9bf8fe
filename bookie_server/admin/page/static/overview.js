// SPDX-License-Identifier: Apache-2.0
// The overview: whether all is well, the problems with their remedies, and the bookies. Also the view of one bookie with its plots.

import { chart, disk, spark } from "./charts.js";
import { el, facts, link, table } from "./dom.js";
import { byteRate, bytes, count, lasts, many, millis, rate, share, since, stateOf } from "./words.js";

const NONE = { added: [], written: [], p99Ms: [] };
const RANKS = { bad: "✕ Act", warn: "! Look" };

export const toBookie = (id) => `#/bookie/${encodeURIComponent(id)}`;

export function overview(ask) {
  return async () => {
    const found = await ask("page/cluster?limit=100");
    const { verdict, bookies } = found;
    document.title = `${verdict.well ? "✓" : "✕"} BookKeeper${found.me ? ` ${found.me}` : ""}`;
    return [
      el("h1", {}, found.me ? `Cluster, as bookie ${found.me} sees it` : "Cluster"),
      banner(verdict),
      verdict.problems.length ? problems(verdict) : null,
      el("h2", {}, "Bookies"),
      bookies.length ? bookieTable(found) : el("p", {}, "No bookie is known. Start one with bk bookie run."),
      found.after ? el("p", {}, `These are the first ${bookies.length} of ${found.bookieCount}; bk bookie list shows all.`) : null,
      el("h2", {}, "Repair"),
      repairInWords(found.replication),
      found.agoS > 15 ? el("p", { class: "note" }, `These values are ${Math.round(found.agoS)} s old.`) : null,
    ];
  };
}

function banner(verdict) {
  const rank = verdict.well ? "good" : verdict.problems.some((each) => each.rank === "bad") ? "bad" : "warn";
  return el("p", { id: "verdict", class: rank, role: "status" },
    el("span", { class: "sign", "aria-hidden": "true" }, { good: "✓", warn: "!", bad: "✕" }[rank]), verdict.sentence);
}

function problems(verdict) {
  const more = verdict.problemCount - verdict.problems.length;
  return el("section", { "aria-labelledby": "todo" }, el("h2", { id: "todo" }, "Problems, and what to do"),
    el("ol", { id: "problems" }, verdict.problems.map((each) => el("li", { class: each.rank },
      el("span", { class: "rank" }, RANKS[each.rank]), el("div", {}, el("p", { class: "what" }, each.what), el("p", {}, each.do),
        each.bookie ? link(toBookie(each.bookie), "More about this bookie") : each.place ? link(each.place, "Show them") : null)))),
    more > 0 ? el("p", {}, `and ${many(more, "problem")} more`) : null);
}

function bookieTable(found) {
  const asked = !found.me;
  const names = ["Bookie", "State", "Disk", "Appends", "Written", "Commit, p99", "Lacks copies of", ...(asked ? ["Answers"] : [])];
  return table("All bookies of the cluster", names, found.bookies.map((each) => {
    const series = each.numbers?.series ?? NONE;
    return [
      link(toBookie(each.bookieId), each.bookieId, { id: `bookie-${each.bookieId}` }),
      state(each),
      room(each),
      each.numbers ? spark("Entries appended", series.added, rate) : "–",
      each.numbers ? spark("Bytes written", series.written, byteRate) : "–",
      each.numbers ? spark("Commit time, 99th percentile", series.p99Ms, millis) : "–",
      each.underReplicated ? link("#/repair", each.allMarksCounted ? many(each.underReplicated, "ledger") : `${count(each.underReplicated)}+ ledgers`) : "none",
      ...(asked ? [millis(each.answerMs)] : []),
    ];
  }));
}

export function state(bookie) {
  const { sign, word, rank } = stateOf(bookie);
  const damage = bookie.numbers?.damage;
  return el("span", {}, el("span", { class: `state ${rank}` }, `${sign} ${word}`), damage ? el("span", { class: "state bad" }, ` ! ${count(damage)} damaged`) : null);
}

function room(bookie) {
  if (!bookie.totalBytes || bookie.freeBytes === null) return "–";
  const used = 1 - bookie.freeBytes / bookie.totalBytes;
  return disk(used, `${share(used)} of ${bytes(bookie.totalBytes)}${fullIn(bookie)}`);
}

/** The time until the disk is full, if the rate of writing stays the same and nothing is deleted. */
function fullIn(bookie) {
  const known = (bookie.numbers?.series ?? NONE).written.filter((value) => value !== null);
  const mean = known.reduce((sum, each) => sum + each, 0) / known.length;
  return mean > 0 ? `, full in ${lasts(bookie.freeBytes / mean)}` : "";
}

export function repairInWords(status) {
  if (status.enabled === undefined) return el("p", {}, "Not known yet.");
  const lacking = status.underReplicated
    ? link("#/repair", `${many(status.underReplicated, "ledger")} ${status.underReplicated === 1 ? "lacks" : "lack"} a copy`)
    : "No ledger lacks a copy";
  const who = !status.enabled ? "repair is paused (bk replication resume)" : status.auditor ? `the auditor is ${status.auditor}` : "no auto-recovery runs (start bk autorecovery)";
  return el("p", {}, lacking, `, ${many(status.underRepair, "repair")} under way; ${who}.`);
}

export function bookie(ask, id) {
  return async () => {
    const found = await ask(`page/cluster?${new URLSearchParams({ bookie: id })}`);
    const [one] = found.bookies;
    if (!one) return [el("h1", {}, `Bookie ${id}`), el("p", {}, "There is no such bookie in this cluster (bk bookie list).")];
    const about = found.verdict.problems;
    return [
      el("h1", {}, `Bookie ${id}`),
      about.length ? el("ol", { id: "problems" }, about.map((each) => el("li", { class: each.rank },
        el("span", { class: "rank" }, RANKS[each.rank]), el("div", {}, el("p", { class: "what" }, each.what), el("p", {}, each.do))))) : null,
      one.numbers ? plots(one.numbers.series) : el("p", { class: "note" }, one.numbersWhy ?? noNumbers(found.me)),
      details(one),
      el("p", {}, link(`#/ledgers?bookie=${encodeURIComponent(id)}`, "Ledgers with entries on this bookie")),
    ];
  };
}

const noNumbers = (me) => me ? "The page of a bookie has only its own numbers. bk web has the numbers of all bookies." : "The bookie is not running or has no admin port, so there are no numbers.";

function plots(series) {
  return el("div", { class: "plots" },
    chart("Entries appended", [["", series.added]], series.seconds, rate),
    chart("Bytes written", [["", series.written]], series.seconds, byteRate),
    chart("Bytes read", [["", series.read]], series.seconds, byteRate),
    chart("Time of a commit", [["p99", series.p99Ms], ["p50", series.p50Ms]], series.seconds, millis));
}

function details(one) {
  const numbers = one.numbers ?? {};
  const directories = numbers.directories ?? [];
  return [
    facts([
      ["State", state(one)],
      ["Disk", room(one)],
      ["Lacks copies of", many(one.underReplicated, "ledger")],
      ["Ledgers stored", one.numbers ? count(numbers.ledgers) : null],
      ["Writers connected", one.numbers ? count(numbers.sessions) : null],
      ["Memory", one.numbers ? bytes(numbers.memoryBytes) : null],
      ["Copies in limbo", one.limboLedgers ?? numbers.limboLedgers ?? null],
      ["Copies with damage", one.damagedLedgers ?? numbers.damagedLedgers ?? null],
      ["Damage found since its start", one.numbers ? count(numbers.damage) : null],
      ["Started", numbers.startedS ? since(numbers.startedS * 1000) : null],
      ["Version", one.version],
      ["Lanes", one.lanes.join(", ") || null],
      ["Admin port", one.admin],
      ["Error", one.error],
    ]),
    directories.length ? table("Data directories of this bookie", ["Directory", "Disk", "Accepts entries"], directories.map((each) => {
      const used = each.totalBytes ? 1 - each.usableBytes / each.totalBytes : null;
      return [each.path, disk(used, `${share(used)} of ${bytes(each.totalBytes)}`), each.writable ? "yes" : "no"];
    })) : null,
  ];
}
