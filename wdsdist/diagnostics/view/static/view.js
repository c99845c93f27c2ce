"use strict";
// Nothing from the data becomes markup: texts are set as texts, and the page's policy lets no other way work.

const PER_PAGE = 24;
const state = { data: null, turn: 0, samples: [], before: null, after: null };
const byId = (id) => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((one) => one !== null && one !== undefined));
  return node;
}

const thousands = (number) => Number(number).toLocaleString("en");
const counted = (number, noun) => `${thousands(number)} ${noun}${number === 1 ? "" : noun.endsWith("ch") ? "es" : "s"}`;
function human(bytes) {
  if (bytes < 1024) return counted(bytes, "byte");
  let unit = -1;
  do { bytes /= 1024; unit += 1; } while (bytes >= 1024 && unit < 4);
  return `${bytes.toFixed(1)} ${["KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

async function answer(response) {
  const found = await response.json().catch(() => ({ error: `the server answers with status ${response.status}` }));
  if (!response.ok) throw new Error(found.error || `status ${response.status}`);
  return found;
}
async function api(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value != null));
  let response;
  try {
    response = await fetch(`api/${path}?${query}`);
  } catch {
    throw new Error("the server does not answer: was `wdsdist view` ended?");
  }
  return answer(response);
}

function say(text, bad = false) {
  const status = byId("status");
  status.replaceChildren(text);
  status.classList.toggle("bad", bad);
}

// Members

const ORDER = ["image", "video", "array", "audio", "number", "text", "tokens", "json", "bytes", "error"];

function picture(url, name, about, caption) {
  const image = el("img", { src: url, alt: name, loading: "lazy", decoding: "async", class: about.kind === "array" ? "fine" : null });
  const stage = el("span", { class: "stage" }, image, el("small", {}, caption || name));
  image.addEventListener("load", () => {  // small ones are enlarged: their pixels are what there is to see
    if (Math.max(image.naturalWidth, image.naturalHeight) <= 64) image.classList.add("fine");
  });
  image.addEventListener("error", async () => {
    let message = "the picture cannot be shown";
    try { await answer(await fetch(url)); } catch (error) { message = error.message; }
    image.replaceWith(el("div", { class: "error" }, `${name}: ${message}`));
  });
  return stage;
}

function described(about) {
  return `${about.dtype} [${about.shape.join(", ")}]${about.least !== undefined ? `, ${about.least} to ${about.most}` : ""}`;
}

function tree(node, name, open) {
  const [kind, content, total] = node;
  const label = name === null ? [] : [el("span", { class: "name" }, name), ": "];
  if (kind === "plain") return el("div", {}, ...label, content);
  if (kind === "text") return el("div", {}, ...label, `"${content}"${content.length < total ? "…" : ""}`);
  const what = kind === "object" ? `{ ${counted(total, "key")} }` : `[ ${counted(total, "item")} ]`;
  const entries = kind === "object" ? content : content.map((one, place) => [String(place), one]);
  const rows = entries.map(([key, one]) => tree(one, key, false));
  if (entries.length < total) rows.push(el("div", { class: "dim" }, `… ${thousands(total - entries.length)} more`));
  return el("details", { open }, el("summary", {}, ...label, el("span", { class: "dim" }, what)), el("div", { class: "branch" }, ...rows));
}

// Returns a member's content: a picture or player as a stage, or else what stands in a row.
function content(about, url, pictureUrl, name, large) {
  switch (about.kind) {
    case "image": return picture(pictureUrl, name, about);
    case "video": return el("span", { class: "stage" }, el("video", { src: url, controls: true, preload: "metadata" }));
    case "audio": return el("div", { class: "sound" }, el("audio", { src: url, controls: true, preload: large ? "metadata" : "none" }));
    case "array":
      if (about.has_picture) return picture(pictureUrl, name, about, `${name} ${described(about)}`);
      return el("div", { class: "mono" }, described(about), about.values ? el("div", { class: "dim" }, about.values.join(" ")) : null);
    case "tokens":
      return el("div", { class: "mono" }, el("b", {}, counted(about.count, "token")), ` ${about.dtype === "list" ? "" : about.dtype} `,
        el("span", { class: "dim" }, about.ids.join(" ") + (about.ids.length < about.count ? " …" : "")));
    case "number": return el("div", { class: "number" }, about.text, about.label ? el("span", { class: "dim" }, ` ${about.label}`) : null);
    case "text":
      return el("div", { class: "text", dir: "auto" }, about.text + (about.is_cut ? "…" : ""), about.note ? el("div", { class: "dim" }, about.note) : null);
    case "json": return el("div", { class: "tree" }, tree(about.tree, null, large), about.is_cut ? el("div", { class: "dim" }, "cut") : null);
    case "error": return el("div", { class: "error" }, about.message);
    default: return el("div", { class: "mono dim" }, [about.note, about.hex].filter(Boolean).join(" · "));
  }
}

function place(kind) { const found = ORDER.indexOf(kind); return found < 0 ? ORDER.length : found; }
const byKind = (members) => members.sort((one, other) => place(one[1].kind) - place(other[1].kind));
const isStage = (node) => node.classList.contains("stage") || node.classList.contains("sound");

const partOf = (sample) => `${sample.part[0]} of ${sample.part[1]}`;

function tile(sample, members) {
  const href = link("sample", { where: chosen() }, sample.number);
  const head = el("div", { class: "head" }, el("a", { href, title: sample.key }, sample.key || "?"),
    sample.part ? el("span", {}, `part ${partOf(sample)}`) : null,
    el("span", { title: sample.shard }, thousands(sample.number)));
  const card = el("article", { class: "tile" }, head);
  if (sample.error) card.append(el("div", { class: "error" }, sample.error));
  for (const [name, about, node] of byKind(members)) {
    if (isStage(node)) {
      if (about.kind !== "video" && about.kind !== "audio") card.append(el("a", { href, class: "open" }, node));
      else card.append(node);
    } else card.append(el("div", { class: "field" }, el("span", { title: name }, name), node));
  }
  return card;
}

function storedMembers(sample, large) {
  return sample.members.map((one, number) => {
    const url = `member/${sample.number}/${number}`;
    const shown = `picture/${sample.number}/${number}${large ? "?size=page" : ""}`;
    return [one.extension, one.about, content(one.about, url, shown, one.extension, large), one, url];
  });
}

// Where the page is: the part of the URL behind #

function where() {
  const [path, query] = location.hash.slice(1).split("?");
  const [, page = "samples", number] = path.split("/");
  return { page: page || "samples", number: Number(number), query: new URLSearchParams(query || "") };
}
function link(page, parameters = {}, number = null) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== 0 && value != null));
  return `#/${page}${number === null ? "" : `/${number}`}${query.size ? `?${query}` : ""}`;
}
const chosen = () => where().query.get("where") || "";
// An expression that is true if two are, either of which may be empty.
const both = (one, other) => (one && other && one !== other ? `(${one}) AND (${other})` : one || other);
// The page of the samples that are chosen now and for which another expression is true too.
const filtered = (clause) => link("samples", { where: both(chosen(), clause) });

