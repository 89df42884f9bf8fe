// SPDX-License-Identifier: Apache-2.0
// The page: shows the part that the address names after #, and asks for it again every few seconds while the page is visible.

import { el, show } from "./dom.js";
import { ledger, ledgers } from "./ledgers.js";
import { log, logs } from "./logs.js";
import { bookie, overview } from "./overview.js";
import { repair } from "./repair.js";

const PERIOD_MS = 2500;
const TIMEOUT_MS = 8000;

const main = document.getElementById("main");
const connection = document.getElementById("connection");
let shown = { part: null, refresh: null, timer: 0, number: 0 };

/** Fetch JSON from the server. Throws an Error whose text is shown to the user. */
async function ask(path) {
  let answer;
  try {
    answer = await fetch(path, { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store", credentials: "omit" });
  } catch {
    throw new Lost("No answer from this port. Is the process running?");
  }
  const found = await answer.json().catch(() => ({ error: `This port answers ${answer.status}.` }));
  if (!answer.ok) throw new Error(found.error ?? `This port answers ${answer.status}.`);
  return found;
}

class Lost extends Error {}

/** Return a part of the page: its nodes, or a function that is called every few seconds for the current nodes. */
function partOf(hash) {
  const [path, query] = hash.replace(/^#/, "").split("?");
  const [, name = "", ...rest] = path.split("/");
  const given = decoded(rest.join("/"));
  const wanted = Object.fromEntries(new URLSearchParams(query ?? ""));
  switch (name) {
    case "": return overview(ask);
    case "bookie": return bookie(ask, given);
    case "ledgers": return ledgers(ask, wanted);
    case "ledger": return /^[0-9]{1,19}$/.test(given) ? ledger(ask, given) : nothing(hash);
    case "logs": return logs(ask);
    case "log": return log(ask, given);
    case "repair": return repair(ask);
    default: return nothing(hash);
  }
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

const nothing = (hash) => [el("h1", {}, "Nothing here"), el("p", {}, `There is no part ${hash} of this page.`)];

function named() {
  if (document.title === "BookKeeper") document.title = `${main.querySelector("h1")?.textContent} – BookKeeper`;
}

async function refresh() {
  const mine = shown.number;
  clearTimeout(shown.timer);
  const reads = shown.once && !getSelection().isCollapsed; // text is selected, perhaps to copy it: keep it
  if (!document.hidden && shown.refresh && !reads) {
    try {
      const nodes = await shown.refresh();
      if (mine !== shown.number) return;
      show(main, nodes);
      named();
      connection.textContent = "";
      connection.className = "";
    } catch (error) {
      if (mine !== shown.number) return;
      connection.textContent = `${error.message}${shown.once ? " The values shown are older." : ""}`;
      connection.className = "bad";
      if (!shown.once) show(main, el("h1", {}, "Not available"), el("p", { class: "note" }, error.message));
    }
    shown.once = true;
  }
  if (mine === shown.number) shown.timer = setTimeout(refresh, PERIOD_MS);
}

function route() {
  if (location.hash && !location.hash.startsWith("#/")) return; // a link to a place within the current part
  const first = shown.part === null;
  clearTimeout(shown.timer);
  const hash = location.hash || "#/";
  const part = partOf(hash);
  shown = { part, refresh: typeof part === "function" ? part : null, timer: 0, number: shown.number + 1, once: false };
  document.title = "BookKeeper";
  for (const each of document.querySelectorAll("nav a")) {
    const at = each.getAttribute("href");
    const is = at === "#/" ? hash === "#/" || hash.startsWith("#/bookie/") : hash.startsWith(at.replace(/s$/, ""));
    if (is) each.setAttribute("aria-current", "page"); else each.removeAttribute("aria-current");
  }
  if (!first) main.focus();
  window.scrollTo(0, 0);
  if (shown.refresh) {
    show(main, el("p", {}, "Loading …"));
    refresh();
  } else {
    show(main, part);
    named();
  }
}

document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
window.addEventListener("hashchange", route);
window.addEventListener("again", refresh);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
route();
