// Which topics get callbacks next, and which of them lack something.

import { at, el, failure, get, missing, nothing, number, table } from "./page.js";

const HEADS = [{ name: "topic" }, { name: "partitions", number: true }, { name: "come next", number: true }, { name: "first" }, { name: "refused in an hour", number: true }, { name: "" }];

const wrongOf = (each) => {
  if (!each.isAllowed) return "none that workers may write to";
  return each.partitions === null ? "does not exist, or this console may not look at it" : "";
};

export async function topics({ place, signal }) {
  const shown = el("div", { "aria-live": "polite" }, el("p", { class: "soft" }, "Looking …"));
  place.append(el("h2", {}, "Topics"), shown);
  try {
    const found = await get("topics");
    if (signal.aborted) return;
    const which = found.more ? `the ${number(found.lookedAt)} timers that fire next` : found.unknown.length || found.lake ? `the ${number(found.lookedAt)} timers that are known` : `all ${number(found.lookedAt)} timers that wait`;
    const rows = found.topics.map((each) => [
      el("a", { href: `#/timers?${new URLSearchParams({ q: each.name })}` }, each.name),
      number(each.partitions),
      number(each.coming),
      at(each.nextSecond),
      each.refused ? el("a", { href: `#/refused?${new URLSearchParams({ topic: each.name })}` }, number(each.refused)) : "0",
      wrongOf(each) ? el("span", { class: "bad" }, wrongOf(each)) : "",
    ]);
    shown.replaceChildren(...[
      el("p", {}, `Callback topics of ${which}, and of what was refused within an hour.`),
      ...missing(found),
      rows.length ? table(HEADS, rows) : nothing("None.", found),
    ].filter(Boolean));
  } catch (error) {
    shown.replaceChildren(failure(error));
  }
}