// Pages

async function samplesPage(isCurrent) {
  const { query } = where();
  const start = Number(query.get("start") || 0);
  say(chosen() ? "looking…" : "");
  const found = await api("samples", { start, count: PER_PAGE, where: chosen() });
  if (!isCurrent()) return;
  if (start && start >= found.total) throw new Error(`there is no sample ${thousands(start)} here: there are ${thousands(found.total)}, numbered from 0`);
  state.samples = found.samples.map((one) => one.number);
  state.before = start > 0 ? link("samples", { where: chosen(), start: Math.max(0, start - PER_PAGE) }) : null;
  state.after = start + PER_PAGE < found.total ? link("samples", { where: chosen(), start: start + PER_PAGE }) : null;
  const last = start + found.samples.length;
  const range = found.samples.length ? `${thousands(start + 1)} to ${thousands(last)} of ${counted(found.total, "sample")}` : counted(found.total, "sample");
  say(chosen() ? `${range}, of ${thousands(state.data.samples)} in all` : range);
  if (chosen() && found.total) byId("status").append(el("div", { class: "mono dim" }, selectCommand()));
  byId("page").replaceChildren(grid(found.samples), pager(start, found.total));
}

function grid(samples) {
  return el("div", { class: "grid" }, ...samples.map((one) => tile(one, storedMembers(one, false))));
}

