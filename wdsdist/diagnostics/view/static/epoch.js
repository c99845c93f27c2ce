"use strict";
// The epoch: a row for each rank, a column for each of its batches, coloured by the shards that the batch is read from.

const EPOCH_FIELDS = { epoch: 0, seed: 0, ranks: 8, batch_size: 64, order: "shard", crop: "" };
const ROW = 20, LABELS = 64;

const hue = (shard) => `hsl(${(shard * 137.508) % 360} 48% ${matchMedia("(prefers-color-scheme: dark)").matches ? 60 : 55}%)`;

function epochForm(query) {
  const inputs = Object.entries(EPOCH_FIELDS).map(([name, usual]) => {
    const value = query.get(name) ?? usual;
    const input = name === "order"
      ? el("select", { name }, ...["shard", "sampler"].map((one) => el("option", { selected: one === value }, one)))
      : el("input", { name, type: "text", inputmode: "numeric", value, placeholder: name === "crop" ? "none" : null });
    return el("label", {}, el("span", {}, name.replace("_", " ")), input);
  });
  const form = el("form", { autocomplete: "off" }, ...inputs, el("button", { type: "submit" }, "Show"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const target = link("epoch", Object.fromEntries(new FormData(form)));
    if (location.hash === target) show(); else location.hash = target;
  });
  return form;
}

function epochPicture(found, open) {
  const canvas = el("canvas", { tabindex: 0, role: "img", "aria-label": "shards that each rank reads, by batch" });
  const tip = el("div", { id: "tip", hidden: true });
  const columns = found.batches.length;
  const cell = (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - LABELS) / ((box.width - LABELS) / columns));
    const row = Math.floor((event.clientY - box.top) / ROW);
    return column >= 0 && column < columns && row >= 0 && row < found.ranks.length ? [row, column] : null;
  };
  const draw = () => {
    const scale = devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.width = width * scale;
    canvas.height = found.ranks.length * ROW * scale;
    canvas.style.height = `${found.ranks.length * ROW}px`;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    context.font = "12px system-ui, 'DejaVu Sans', sans-serif";
    const step = (width - LABELS) / columns;
    found.ranks.forEach((rank, row) => {
      context.fillStyle = getComputedStyle(document.body).color;
      context.fillText(`rank ${rank}`, 6, row * ROW + 14);
      for (let column = 0; column < columns; column += 1) {
        const parts = found.cells[row * columns + column];
        const total = parts.reduce((sum, [, count]) => sum + count, 0);
        let top = row * ROW + 1;
        for (const [shard, count] of parts) {
          const height = (ROW - 2) * count / total;
          context.fillStyle = hue(shard);
          context.fillRect(LABELS + column * step, top, Math.max(1, step - (step > 5 ? 1 : 0)), height);
          top += height;
        }
      }
    });
  };
  canvas.addEventListener("mousemove", (event) => {
    const at = cell(event);
    tip.hidden = !at;
    if (!at) return;
    const parts = found.cells[at[0] * columns + at[1]];
    const lines = parts.map(([shard, count]) => `${found.shards[shard]}: ${counted(count, "sample")}`);
    tip.textContent = [`rank ${found.ranks[at[0]]}, batch ${thousands(found.batches[at[1]])}`, ...lines].join("\n");
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${event.clientY + 16}px`;
  });
  canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", (event) => {
    const at = cell(event);
    if (at) open(found.ranks[at[0]], found.batches[at[1]]);
  });
  new ResizeObserver(draw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return el("div", { class: "plan" }, canvas, tip);
}

const PLANNED_FIELDS = { max_tokens: "65536", length: "input_ids.tokens", pack_to: "8192", group_by: "txt.bytes" };

// How full the batches are that a loader with max_tokens, pack_to or group_by plans.
function plannedBox(query, asked, isCurrent) {
  const inputs = Object.entries(PLANNED_FIELDS).map(([name, example]) => el("label", {}, el("span", {}, name.replace("_", " ")),
    el("input", { name, type: "text", spellcheck: "false", placeholder: example, value: query.get(name) ?? "" })));
  const form = el("form", { autocomplete: "off" }, ...inputs, el("button", { type: "submit" }, "Plan"));
  const shown = el("div", { class: "card", hidden: true });
  const plan = async () => {
    const chosen = Object.fromEntries(new FormData(form));
    history.replaceState(null, "", link("epoch", { ...asked, ...chosen }));
    shown.hidden = false;
    shown.replaceChildren(el("p", {}, "planning…"));
    try {
      const found = await api("planned", { ...asked, ...chosen });
      if (!isCurrent()) return;
      const titles = found.shown.map((step, place) => `step ${thousands(step)}: fill ${found.fills[place].toFixed(3)}, ${counted(found.samples[place], "sample")}`);
      shown.replaceChildren(el("p", {}, `${counted(found.batches_per_rank, "step")} on each rank; fill ${(found.fill ?? 0).toFixed(3)}, the useful share of what there is `
        + `room for; balance ${(found.balance ?? 0).toFixed(3)}, the slowest rank over the mean; ${thousands(found.samples_dropped)} dropped`), chart(found.fills, 1, titles));
    } catch (error) { if (isCurrent()) shown.replaceChildren(el("div", { class: "error" }, error.message)); }
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); plan(); });
  const isAsked = Object.keys(PLANNED_FIELDS).some((name) => query.get(name));
  if (isAsked) plan();
  return el("details", { open: isAsked }, el("summary", {}, "Planned batches"), form, shown);
}

async function epochPage(isCurrent) {
  const { query } = where();
  const asked = Object.fromEntries(Object.keys(EPOCH_FIELDS).map((name) => [name, query.get(name) ?? ""]));
  const batch = el("div", {});
  byId("page").replaceChildren(el("div", { class: "epoch" }, epochForm(query)));
  say("planning… (the first time, torch is loaded)");
  const found = await api("epoch", asked);
  if (!isCurrent()) return;
  say(`${counted(found.batches_per_rank, "batch")} on each rank, ${counted(found.samples, "sample")} in all; `
    + "each colour is a shard; choose a batch to see it");
  const open = async (rank, number) => {
    history.replaceState(null, "", link("epoch", { ...asked, rank: String(rank), batch: String(number) }));
    batch.replaceChildren(el("p", { class: "dim" }, "making the batch…"));
    try {
      const made = await api("batch", { ...asked, rank, batch: number });
      if (!isCurrent()) return;
      const tiles = made.samples.map((one) => tile(one, one.members.map((part) => [part.extension, part.about,
        content(part.about, "", part.about.url, part.extension, false)])));
      const less = made.samples.length < made.size ? `, the first ${made.samples.length} of ${thousands(made.size)}` : "";
      batch.replaceChildren(el("h2", { id: "batch" }, `Batch ${thousands(number)} of rank ${rank}${less}`),
        el("p", { class: "dim" }, "as training gets it: decoded and transformed"), el("div", { class: "grid" }, ...tiles));
    } catch (error) { if (isCurrent()) batch.replaceChildren(el("div", { class: "error" }, error.message)); }
  };
  byId("page").firstChild.append(epochPicture(found, open), plannedBox(query, asked, isCurrent), batch);
  if (query.has("batch")) await open(query.get("rank") || "0", query.get("batch"));
}

PAGES.epoch = epochPage;
