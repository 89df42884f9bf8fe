// SPDX-License-Identifier: Apache-2.0
// Numbers, times and states in words.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(size) {
  if (size === null || size === undefined) return "–";
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) { size /= 1024; unit += 1; }
  return `${unit ? size.toFixed(1) : Math.round(size)} ${UNITS[unit]}`;
}

export function count(number) {
  return number === null || number === undefined ? "–" : Math.round(number).toLocaleString("en");
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  return perSecond >= 10000 ? `${(perSecond / 1000).toFixed(1)} k/s` : `${count(perSecond)} /s`;
}

export function byteRate(perSecond) {
  return perSecond === null || perSecond === undefined ? "–" : `${bytes(perSecond)}/s`;
}

export function millis(time) {
  if (time === null || time === undefined) return "–";
  return `${time < 10 ? time.toFixed(1) : Math.round(time)} ms`;
}

export function share(part) {
  return part === null ? "–" : `${Math.round(part * 100)} %`;
}

export function many(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

/** A time in the largest unit of which there are at least two. */
export function lasts(seconds) {
  for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
    if (seconds >= 2 * size) return many(Math.floor(seconds / size), unit);
  }
  return many(Math.floor(seconds), "second");
}

/** The time since then, in the largest unit of which there is at least one. */
export function ago(time) {
  const seconds = Math.max(0, (Date.now() - time) / 1000);
  for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
    if (seconds >= size) return `${many(Math.floor(seconds / size), unit)} ago`;
  }
  return `${many(Math.floor(seconds), "second")} ago`;
}

export function moment(time) {
  return time === null || time === undefined || time < 0 ? "–" : new Date(time).toLocaleString();
}

/** A time with how long ago it was. */
export function since(time) {
  return time === null || time === undefined ? "–" : `${moment(time)} (${ago(time)})`;
}

/** The state of a bookie as a sign, a word and a rank. */
export function stateOf(bookie) {
  const { state, order } = bookie;
  const away = state === "away" || state === "gone";
  if (order === "removed") return { sign: "–", word: "removed", rank: "none" };
  if (order === "drain") return { sign: "⇢", word: away ? "down, draining" : "draining", rank: away ? "bad" : "warn" };
  if (state === "away") return { sign: "✕", word: "down", rank: "bad" };
  if (state === "unreadable") return { sign: "?", word: "registration unreadable", rank: "bad" };
  if (state === "gone") return { sign: "✕", word: "gone", rank: "bad" };
  if (bookie.error) return { sign: "!", word: "does not answer", rank: "bad" };
  if (bookie.numbers?.notReady) return { sign: "!", word: "not ready", rank: "bad" };
  if (state === "read-only") return { sign: "◐", word: order ? "read-only, by hand" : "read-only", rank: "warn" };
  if (state === "writable") return { sign: "●", word: "writable", rank: "good" };
  return { sign: "?", word: state, rank: "none" };
}

export const isUp = (state) => ["writable", "read-only", "draining"].includes(state);
