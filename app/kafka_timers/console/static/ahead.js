// How many timers wait in each second, minute or hour to come.

import { at, el, failure, get, number, unknown } from "./page.js";

const UNITS = { second: 1, minute: 60, hour: 3_600 };
// What one worker was measured to fire second after second on two cores, see docs/performance.md.
const HOT_PER_S = 80_000;

export async function ahead({ place, query, signal }) {
  const unit = query.get("unit") in UNITS ? query.get("unit") : "minute";
  const choose = el("select", { name: "unit", onchange: (event) => { location.hash = `#/ahead?unit=${event.target.value}`; } },
    Object.keys(UNITS).map((name) => el("option", { value: name, selected: name === unit }, `${name}s`)));
  const shown = el("div", { "aria-live": "polite" }, el("p", { class: "soft" }, "Counting …"));
  place.append(el("h2", {}, "Ahead"), el("form", { class: "row" }, el("label", {}, "count by", choose)), shown);
  try {
    const length = UNITS[unit];
    const found = await get("ahead", { unit, to: Math.floor(Date.now() / 1000 / length + (unit === "hour" ? 48 : 60)) * length });
    if (signal.aborted) return;
    const most = Math.max(1, ...found.counts.map((each) => each.count));
    const total = found.counts.reduce((sum, each) => sum + each.count, 0);
    const rows = found.counts.map(({ second, count }) => {
      const isHot = count / length > HOT_PER_S;
      const takes = isHot ? ` takes ${Math.ceil(count / HOT_PER_S)} s` : "";
      return el("li", { class: isHot ? "hot" : null },
        el("a", { href: `#/timers?from=${second}&to=${second + length}` }, at(second).replace(" UTC", "")),
        el("meter", { min: "0", max: String(most), value: String(count), "aria-label": `${count} timers` }),
        el("span", {}, number(count) + takes));
    });
    shown.replaceChildren(
      el("p", {}, `${number(total)} timers wait in ${found.counts.length} ${unit}s; times are UTC.`),
      ...[found.cut ? el("p", { class: "bad" }, "There was no time to count all of them.") : null, unknown(found.unknown)].filter(Boolean),
      rows.length ? el("ol", { class: "bars" }, rows) : el("p", {}, "Nothing waits in this time."));
  } catch (error) {
    shown.replaceChildren(failure(error));
  }
}
