// How many timers wait in each second, minute or hour to come: a map of them, and the fullest.

import { at, el, failure, get, missing, nothing, number } from "./page.js";

// By each unit: its seconds, how many make a row, how many rows are shown, and which part of a time tells a row.
const UNITS = {
  second: { length: 1, perRow: 60, rows: 60, label: [11, 16], title: "the hour to come, a minute in each row" },
  minute: { length: 60, perRow: 60, rows: 24, label: [5, 16], title: "the day to come, an hour in each row" },
  hour: { length: 3_600, perRow: 24, rows: 31, label: [5, 10], title: "the month to come, a day in each row" },
};
// What one worker was measured to fire second after second on two cores, see docs/performance.md.
const HOT_PER_S = 80_000;
const SHADES = 5;
const FULLEST = 20;

export async function ahead({ place, query, signal }) {
  const unit = query.get("unit") in UNITS ? query.get("unit") : "minute";
  const { length, perRow, rows, label, title } = UNITS[unit];
  const choose = el("select", { name: "unit", onchange: (event) => { location.hash = `#/ahead?unit=${event.target.value}`; } },
    Object.keys(UNITS).map((name) => el("option", { value: name, selected: name === unit }, `${name}s`)));
  const shown = el("div", { "aria-live": "polite" }, el("p", { class: "soft" }, "Counting …"));
  place.append(el("h2", {}, "Ahead"), el("form", { class: "row" }, el("label", {}, "count by", choose)), shown);
  try {
    const span = length * perRow;
    const start = Math.floor(Date.now() / 1000 / span) * span;
    const found = await get("ahead", { unit, from: start, to: start + rows * span });
    if (signal.aborted) return;
    const counts = new Map(found.counts.map((each) => [each.second, each.count]));
    const most = Math.max(1, ...counts.values());
    const total = found.counts.reduce((sum, each) => sum + each.count, 0);
    const fullest = found.counts.toSorted((one, other) => other.count - one.count).slice(0, FULLEST).sort((one, other) => one.second - other.second);
    shown.replaceChildren(
      el("p", {}, `${number(total)} timers${found.unknown.length || found.lake ? ", as far as is known," : ""} wait in ${found.counts.length} ${unit}s of ${title}; times are UTC.`),
      ...(found.cut ? [el("p", { class: "bad" }, "There was no time to count all of them.")] : []), ...missing(found),
      ...(fullest.length ? [
        heatMap(counts, most, Array.from({ length: rows }, (_, index) => start + index * span), { length, perRow, label }),
        el("h3", {}, found.counts.length > FULLEST ? `The ${FULLEST} fullest ${unit}s` : `These ${unit}s`),
        el("ol", { class: "bars" }, fullest.map((each) => bar(each, length, most))),
      ] : [nothing("Nothing waits in this time.", found)]));
  } catch (error) {
    shown.replaceChildren(failure(error));
  }
}

const timersOf = (from, length) => `#/timers?from=${from}&to=${from + length}`;
const isHot = (count, length) => count / length > HOT_PER_S;

/** A row for each of *begins*; a row's name leads to its timers, by mouse a cell does too. */
function heatMap(counts, most, begins, { length, perRow, label }) {
  const cell = (second) => {
    const count = counts.get(second) ?? 0;
    const shade = count ? Math.min(SHADES, Math.ceil((SHADES * Math.log(1 + count)) / Math.log(1 + most))) : 0;
    return el("td", { class: `shade${shade}${isHot(count, length) ? " hot" : ""}`, "data-second": count ? second : null, title: count ? `${at(second)}: ${number(count)}` : null });
  };
  const row = (begin) => {
    const seconds = Array.from({ length: perRow }, (_, index) => begin + index * length);
    const sum = seconds.reduce((total, second) => total + (counts.get(second) ?? 0), 0);
    const name = new Date(begin * 1000).toISOString().slice(...label).replace("T", " ");
    return el("tr", {},
      el("th", { scope: "row" }, sum ? el("a", { href: timersOf(begin, perRow * length) }, name) : name),
      seconds.map(cell),
      el("td", { class: "number" }, sum ? number(sum) : ""));
  };
  const open = (event) => {
    const second = event.target.dataset.second;
    if (second) location.hash = timersOf(Number(second), length);
  };
  return el("table", { class: "heat", onclick: open }, el("caption", { class: "soft" }, "The darker, the more; each row's sum is at its end."), el("tbody", {}, begins.map(row)));
}

function bar({ second, count }, length, most) {
  const takes = isHot(count, length) ? ` takes ${Math.ceil(count / HOT_PER_S)} s` : "";
  return el("li", { class: takes ? "hot" : null },
    el("a", { href: timersOf(second, length) }, at(second).replace(" UTC", "")),
    el("meter", { min: "0", max: String(most), value: String(count), "aria-label": `${count} timers` }),
    el("span", {}, number(count) + takes));
}