function pager(start, total) {
  const go = (to) => { location.hash = to; };
  const slider = el("input", { type: "range", min: 0, max: Math.max(0, total - 1), step: 1, value: start, "aria-label": "first sample" });
  slider.addEventListener("change", () => go(link("samples", { where: chosen(), start: Math.floor(slider.value / PER_PAGE) * PER_PAGE })));
  return el("div", { class: "pager", hidden: total <= PER_PAGE && start === 0 },
    el("button", { disabled: !state.before, onclick: () => go(state.before) }, "← Previous"), slider,
    el("button", { disabled: !state.after, onclick: () => go(state.after) }, "Next →"));
}

// The command that saves the samples that are chosen now as a view.
function selectCommand() {
  return `wdsdist select ${state.data.shards} VIEW --where '${chosen().replaceAll("'", "'\\''")}'`;
}

async function samplePage(isCurrent) {
  const { number } = where();
  if (!Number.isInteger(number)) throw new Error(`there is no page ${location.hash}: a sample has a number, such as #/sample/0`);
  const found = await api(`sample/${number}`, { where: chosen() });
  if (!isCurrent()) return;
  const goTo = (to) => (to === null ? null : link("sample", { where: chosen() }, to));
  [state.before, state.after] = [goTo(found.before), goTo(found.after)];
  say("");
  const parts = byKind(storedMembers(found, true)).map(([name, about, node, member, url]) => el("section", {},
    el("header", {}, el("b", {}, name), el("span", {}, `${human(member.size)} at byte ${thousands(member.offset)}`),
      el("a", { href: url, download: about.kind === "audio" || about.kind === "video" ? "" : null }, "Save")),
    isStage(node) ? node : el("div", { class: "body" }, node),
    about.kind === "array" && about.has_picture ? el("div", { class: "body mono" }, described(about)) : null));
  if (found.error) parts.unshift(el("div", { class: "error" }, found.error));
  const code = el("div", { class: "code", tabindex: 0 }, found.code);
  const copy = el("button", { type: "button", onclick: async () => {
    try {
      await navigator.clipboard.writeText(`import wdsdist\n\nsample = ${found.code}\n`);
      copy.textContent = "Copied";
    } catch (error) { say(`the code cannot be copied: ${error.message}`, true); }
  } }, "Copy");
  const facts = [["number", thousands(found.number)], ["shard", found.shard]];
  if (found.stored !== undefined) facts.push(["in the shard", thousands(found.stored)]);
  if (found.part) facts.push(["part", partOf(found)]);
  facts.push(["members", String(found.members.length)], ...Object.entries(found.columns));
  const step = (to, text) => el("button", { type: "button", disabled: !to, onclick: () => { location.hash = to; } }, text);
  byId("page").replaceChildren(el("div", { class: "sample" }, el("div", {}, ...parts), el("aside", {},
    el("h2", { id: "sample-key" }, found.key || "?"), el("dl", {}, ...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    el("div", { class: "buttons" }, step(state.before, "← Previous"), step(state.after, "Next →")), code, copy)));
}

async function columnsPage(isCurrent) {
  say("");
  const shown = el("div", { class: "columns" });
  byId("page").replaceChildren(shown);
  const { columns } = await api("columns", { where: chosen() });
  if (!isCurrent()) return;
  if (columns.every((one) => one.is_free)) {
    say("More columns, such as the widths of images or fields of JSON members, are added by `wdsdist columns`.");
  }
  // The free ones are read from the index of each shard.
  const isSlow = state.data.num_shards > 500 || state.data.samples > 5e6;
  for (const one of columns.sort((a, b) => a.is_free - b.is_free)) {
    const card = el("div", { class: "card" }, el("h2", {}, one.name));
    shown.append(card);
    const load = async () => {
      try {
        const found = await api("column", { name: one.name, where: chosen() });
        if (isCurrent()) card.replaceChildren(el("h2", {}, one.name), ...figure(found));
      } catch (error) {
        if (isCurrent()) { say(`${one.name}: ${error.message}`, true); card.remove(); }
      }
    };
    if (one.is_free && isSlow) card.append(el("button", { type: "button", onclick: load }, "Count"));
    else await load();
    if (!isCurrent()) return;
  }
}

const short = (number) => (Math.abs(number) >= 1000 ? thousands(Math.round(number)) : Number(number.toPrecision(4)).toString());

// Bars of some heights, each with a title to hover, and a link to its samples.
function chart(values, most, titles, wheres) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const width = 100 / values.length;
  svg.setAttribute("viewBox", "0 0 100 100");
  svg.setAttribute("preserveAspectRatio", "none");
  values.forEach((value, number) => {
    const make = (tag, attributes) => {
      const node = document.createElementNS(svg.namespaceURI, tag);
      for (const [name, one] of Object.entries(attributes)) node.setAttribute(name, one);
      return node;
    };
    const height = most ? Math.max(value / most * 100, value ? 1 : 0) : 0;
    const title = make("title", {});
    title.textContent = titles[number];
    const bar = make("a", { href: filtered(wheres[number]) });
    const shape = { x: number * width, width: width * 0.92 };
    bar.append(title, make("rect", { ...shape, y: 0, height: 100, class: "hit" }), make("rect", { ...shape, y: 100 - height, height }));
    svg.append(bar);
  });
  return svg;
}

