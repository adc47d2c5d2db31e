// What was refused, and sending it again.

import { act, ask, at, dueOf, el, failure, get, link, number, quoted, table, textOf } from "./page.js";

const HEADS = [{ name: "refused" }, { name: "reason" }, { name: "asks for" }, { name: "timer id" }, { name: "request" }, { name: "" }];

function asksFor(each) {
  if (each.times !== null) return ["schedule ", textOf(each, "scheduleId"), `: ${each.times || "no times"}, to ${each.topic || "no topic"}`];
  if (each.topic === null) return ["key ", textOf(each, "recordKey")];
  return each.cancel ? "a cancel" : `${each.topic}, ${at(dueOf(each))}`;
}

export async function refused(screen) {
  const { place, query, signal, mayAct } = screen;
  const [reason, topic] = [query.get("reason") ?? "", query.get("topic") ?? ""];
  const fields = { reason: el("input", { name: "reason", value: reason }), topic: el("input", { name: "topic", value: topic }) };
  const shown = el("div", { "aria-live": "polite" }, el("p", { class: "soft" }, "Looking …"));
  const search = (event) => {
    event.preventDefault();
    location.hash = `#/refused?${new URLSearchParams({ reason: fields.reason.value, topic: fields.topic.value })}`;
  };
  place.replaceChildren(el("h2", {}, "Refused"),
    el("form", { class: "row", onsubmit: search }, el("label", {}, "reason", fields.reason), el("label", {}, "callback topic", fields.topic), el("button", { class: "act" }, "Search")),
    shown);
  const said = el("p", { role: "status" });
  const redrive = async (each) => {
    const asked = await ask({ title: "Send it again?", text: `${each.timerId ?? "A timer without an id"} to ${each.topic}, with the value as it was. What is past fires at once. It is sent once: a second time it is refused.`, cli: `kafka-timers redrive ${each.place} --yes`, yes: "Send again" });
    if (asked === null) return;
    try {
      const answer = await act("POST", `rejected/${encodeURIComponent(each.place)}/redrive`, {});
      said.replaceChildren(`${each.place} was sent again, as request ${answer.request}: `, link(answer.timerId, "timer", answer.timerId));
    } catch (error) {
      said.replaceChildren(failure(error));
    }
  };
  try {
    const page = await get("rejected", { reason, topic });
    if (signal.aborted) return;
    const rows = page.rejected.reverse().map((each) => [
      each.at.replace("T", " ").replace("Z", ""),
      [each.reason, each.door && ` by door ${each.door}`, each.words && `: ${each.words}`].filter(Boolean).join(""),
      asksFor(each),
      each.timerId ? link(each.timerId, "timer", each.timerId) : "–",
      `${each.source} ${each.request}`,
      mayAct && each.topic !== null && !each.cancel && each.times === null ? el("button", { onclick: () => redrive(each), "aria-label": `Send ${each.place} again` }, "Send again") : "",
    ]);
    shown.replaceChildren(...[
      said,
      rows.length ? table(HEADS, rows) : el("p", {}, "Nothing of that kind was refused."),
      page.leftOut ? el("p", { class: "soft" }, `${number(page.leftOut)} earlier ones are not shown.`) : null,
      el("p", {}, el("code", {}, `kafka-timers rejected${reason ? ` --reason ${quoted(reason)}` : ""}${topic ? ` --topic ${quoted(topic)}` : ""}`)),
    ].filter(Boolean));
  } catch (error) {
    shown.replaceChildren(failure(error));
  }
}
