// Is it firing? And the partitions one by one.

import { at, el, failure, fromNow, get, link, number, table } from "./page.js";

const EVERY_MS = 2_000;

/** Shows what *draw* makes of the status, again and again until another screen is shown. */
async function live({ place, signal }, draw) {
  while (!signal.aborted) {
    let shown;
    try {
      shown = draw(await get("status"));
    } catch (error) {
      shown = [failure(error)];
    }
    if (signal.aborted) return;
    place.replaceChildren(...shown.filter(Boolean));
    await new Promise((done) => setTimeout(done, EVERY_MS));
  }
}

const OLD_S = 4;

const worst = (rows, name) => rows.reduce((most, row) => (row[name] === null ? most : Math.max(most ?? 0, row[name])), null);
const sum = (rows, name) => rows.reduce((total, row) => total + (row[name] ?? 0), 0);

function summary(status) {
  const rows = status.partitions;
  const oldest = rows.some((row) => row.second === null) ? null : Math.min(...rows.map((row) => row.second));
  if (status.problems.length) return el("p", { class: "state bad" }, `Something is wrong: ${status.problems.length === 1 ? status.problems[0] : `${status.problems.length} things, below`}`);
  return el("p", { class: "state" }, `It fires: every partition is sealed up to ${at(oldest)}, ${fromNow(oldest)}.`);
}

export const now = (screen) =>
  live(screen, (status) => {
    const rows = status.partitions;
    const ages = rows.map((row) => row.tick_age_s).filter((age) => age !== null);
    const oscillators = [...new Set(rows.map((row) => row.ticked_by).filter(Boolean))];
    const refused = status.refused ? Object.entries(status.refused.reasons) : [];
    const figures = {
      "fires a second": number(Math.round(sum(rows, "fired_per_s"))),
      "wait": rows.some((row) => row.pending === null) ? "unknown" : number(sum(rows, "pending")),
      "late, p50 / p99": `${number(worst(rows, "lateness_p50_ms"))} / ${number(worst(rows, "lateness_p99_ms"))} ms`,
      "last tick": ages.length ? `${Math.min(...ages).toFixed(1)} s ago` : "none",
      "oldest unsealed": rows.some((row) => row.lag_s === null) ? "nothing sealed" : `${worst(rows, "lag_s")} s`,
      "request log": `${number(sum(rows, "log_records"))} records${rows.some((row) => row.log_bytes === null) ? "" : `, ${number(Math.ceil(sum(rows, "log_bytes") / 1e6))} MB`}`,
      "refused in an hour": status.refused ? number(refused.reduce((total, [, count]) => total + count, 0)) : "unknown",
    };
    return [
      el("h2", {}, "Now"),
      summary(status),
      status.age_s > OLD_S ? el("p", { class: "bad" }, `Kafka takes long to answer: this is from ${Math.round(status.age_s)} s ago.`) : null,
      status.problems.length > 1 ? el("ul", { class: "bad" }, status.problems.map((each) => el("li", {}, each))) : null,
      el("dl", { class: "figures" }, Object.entries(figures).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
      refused.length ? el("p", {}, "Refused: ", refused.map(([reason, count]) => `${number(count)} ${reason}`).join(", "), ". ", link("Look at them", "refused")) : null,
      el("h3", {}, "Oscillators"),
      el("p", {}, oscillators.length ? `The last ticks are of ${oscillators.join(", ")}; one that stands by writes none.` : "No tick tells of one."),
      el("h3", {}, "Workers"),
      (status.workers || []).length ? table([{ name: "address" }, { name: "host" }, { name: "partitions" }], status.workers.map((each) => [each.url, each.host, each.partitions.join(", ")])) : el("p", {}, "None is in the group."),
      status.doors.length ? el("h3", {}, "Doors") : null,
      status.doors.length ? table([{ name: "door" }, { name: "topic" }, { name: "not read yet", number: true }, { name: "readers", number: true }], status.doors.map((each) => [each.door, each.topic, number(each.lag), number(each.readers)])) : null,
    ];
  });

export const partitions = (screen) =>
  live(screen, (status) => [
    el("h2", {}, "Partitions"),
    table(
      [{ name: "partition", number: true }, { name: "sealed up to" }, { name: "lag, s", number: true }, { name: "wait", number: true }, { name: "a second", number: true }, { name: "late p50/p99/max, ms" }, { name: "owner" }],
      status.partitions.map((row) => [
        number(row.partition),
        at(row.second),
        number(row.lag_s),
        number(row.pending),
        number(row.fired_per_s),
        [row.lateness_p50_ms, row.lateness_p99_ms, row.lateness_max_ms].map(number).join(" / "),
        row.owner ?? "–",
      ])),
  ]);