function figure(found) {
  const missing = found.missing ? `, ${thousands(found.missing)} missing` : "";
  const part = found.of > found.samples ? `; every ${Math.round(found.of / found.samples)}th of ${counted(found.of, "sample")}` : "";
  const lines = [el("p", {}, `${found.kind}, ${counted(found.samples - found.missing, "value")}${missing}${part}`)];
  if (found.median !== undefined) lines.push(el("p", {}, `median ${short(found.median)}, mean ${short(found.mean)}`));
  if (found.counts) {
    const titles = found.counts.map((count, number) =>
      `${short(found.edges[number])} to ${short(found.edges[number + 1])}: ${counted(count, "sample")}`);
    lines.push(chart(found.counts, Math.max(...found.counts), titles, found.wheres), el("div", { class: "ends" }, el("span", {}, short(found.least)), el("span", {}, short(found.most))));
  } else if (found.bars) {
    const most = Math.max(1, ...found.bars.map(([, count]) => count));
    const rows = found.bars.flatMap(([value, count, clause]) => {
      const bar = el("span", { class: "bar" });
      bar.style.width = `${count / most * 100}%`;
      return [el("a", { href: filtered(clause), title: value }, value), bar, el("span", { class: "count" }, thousands(count))];
    });
    lines.push(el("div", { class: "bars" }, ...rows));
    if (found.others) lines.push(el("p", {}, `${counted(found.others, "sample")} with other values`));
  }
  return lines;
}

