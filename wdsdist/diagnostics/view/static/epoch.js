"use strict";
// The epoch: a row for each rank, a column for each of its batches, coloured by the shards that the batch is read from.

const EPOCH_FIELDS = ["epoch", "seed", "ranks", "batch_size"];
const ROW = 20, LABELS = 64, IN_LEGEND = 24;

const hue = (shard) => `hsl(${(shard * 137.508) % 360} 48% ${matchMedia("(prefers-color-scheme: dark)").matches ? 60 : 55}%)`;

function epochForm(choice) {
  const inputs = EPOCH_FIELDS.map((name) => {
    const input = el("input", { name, type: "text", inputmode: "numeric", value: choice[name] ?? "" });
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

function epochPicture(found) {
  const canvas = el("canvas", { tabindex: 0, role: "img", "aria-label": "shards that each rank reads, by batch" });
  const tip = el("div", { id: "tip", hidden: true });
  const named = Object.entries(found.shards);
  const more = found.num_shards - Math.min(named.length, IN_LEGEND);
  const legend = el("p", { class: "legend" }, ...named.slice(0, IN_LEGEND).map(([shard, name]) => el("span", {}, el("i", { "data-shard": shard }), name)),
    more ? el("span", {}, `and ${counted(more, "more shard")}`) : null);
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
    for (const one of legend.querySelectorAll("i")) one.style.background = hue(Number(one.dataset.shard));
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
  new ResizeObserver(draw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return el("div", { class: "plan" }, canvas, legend, tip);
}

async function epochPage(isCurrent) {
  const { query } = where();
  const asked = Object.fromEntries(EPOCH_FIELDS.map((name) => [name, query.get(name) ?? ""]));
  const page = el("div", { class: "epoch" }, epochForm(asked));
  byId("page").replaceChildren(page);
  say("planning…");
  let found;
  try { found = await api("epoch", asked); } catch (error) { if (isCurrent()) say(error.message, true); return; }
  if (!isCurrent()) return;
  page.replaceChildren(epochForm(found.choice));
  if (!found.cells.length) { say("no rank gets a batch: lower the ranks or the batch size", true); return; }
  say(`${counted(found.batches_per_rank, "batch")} on each rank, ${counted(found.samples, "sample")} in all; each colour is a shard`);
  page.append(epochPicture(found));
}

PAGES.epoch = epochPage;
