// Recurring timers: a list of them, one of them with what can be done to it, and the dialog that puts or changes one.

import { about, act, ask, at, dueOf, el, failure, fromNow, get, link, number, quoted, table, textOf } from "./page.js";

const HEADS = [{ name: "schedule" }, { name: "runs" }, { name: "next run" }, { name: "last run" }, { name: "state" }];
const WAIT_MS = 250;
const EXAMPLE = "kafka-timers schedule put report --cron '0 9 * * MON-FRI' --zone Europe/Paris --topic reports";
// The fields of each kind of times: its own, and those that go with it.
const KINDS = { cron: ["cron", "zone", "gap", "overlap"], everyS: ["everyS", "anchor"], at: ["at"] };

const pathOf = (id, action = "") => `schedules/${encodeURIComponent(id)}${action}`;

/** The moment of a run by the clocks of its schedule. */
const inZone = (run) => `${run.instant.replace("T", " ").replace(/(\d\d:\d\d(\.\d{1,3})?)\d*([+-]\d\d:\d\d(:\d\d)?)$/, "$1")} ${run.zone}`;
const inUtc = (run) => [at(dueOf(run)), ", ", fromNow(dueOf(run))];
const here = (run) => new Date(run.dueMs).toLocaleString("sv");
const localZone = () => Intl.DateTimeFormat().resolvedOptions().timeZone;

const nextOf = (told) => {
  if (told.problem) return el("span", { class: "bad" }, told.problem);
  if (told.paused) return el("span", { class: "soft" }, "none, as it is paused");
  const [run] = told.next;
  return run ? el("span", {}, inZone(run), el("br"), el("span", { class: "soft" }, inUtc(run))) : el("span", { class: "soft" }, "no more runs");
};

const lastOf = ({ lastRun }) =>
  lastRun ? el("span", {}, link(at(dueOf(lastRun)), "timer", lastRun.timerId), el("br"), el("span", { class: "soft" }, `${number(lastRun.latenessMs)} ms late`)) : "–";

function stateOf(told) {
  if (told.problem) return "cannot be planned";
  const skips = told.skips.length ? `leaves out ${told.skips.length === 1 ? "a run" : `${told.skips.length} runs`}` : "";
  if (told.paused) return `paused${told.pauseNote ? `: ${told.pauseNote}` : ""}`;
  return ["runs", skips].filter(Boolean).join(", ");
}

const runsTable = (runs, zone, skips = []) =>
  table([{ name: `run, by the clocks of ${zone}` }, { name: `fires, by yours (${localZone()})` }], runs.map((run) => [inZone(run), skips.includes(run.instant) ? "is left out" : here(run)]));

export async function schedules(screen) {
  const { place, rest, query, signal, mayAct } = screen;
  if (rest.length) {
    await one(screen, rest[0]);
    return;
  }
  const box = el("input", { name: "prefix", type: "search", class: "long", value: query.get("prefix") ?? "" });
  const shown = el("div", { class: "roomy", "aria-live": "polite" }, el("p", { class: "soft" }, "Looking …"));
  const search = (event) => {
    event.preventDefault();
    location.hash = `#/schedules?${new URLSearchParams({ prefix: box.value })}`;
  };
  place.append(el("h2", {}, "Schedules"),
    el("form", { class: "row", onsubmit: search }, el("label", {}, "beginning of ids", box), el("button", { class: "act" }, "Search"),
      mayAct ? el("button", { type: "button", onclick: putNew }, "Put a schedule") : null),
    shown);
  await list(shown, { prefix: box.value }, signal);
}

