"use strict";
const SVG = "http://www.w3.org/2000/svg";
const tip = document.body.appendChild(document.createElement("div"));
tip.id = "tip";
tip.hidden = true;
const numbers = (text) => text.split(" ").filter(Boolean).map(Number);
const shown = (value) => value.toLocaleString("en", { maximumSignificantDigits: 5 });

function say(event, rows) {
  tip.replaceChildren(...rows.map(([name, value]) => {
    const row = document.createElement("div"), bold = document.createElement("b");
    bold.textContent = value;
    row.append(name + " ", bold);
    return row;
  }));
  tip.hidden = false;
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = Math.max(8, Math.min(room, event.pageX + 14)) + "px";
  tip.style.top = event.pageY - tip.offsetHeight - 14 + "px";
}

for (const svg of document.querySelectorAll("svg[data-frame]")) {
  const [left, right] = numbers(svg.dataset.frame), [low, high] = numbers(svg.dataset.range);
  const [, , top, bottom] = numbers(svg.dataset.frame);
  const curves = [...svg.querySelectorAll("path[data-x]")].map((path) => ({
    name: path.dataset.name, x: numbers(path.dataset.x), y: numbers(path.dataset.y),
  })).filter((curve) => curve.x.length);
  const title = svg.querySelector("title"); // else the browser would show it over the values
  svg.setAttribute("aria-label", title.textContent + ". " + svg.querySelector("desc").textContent);
  title.remove();
  const guide = document.createElementNS(SVG, "path");
  guide.setAttribute("class", "guide");
  const show = (event) => {
    const bar = event.target.dataset;
    if (bar.count) return say(event, [[`${shown(+bar.from)} to ${shown(+bar.to)}:`, bar.count]]);
    if (!curves.length) return (tip.hidden = true);
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const x = low + ((event.clientX - box.left) * scale - left) / (right - left) * (high - low);
    const nearest = (curve) => curve.x.reduce(
      (best, at, i) => Math.abs(at - x) < Math.abs(curve.x[best] - x) ? i : best, 0);
    const found = curves.map((curve) => [curve, nearest(curve)]);
    const at = found.map(([curve, i]) => curve.x[i])
      .reduce((best, other) => Math.abs(other - x) < Math.abs(best - x) ? other : best);
    const pixel = left + (at - low) / (high - low) * (right - left);
    guide.setAttribute("d", `M${pixel},${top}V${bottom}`);
    svg.append(guide);
    const here = found.filter(([curve, i]) => Math.abs(curve.x[i] - at) <= (high - low) / 100);
    say(event, [["at", at.toLocaleString("en")], ...here.map(([curve, i]) => [curve.name, shown(curve.y[i])])]);
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", (event) => {
    guide.remove();
    if (event.pointerType !== "touch") tip.hidden = true; // a finger leaves when it is lifted
  });
}
document.addEventListener("pointerdown", (event) => {
  if (!event.target.closest("svg")) tip.hidden = true;
});

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const order = (a, b) => key(a).localeCompare(key(b), "en", { numeric: true });
      const byNumber = (a, b) => (key(a) === "" ? Infinity : key(a)) - (key(b) === "" ? Infinity : key(b)) || 0;
      const rows = [...table.tBodies[0].rows];
      rows.sort(head.classList.contains("number") ? byNumber : order);
      table.tBodies[0].append(...(up ? rows : rows.reverse()));
    });
  });
}

const theme = document.querySelector("button.theme"), root = document.documentElement;
theme.hidden = false;
theme.addEventListener("click", () => {
  const now = root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
});

for (const video of document.querySelectorAll("video")) {
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) video.play().catch(() => {});
}
