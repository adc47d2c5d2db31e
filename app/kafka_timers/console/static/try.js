// Ask for a timer, and see its callback come.

import { act, el, failure, link, quoted, send } from "./page.js";

const SHOWN = 50;
// A browser has six connections to a host, for all its pages together, and each page that watches keeps one.
const WATCHERS_MAX = 4;

export async function trial({ place, signal, mayAct }) {
  const field = (name, value, more = {}) => el("input", { name, value, required: true, ...more });
  const fields = { topic: field("topic", "callbacks"), after: field("after", "3", { type: "number", min: "0", step: "any" }), key: field("key", "order-7", { required: false }), value: field("value", "pay now", { required: false }), timerId: field("timerId", "", { required: false }) };
  const labels = { topic: "callback topic", after: "after, seconds", key: "key", value: "value", timerId: "timer id; one is made if empty" };
  const said = el("p", { role: "status" });
  const cli = el("pre");
  const callbacks = el("ol", { class: "life", "aria-live": "polite" });
  const watched = el("p", { class: "soft" }, "Send one, and its topic is watched.");
  const watcher = watcherOf(callbacks, watched, signal);

  const tell = () => {
    const option = (name, value) => (value ? ` --${name} ${quoted(value)}` : "");
    const after = Number(fields.after.value);
    cli.textContent = `kafka-timers send --in ${Number.isInteger(after) ? `${after}s` : `${Math.ceil(after * 1000)}ms`} --topic ${quoted(fields.topic.value)}${option("key", fields.key.value)} --value ${quoted(fields.value.value)}${option("timer-id", fields.timerId.value)}`;
  };
  const submit = async (event) => {
    event.preventDefault();
    said.replaceChildren("Asking …");
    const body = { topic: fields.topic.value, after: Number(fields.after.value), value: fields.value.value };
    if (fields.key.value) body.key = fields.key.value;
    if (fields.timerId.value) body.timerId = fields.timerId.value;
    try {
      await watcher.watch(body.topic);
      const made = await act("POST", "timers", body);
      said.replaceChildren("It fires at ", made.at.replace("T", " ").replace("Z", " UTC"), ": ", link(made.timerId, "timer", made.timerId));
    } catch (error) {
      said.replaceChildren(failure(error));
    }
  };
  place.append(el("h2", {}, "Try"), el("div", { class: "columns" },
    el("section", {}, el("h3", {}, "Ask for a timer"),
      el("form", { class: "row", onsubmit: submit, oninput: tell }, Object.entries(fields).map(([name, each]) => el("label", {}, labels[name], each)),
        el("button", { class: "act", disabled: !mayAct }, "Send")),
      said, cli, mayAct ? null : el("p", { class: "soft" }, "You may look only.")),
    el("section", {}, el("h3", {}, "Callbacks as they come"), watched, callbacks)));
  tell();
}

/** Watches one topic at a time, as long as this page is among the last ones that were begun or looked at. */
function watcherOf(list, told, signal) {
  const pages = new BroadcastChannel("watchers");
  const name = String(Math.random());
  const later = new Set();
  let topic = null;
  let leaving = null;
  const begin = async (wanted) => {
    later.clear();
    pages.postMessage(name);
    if (leaving && topic === wanted) return;
    leaving?.abort();
    if (topic !== wanted) list.replaceChildren();
    topic = wanted;
    const mine = (leaving = new AbortController());
    await watch(topic, list, told, mine.signal).catch((error) => {
      if (leaving === mine) leaving = null;
      throw error;
    });
  };
  pages.onmessage = ({ data }) => {
    later.add(data);
    if (!leaving || later.size < WATCHERS_MAX) return;
    leaving.abort();
    leaving = null;
    told.textContent = `${topic} is watched no more: ${WATCHERS_MAX} other pages watch. Come back to this page, and it goes on`;
  };
  const look = () => {
    if (topic !== null && !document.hidden) begin(topic).catch((error) => told.replaceChildren(failure(error)));
  };
  document.addEventListener("visibilitychange", look, { signal });
  window.addEventListener("focus", look, { signal });
  signal.addEventListener("abort", () => {
    leaving?.abort();
    pages.close();
  });
  return { watch: begin };
}

/** Shows what comes on *topic* from now on; returns once it is watched. */
async function watch(topic, list, told, signal) {
  const response = await send("GET", `events?topic=${encodeURIComponent(topic)}`, undefined, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  told.textContent = `watching ${topic}`;
  (async () => {
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const data = event.split("\n").find((line) => line.startsWith("data: "));
        if (data) list.prepend(shown(JSON.parse(data.slice(6))));
        while (list.children.length > SHOWN) list.lastChild.remove();
      }
    }
    told.textContent = `${topic} is watched no more`;
  })().catch(() => { if (!signal.aborted) told.textContent = `${topic} is watched no more`; });
}

const shown = (callback) => el("li", {},
  el("strong", {}, callback.key ?? callback.key_base64 ?? "no key"), " ", el("span", {}, callback.value ?? callback.value_base64 ?? "null"),
  el("br"), el("span", { class: "soft" }, callback.lateness_ms === null ? "no timer" : `${callback.lateness_ms} ms late, request ${callback.request}`));
