// SPDX-License-Identifier: Apache-2.0
// Makes elements. Text is inserted as text, never as markup, so that no name from the cluster can run as code.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element. Attributes that are functions become event listeners; null and false ones are left out. */
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/**
 * Lets `node` have these children. Those that are in it already stay untouched. What had
 * the focus keeps it, by its id.
 */
export function show(node, ...children) {
  const wanted = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  const focused = node.contains(document.activeElement) ? document.activeElement.id : "";
  for (const each of [...node.childNodes]) if (!wanted.includes(each)) each.remove();
  let at = node.firstChild;
  for (const each of wanted) {
    if (each === at) at = at.nextSibling;
    else node.insertBefore(typeof each === "string" ? document.createTextNode(each) : each, at);
  }
  if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

/** Names and values below each other; values that are null are left out. */
export function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined);
  return el("dl", { class: "facts" }, known.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

/** A table that is a list of cards on a narrow screen, and a table for a screen reader all the same. */
export function table(caption, columns, rows) {
  const head = el("tr", { role: "row" }, columns.map((name) => el("th", { role: "columnheader", scope: "col" }, name)));
  const body = rows.map((cells) =>
    el("tr", { role: "row" }, cells.map((cell, at) =>
      el(at ? "td" : "th", { role: at ? "cell" : "rowheader", scope: at ? null : "row", "data-name": columns[at] }, cell))));
  return el("div", { class: "scroll" }, el("table", { role: "table" }, el("caption", {}, caption),
    el("thead", { role: "rowgroup" }, head), el("tbody", { role: "rowgroup" }, body)));
}

export function link(hash, text, attributes = {}) {
  return el("a", { href: hash, ...attributes }, text);
}