async function list(shown, filter, signal, cursor = null, before = []) {
  try {
    const page = await get("schedules", { ...filter, cursor });
    if (signal.aborted) return;
    const lasts = page.schedules.map(() => el("span", { class: "soft" }, "…"));
    const rows = [...before, ...page.schedules.map((each, index) => [link(each.scheduleId, "schedules", each.scheduleId), each.times, nextOf(each), lasts[index], stateOf(each)])];
    const more = page.cursor ? el("button", { onclick: () => list(shown, filter, signal, page.cursor, rows) }, "Show more") : "";
    shown.replaceChildren(rows.length ? table(HEADS, rows) : none(filter.prefix), more, el("p", {}, el("code", {}, `kafka-timers schedule list${filter.prefix ? ` --id-prefix ${quoted(filter.prefix)}` : ""}`)));
    // One by one: for each, its callback topic is looked at.
    for (const [index, each] of page.schedules.entries()) {
      const told = await get(pathOf(each.scheduleId)).catch(() => ({}));
      if (signal.aborted) return;
      lasts[index].replaceWith(lastOf(told));
    }
  } catch (error) {
    if (!signal.aborted) shown.replaceChildren(failure(error));
  }
}

const none = (prefix) =>
  prefix
    ? el("p", {}, "There is no schedule whose id begins so.")
    : el("div", {}, el("p", {}, "There is no schedule yet. One has a timer come again and again: by a cron expression, every so many seconds, or at the moments of a list."),
      el("p", {}, "Put one here, or by the command line, and you see its next runs:"), el("pre", {}, EXAMPLE));

async function one(screen, id) {
  const { place, signal } = screen;
  place.replaceChildren(el("h2", {}, id), el("p", { class: "soft" }, "Looking …"));
  try {
    const told = await get(pathOf(id));
    if (!signal.aborted) draw(screen, told);
  } catch (error) {
    if (signal.aborted) return;
    const again = error.status === 503 ? el("button", { onclick: () => one(screen, id) }, "Look again") : "";
    place.replaceChildren(el("h2", {}, id), failure(error), again, el("p", {}, link("All schedules", "schedules")));
  }
}

function draw(screen, told, message = "") {
  const { place, signal, mayAct } = screen;
  const id = told.scheduleId;
  const said = el("p", { role: "status" }, message);
  const [run] = told.next;
  const command = (name, options = "") => `kafka-timers schedule ${name} ${about(id, options).trim()}`;
  // What was typed, or "", is null if nobody confirms.
  const action = (question, method, path, does) => async () => {
    const typed = await ask(question);
    if (typed === null) return;
    try {
      const answer = await act(method, `${pathOf(id, path)}?version=${told.version}`, does?.body?.(typed));
      await after(does.said(answer));
    } catch (error) {
      said.replaceChildren(failure(error), error.status === 409 ? el("button", { onclick: () => one(screen, id) }, "Look again") : "");
    }
  };
  const after = async (words) => {
    if (signal.aborted) return;
    try {
      draw(screen, await get(pathOf(id)), words);
    } catch (error) {
      place.replaceChildren(el("h2", {}, id), error.status === 404 ? el("p", { role: "status" }, words) : failure(error), el("p", {}, link("All schedules", "schedules")));
    }
    place.querySelector("button, a")?.focus();
  };
  const buttons = [
    ["Change", () => edit(told, () => after("It was changed."))],
    told.paused
      ? ["Resume", action({ title: "Let it run again?", text: `${id} would run by its times from now on. Runs in the pause are not made up for.`, cli: command("resume"), yes: "Resume" }, "POST", "/resume", { said: () => "It runs again." })]
      : ["Pause", action({ title: "Pause it?", text: `${id} would not run until somebody resumes it.`, cli: (note) => command("pause", `--note ${quoted(note)}`), input: "Why, for people", yes: "Pause" }, "POST", "/pause", { body: (note) => ({ note }), said: () => "It is paused." })],
    ["Run now", action({ title: "Run it now?", text: `A run to ${told.topic} would fire at once, besides those that ${id} has.`, cli: command("run"), yes: "Run now" }, "POST", "/run", { said: (answer) => ["A run was asked for: ", link(answer.timerId, "timer", answer.timerId)] })],
    run && !told.paused ? ["Skip the next", action({ title: "Leave the next run out?", text: `The run of ${inZone(run)} would not fire.`, cli: command("skip"), yes: "Leave it out" }, "POST", "/skip", { body: () => ({ instant: run.instant }), said: () => `The run of ${inZone(run)} is left out.` })] : null,
    told.skips.length ? ["Bring back", action({ title: "Bring runs back?", text: `All runs that ${id} leaves out would fire again.`, cli: command("skip", "--undo"), yes: "Bring back" }, "POST", "/unskip", { said: () => "No run is left out." })] : null,
    ["Delete", action({ title: "Delete it?", text: `${id} would not run any more.`, cli: command("delete"), yes: "Delete" }, "DELETE", "", { said: () => `${id} was deleted.` })],
  ].filter(Boolean);
  place.replaceChildren(
    el("h2", {}, id),
    el("p", { class: `state${told.problem ? " bad" : ""}` }, `${told.times}; ${told.paused || told.problem ? stateOf(told) : run ? `next ${inZone(run)}, ${fromNow(dueOf(run))}` : "no more runs"}`),
    told.problem ? el("p", { class: "bad" }, told.problem) : "",
    el("div", { class: "buttons" }, mayAct ? buttons.map(([text, does]) => el("button", { onclick: does }, text)) : el("span", { class: "soft" }, "You may look only.")),
    said,
    told.note ? el("p", {}, told.note) : "",
    table([{ name: "topic" }, { name: "key" }, { name: "value" }, { name: "last run" }], [[told.topic, textOf(told, "key"), told.wish.tombstone ? "none" : textOf(told.wish, "value"), lastOf(told)]]),
    ...(told.skips.length ? [el("p", {}, `Left out: ${told.skips.map((each) => each.replace("T", " ")).join(", ")}`)] : []),
    el("h3", {}, told.paused ? "Runs that it would have" : "Next runs"),
    told.next.length ? el("div", { class: "plan" }, runsTable(told.next, told.zone)) : el("p", { class: "soft" }, "None."),
    el("p", {}, el("code", {}, command("show"))));
}

