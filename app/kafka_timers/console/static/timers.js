// Search among the timers that wait, and all of one.

import { about, act, ask, at, bytesOf, dueOf, el, failure, fromNow, get, hex, link, missing, nothing, number, quoted, table, textOf } from "./page.js";

const AGAIN_MS = 2_000;
const HEADS = [{ name: "fires" }, { name: "timer id" }, { name: "topic" }, { name: "key" }, { name: "request" }, { name: "bytes", number: true }];

const row = (each) => [
  el("span", {}, at(dueOf(each)), " ", el("span", { class: "soft" }, fromNow(dueOf(each)))),
  each.timerId ? link(each.timerId, "timer", each.timerId) : el("span", { class: "soft" }, "none"),
  each.topic ?? "–", textOf(each, "key"), each.request, number(each.valueBytes),
];

// States of records that changed nothing.
const DID_NOTHING = ["ignored", "too late", "unknown"];

/** What chooses the partition of the callback. */
const placed = (told) => (told.partition !== null ? number(told.partition) : told.partitionKey === null && told.partitionKeyBase64 === null ? "–" : ["by ", textOf(told, "partitionKey")]);

const isRequest = (text) => /^\d{1,9}:\d{1,18}$/.test(text);

/** What a text in the search box may mean: a request, a time, or an id, a prefix, a key, a topic. */
function meanings(text) {
  const time = /^\d{4}-\d\d-\d\d/.test(text) ? Date.parse(text.length === 10 ? text + "T00:00:00Z" : text) / 1000 : /^\d{9,11}$/.test(text) ? Number(text) : NaN;
  if (!Number.isNaN(time)) return [["that fire from then on", { from: String(Math.floor(time)) }]];
  return [["whose id begins so", { prefix: text }], ["with this key", { key: text }], ["with this topic", { topic: text }]];
}

export async function timers({ place, query, signal }) {
  const text = query.get("q") ?? "";
  const box = el("input", { name: "q", type: "search", class: "long", value: text, "aria-label": "Search" });
  const shown = el("div", { "aria-live": "polite" });
  place.append(el("h2", {}, "Timers"),
    el("form", { class: "row", onsubmit: (event) => { event.preventDefault(); location.hash = `#/timers?q=${encodeURIComponent(box.value)}`; } },
      el("label", {}, "id, beginning of ids, key, topic, partition:offset or time", box), el("button", { class: "act" }, "Search")),
    shown);
  const range = { from: query.get("from"), to: query.get("to") };
  const wanted = text ? meanings(text) : [[range.from ? `from ${at(Number(range.from))} on` : "that fire next", range]];
  const parts = wanted.map(async ([what, filter]) => {
    const part = el("section", {}, el("h3", {}, `Timers ${what}`), el("p", { class: "soft" }, "Looking …"));
    shown.append(part);
    await list(part, what, filter, signal);
  });
  if (isRequest(text)) parts.unshift(request(shown, text, signal));
  if (text) {
    shown.prepend(el("p", {}, link(`Look for the id ${text}, also among those that have fired`, "timer", text)));
  }
  await Promise.all(parts);
}

async function request(place, at_, signal) {
  const part = el("section", {}, el("h3", {}, `Request ${at_}`), el("p", { class: "soft" }, "Looking …"));
  place.append(part);
  try {
    const told = await get(`requests/${at_}`);
    if (signal.aborted) return;
    if (told.problem) {
      const parts = { key: told.recordKey, keyBase64: told.recordKeyBase64, value: told.recordValue, valueBase64: told.recordValueBase64 };
      part.replaceChildren(el("h3", {}, `Request ${at_}`), el("p", { class: "bad" }, `It is no request: ${told.problem}`),
        el("p", {}, "Key of the record: ", textOf(parts, "key")), el("h3", {}, "Value of the record"), values(parts));
      return;
    }
    const waits = told.waits === null ? "whether it waits is not known: no worker tells, or it lies in the lake" : told.waits ? "it waits" : "it waits no more";
    part.replaceChildren(
      el("h3", {}, `Request ${at_}`),
      el("p", { class: "state" }, told.cancel ? `A cancel, of ${told.appended}` : `Asked for ${told.appended ? `at ${told.appended}` : "before the log begins"}, for ${at(dueOf(told))}: ${waits}`),
      table(HEADS, [row({ ...told, valueBytes: bytesOf(told).length })]),
      ...(told.cancel ? [] : [el("h3", {}, "Value"), values(told)]));
  } catch (error) {
    part.replaceChildren(el("h3", {}, `Request ${at_}`), failure(error));
  }
}

async function list(part, what, filter, signal, cursor = null, before = []) {
  try {
    const page = await get("timers", { ...filter, cursor, limit: 50 });
    if (signal.aborted) return;
    const rows = [...before, ...page.timers.map(row)];
    const more = page.cursor ? el("button", { onclick: () => list(part, what, filter, signal, page.cursor, rows) }, page.cut ? "Look further" : "Show more") : null;
    part.replaceChildren(...[
      el("h3", {}, `Timers ${what}`),
      rows.length ? table(HEADS, rows) : nothing("None.", page),
      page.cut ? el("p", { class: "bad" }, "There was no time to look at all of them yet.") : null,
      ...missing(page), more].filter(Boolean));
  } catch (error) {
    part.replaceChildren(el("h3", {}, `Timers ${what}`), failure(error));
  }
}