async function problemsPage(isCurrent) {
  const rows = el("tbody");
  const table = el("table", { hidden: true }, el("thead", {}, el("tr", {}, ...["what", "shard", "key", "reason"].map((one) => el("th", {}, one)))), rows);
  byId("page").replaceChildren(table);
  let count = 0;
  for (let shard = 0; shard !== null;) {
    const found = await api("problems", { shard });
    if (!isCurrent()) return;
    count += found.items.length;
    for (const one of found.items.slice(0, Math.max(0, 1000 - rows.children.length))) {
      rows.append(el("tr", {}, el("td", {}, one.what), el("td", { class: "mono" }, one.shard), el("td", { class: "mono" }, one.key), el("td", {}, one.reason)));
    }
    table.hidden = !count;
    shard = found.next_shard;
    const looked = `${thousands(shard === null ? found.num_shards : shard)} of ${counted(found.num_shards, "shard")} looked at`;
    say(`${count ? counted(count, "problem") : "no problem"}${count > 1000 ? ", the first 1,000 shown" : ""}; ${looked}, by indexes and sizes: \`wdsdist verify\` compares digests`);
  }
}

const PAGES = { samples: samplesPage, sample: samplePage, columns: columnsPage, problems: problemsPage };

async function show() {
  if (!state.data) return;  // called again once they have come
  const turn = ++state.turn;
  const { page, query } = where();
  for (const one of document.querySelectorAll("nav a")) {
    const isHere = one.dataset.page === (page === "sample" ? "samples" : page);
    one.toggleAttribute("aria-current", isHere);
    one.href = link(one.dataset.page, { where: one.dataset.page === "samples" || one.dataset.page === "columns" ? chosen() : "" });
  }
  byId("choice").hidden = !["samples", "columns"].includes(page);
  byId("where").value = query.get("where") || "";
  byId("key").value = byId("number").value = "";
  state.before = state.after = null;
  document.title = `${state.data.name} – wdsdist view`;
  document.body.setAttribute("aria-busy", "true");
  try {
    if (!PAGES[page]) throw new Error(`there is no page ${location.hash}: choose one above`);
    await PAGES[page](() => turn === state.turn);
  } catch (error) {
    if (turn === state.turn) { say(error.message, true); byId("page").replaceChildren(); }
  }
  if (turn === state.turn) document.body.removeAttribute("aria-busy");
}

byId("choice").addEventListener("submit", (event) => {
  event.preventDefault();
  const number = byId("number").value.replace(/[,\s]/g, "");
  const key = byId("key").value.replaceAll("'", "''");
  const text = both(byId("where").value.trim(), key && `contains("key", '${key}')`);
  const target = number ? link("sample", { where: text }, number) : link(where().page === "columns" ? "columns" : "samples", { where: text });
  if (location.hash === target) show(); else location.hash = target;
});

addEventListener("hashchange", () => { scrollTo(0, 0); show(); });
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select, audio, video")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const { page, number } = where();
  const jump = { ArrowLeft: state.before, ArrowRight: state.after, k: state.before, j: state.after }[event.key];
  if (jump) location.hash = jump;
  else if (event.key === "Escape" && page === "sample") {
    location.hash = link("samples", { where: chosen(), start: chosen() ? 0 : Math.floor(number / PER_PAGE) * PER_PAGE });
  } else if (event.key === "Enter" && page === "samples" && event.target === document.body && state.samples.length) {
    location.hash = link("sample", { where: chosen() }, state.samples[0]);
  } else if (event.key === "/" || event.key === "w") {
    event.preventDefault();
    byId(event.key === "/" ? "key" : "where").focus();
  }
});

addEventListener("DOMContentLoaded", async () => {
  try {
    state.data = await api("data");
  } catch (error) { say(error.message, true); return; }
  const { data } = state;
  byId("name").textContent = data.name;
  byId("about").textContent = `${counted(data.samples, "sample")} in ${counted(data.num_shards, "shard")}, ${human(data.bytes)}; ${data.fields.join(", ")}`;
  show();
});