// --- the dialog ------------------------------------------------------------------------------------------------------

const putNew = () => edit(null, (id) => { location.hash = `#/${["schedules", id].map(encodeURIComponent).join("/")}`; });

/** What cannot be typed stays: bytes that are no text, and no value at all. */
const isFixed = (wish, name) => wish[`${name}Base64`] !== undefined || (name === "value" && wish.tombstone === true);

/** Asks for a schedule, or for changes of the one that was *told*, and has *done* called with its id. */
function edit(told, done) {
  const wish = told?.wish ?? {};
  const input = (name, value, more = {}) => el("input", { name, value: value ?? "", ...more });
  const text = (name) => (isFixed(wish, name) ? { disabled: true, placeholder: "stays as it is" } : {});
  const choice = Object.keys(KINDS).find((each) => wish[each] !== undefined) ?? "cron";
  const kinds = { cron: "cron expression", everyS: "seconds between two runs", at: "moments, with commas between them" };
  const examples = { cron: "0 9 * * MON-FRI", everyS: "3600", at: "2030-01-31T12:00:00Z" };
  const fields = {
    id: input("id", told?.scheduleId, told ? { readonly: true } : { required: true }),
    kind: el("select", { name: "kind" }, Object.entries(kinds).map(([name, words]) => el("option", { value: name, selected: name === choice }, words))),
    times: input("times", String(wish[choice] ?? ""), { required: true }),
    zone: input("zone", wish.zone ?? localZone(), { required: true }),
    topic: input("topic", wish.topic, { required: true }),
    key: input("key", wish.key, text("key")),
    value: el("textarea", { name: "value", rows: "2", ...text("value") }, wish.value ?? ""),
    note: input("note", wish.note),
  };
  const labels = { id: "id", kind: "runs by", times: "times", zone: "time zone", topic: "callback topic", key: "key", value: "value", note: "note for people" };
  const boxes = Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, el("label", {}, labels[name], field)]));
  const plan = el("div", { class: "plan", role: "status" });
  const cli = el("pre");
  const said = el("p", { role: "alert", class: "bad" });

  const times = () => {
    const { kind, times: { value } } = fields;
    const kept = kind.value === choice ? Object.fromEntries(KINDS[choice].slice(1).filter((name) => wish[name] !== undefined).map((name) => [name, wish[name]])) : {};
    if (kind.value === "cron") return { ...kept, cron: value, zone: fields.zone.value };
    if (kind.value === "everyS") return { ...kept, everyS: Number(value) };
    return { at: value.split(",").map((each) => each.trim()).filter(Boolean) };
  };
  const typed = () => ({
    times: times(),
    topic: fields.topic.value,
    ...(isFixed(wish, "key") ? {} : { key: fields.key.value || null }),
    ...(isFixed(wish, "value") ? {} : { value: fields.value.value }),
    note: fields.note.value,
  });
  const before = typed();
  const changes = () => {
    const now = typed();
    const { times: changed, ...others } = Object.fromEntries(Object.entries(now).filter(([name]) => !told || JSON.stringify(now[name]) !== JSON.stringify(before[name])));
    return { ...changed, ...others };
  };
  const command = () => {
    const { cron, zone, everyS, at: moments = [], ...others } = changes();
    const options = [["cron", cron], ["zone", cron && zone], ["every", everyS && `${Math.round(everyS * 1000)}ms`], ...moments.map((each) => ["at", each]), ...["topic", "key", "value", "note"].map((name) => [name, others[name]])];
    return `kafka-timers schedule ${told ? "change" : "put"} ${about(fields.id.value || "ID", options.filter(([, given]) => given).map(([name, given]) => `--${name} ${quoted(given)}`).join(" "))}`;
  };
  // Of several questions only the last one draws.
  let turn = 0;
  const preview = async () => {
    const mine = (turn += 1);
    fields.times.placeholder = examples[fields.kind.value];
    // One that is hidden need not be filled in.
    boxes.zone.hidden = fields.zone.disabled = fields.kind.value !== "cron";
    cli.textContent = command();
    if (!fields.times.value || !fields.topic.value) {
      plan.replaceChildren(el("p", { class: "soft" }, "Give times and a topic, and see the next ten runs here."));
      return;
    }
    await new Promise((after) => setTimeout(after, WAIT_MS));
    if (mine !== turn) return;
    const kept = Object.fromEntries(Object.entries(wish).filter(([name]) => !Object.values(KINDS).flat().includes(name)));
    const { times: asked, ...others } = typed();
    let shown;
    try {
      const found = await act("POST", `schedules/preview?${new URLSearchParams({ id: fields.id.value || "preview" })}`, { ...kept, ...others, ...asked });
      shown = runsTable(found.next, asked.zone ?? "UTC", told?.skips);
    } catch (error) {
      shown = el("p", { class: "bad" }, error.message);
    }
    if (mine === turn) plan.replaceChildren(shown);
  };
  const submit = async (event) => {
    event.preventDefault();
    said.replaceChildren();
    const id = fields.id.value;
    try {
      if (told) await act("PATCH", `${pathOf(id)}?version=${told.version}`, changes());
      else await act("PUT", `${pathOf(id)}?version=new`, changes());
      dialog.close();
      done(id);
    } catch (error) {
      said.replaceChildren(error.message);
    }
  };
  const dialog = el("dialog", { class: "wider", "aria-labelledby": "edit-title", onclose: () => dialog.remove() },
    el("form", { onsubmit: submit, oninput: preview },
      el("h2", { id: "edit-title" }, told ? "Change it" : "Put a schedule"),
      el("div", { class: "fields" }, Object.values(boxes)),
      el("h3", {}, "Next runs"), plan, cli, said,
      el("p", { class: "buttons" }, el("button", { class: "act" }, told ? "Change it" : "Put it"), el("button", { type: "button", onclick: () => dialog.close() }, "Leave it"))));
  document.body.append(dialog);
  dialog.showModal();
  (told ? fields.times : fields.id).focus();
  preview();
}