function values(told) {
  if (!told.valueBase64 && (told.value ?? null) === null) return el("p", { class: "soft" }, "None: a tombstone.");
  const bytes = bytesOf(told);
  const pretty = () => { try { return JSON.stringify(JSON.parse(told.value), null, 2); } catch { return null; } };
  const forms = { text: told.value, JSON: told.value ? pretty() : null, hex: hex(bytes) };
  const box = el("pre", { tabindex: "0" });
  const choose = (name) => { box.textContent = forms[name]; };
  choose(forms.JSON ? "JSON" : forms.text === null || forms.text === undefined ? "hex" : "text");
  const buttons = Object.keys(forms).filter((name) => forms[name] !== null && forms[name] !== undefined).map((name) => el("button", { type: "button", onclick: () => choose(name) }, name));
  return el("div", {}, el("div", { class: "buttons" }, buttons), box);
}

export async function timer(screen) {
  const { place, rest, signal } = screen;
  const id = rest[0] ?? "";
  place.replaceChildren(el("h2", {}, id), el("p", { class: "soft" }, "Looking …"));
  // Of several that were begun only the last one draws.
  const turn = (screen.turn = (screen.turn ?? 0) + 1);
  const isOver = () => signal.aborted || screen.turn !== turn;
  try {
    const told = await get(`timers/${encodeURIComponent(id)}`);
    if (isOver()) return;
    draw(screen, id, told);
    if (!told.complete) await readOn(screen, id, isOver);
  } catch (error) {
    if (isOver()) return;
    const again = error.status === 503 ? el("button", { onclick: () => timer(screen) }, "Look again") : "";
    place.replaceChildren(el("h2", {}, id), failure(error), again);
  }
}

/** Asks again until the log is read, which takes long when it is long. */
async function readOn(screen, id, isOver) {
  const state = document.getElementById("reading");
  while (!isOver()) {
    try {
      const told = await get(`timers/${encodeURIComponent(id)}`);
      if (isOver()) return;
      if (told.complete) {
        draw(screen, id, told);
        return;
      }
    } catch (error) {
      state.textContent = `${error.message}. Asking again …`;
      await new Promise((done) => setTimeout(done, AGAIN_MS));
    }
  }
}

function draw(screen, id, told) {
  const { place, mayAct } = screen;
  const waits = told.state === "pending" || told.state === "parked";
  const after = async (what, done) => {
    if (what === null) return;
    screen.met = null;
    try {
      await done(what);
    } catch (error) {
      screen.met = failure(error);
    }
    // After a refusal too: what stands now may be another timer than the one that was shown.
    await timer(screen);
  };
  // An action counts for the request that is shown, and for no other.
  const path = `timers/${encodeURIComponent(id)}?request=${told.request}`;
  const command = (name, options) => `kafka-timers ${name} ${about(id, options)}`;
  const cancel = async () => after(
    await ask({ title: "Take it back?", text: `${id} would not fire.`, cli: command("cancel", `--if-pending --request ${told.request}`), yes: "Take it back" }),
    () => act("DELETE", path));
  const fire = async () => after(
    await ask({ title: "Fire it now?", text: `${id} would fire now, and not at ${told.at}.`, cli: command("fire-now", `--request ${told.request}`), yes: "Fire it" }),
    () => act("PATCH", path, { after: 0 }));
  const move = async () => after(
    await ask({ title: "Move it", text: "RFC 3339 with a zone, or UNIX seconds. All else stays as it is.", cli: (when) => command("move", `--at ${quoted(when)} --if-pending --request ${told.request}`), input: "New time", value: told.at, yes: "Move it" }),
    (when) => act("PATCH", path, { at: when }));
  const again = async () => after(
    await ask({ title: "Ask for it again?", text: "The same callback, in five seconds.", cli: command("ask-again", `--in 5s --request ${told.request}`), yes: "Ask again" }),
    () => act("PUT", path, { after: 5 }));
  const buttons = waits
    ? [["Take back", cancel], ["Move", move], ["Fire now", fire]]
    : [["Ask again", again]];
  place.replaceChildren(
    el("h2", {}, id),
    el("p", { class: `state${told.state === "refused" ? " bad" : ""}` }, `${told.state}${told.reason ? `, ${told.reason}` : ""}; ${waits ? "fires" : "was for"} ${at(dueOf(told))}, ${fromNow(dueOf(told))}`),
    told.problem ? el("p", { class: "bad" }, told.problem) : "",
    el("div", { class: "buttons" }, mayAct ? buttons.map(([text, does]) => el("button", { onclick: does }, text)) : el("span", { class: "soft" }, "You may look only.")),
    el("p", { role: "status" }, screen.met),
    el("h3", {}, "Callback"),
    table([{ name: "topic" }, { name: "key" }, { name: "partition" }, { name: "token" }, { name: "request" }], [[told.topic, textOf(told, "key"), placed(told), told.token ?? "–", told.request]]),
    ...(told.headers?.length ? [table([{ name: "header" }, { name: "value" }], told.headers.map((each) => [each.name, textOf(each, "value")]))] : []),
    el("h3", {}, "Value"), values(told),
    el("h3", {}, "Its life"),
    told.complete ? "" : el("p", { id: "reading", class: "soft", role: "status" }, "The log is still being read …"),
    el("ol", { class: "life" }, told.history.map((each) => el("li", { class: DID_NOTHING.includes(each.state) ? "soft" : null },
      el("strong", {}, each.cancel ? "taken back" : "asked for"), `${each.appended ? ` at ${each.appended.replace("T", " ").replace("Z", " UTC")}` : " before the log begins"}, request ${each.request}`,
      el("br"), each.cancel ? `the cancel: ${each.state}` : `for ${at(dueOf(each))}: ${each.state}${each.reason ? `, ${each.reason}` : ""}`, each.state === "ignored" ? "; its condition did not hold, and it changed nothing" : ""))),
    el("p", {}, el("code", {}, `kafka-timers find ${about(id, "")}`.trim())));
}
