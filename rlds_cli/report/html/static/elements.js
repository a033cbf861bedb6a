"use strict";
// What the parts of the page share: the data, elements made without HTML text, numbers for people.
const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, ...content) {
  const drawn = ["svg", "path", "line"].includes(name);
  const element = drawn ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(key, "");
    else if (value !== null && value !== false) element.setAttribute(key, value);
  }
  element.append(...content.filter((part) => part !== null));
  return element;
}

const whole = (n) => n.toLocaleString("en");

// As the page's own numbers: 1,000, 0.25, 1e-7.
function figure(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const size = Math.abs(x);
  if (size < 1e-12) return "0";
  if (size >= 1e6 || size < 1e-3) return x.toExponential(2).replace("e+", "e");
  return size < 1e4 ? Number(x.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 })
    : Math.round(x).toLocaleString("en");
}

const plural = (n, word) => `${whole(n)} ${word}${n === 1 ? "" : "s"}`;

async function copy(button, words) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(words);
    button.textContent = "copied";
  } catch {
    button.textContent = "could not copy";
  }
  setTimeout(() => { button.textContent = before; }, 1500);
}

const VIEWED = new Map(DATA.episodes.map((episode, k) => [episode.number, k]));

document.documentElement.classList.add("scripted");
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.addEventListener("click", () => copy(button, button.dataset.copy));
}
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
