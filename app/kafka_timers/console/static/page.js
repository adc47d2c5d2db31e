// What screens share: elements without markup in texts, questions to the API, times, and the dialog before an action.

/** An element; texts become text, never markup. Attributes that begin with "on" are listeners. */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (typeof value === "boolean") made.toggleAttribute(key, value);
    else if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export const link = (text, ...path) => el("a", { href: "#/" + path.map(encodeURIComponent).join("/") }, text);

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

const LIMIT_MS = 15_000;
const token = { get: () => sessionStorage.getItem("token"), set: (value) => sessionStorage.setItem("token", value) };

/** Asks the API, as `fetch` does; raises `Refused` with the sentence that it answers. */
export async function send(method, path, body, signal = AbortSignal.timeout(LIMIT_MS)) {
  const headers = { Accept: "application/json" };
  if (token.get()) headers.Authorization = "Bearer " + token.get();
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch("v1/" + path, { method, headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    throw new Refused(0, error.name === "TimeoutError" ? "no answer in time" : "the console does not answer");
  }
  if (response.status === 401) {
    const given = await ask({ title: "A token is needed", text: "As in the console's --token-file.", input: "Token", type: "password", yes: "Go on" });
    if (given === null) throw new Refused(401, "a token is needed");
    token.set(given);
    return send(method, path, body);
  }
  if (!response.ok) {
    const problem = await response.json().catch(() => ({}));
    throw new Refused(response.status, problem.detail || `answered ${response.status}`);
  }
  return response;
}

export const get = async (path, parameters = {}) => {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(given).toString();
  return (await send("GET", path + (query && "?" + query))).json();
};

export const act = async (method, path, body) => (await send(method, path, body)).json();

/** Asks before an action; null if it is to be left, otherwise what was typed, or "". *cli* may depend on that. */
export function ask({ title, text = "", cli = "", input = "", type = "text", value = "", yes }) {
  const dialog = document.getElementById("ask");
  const field = document.getElementById("ask-input");
  document.getElementById("ask-title").textContent = title;
  document.getElementById("ask-text").textContent = text;
  const tell = () => { document.getElementById("ask-cli").textContent = typeof cli === "string" ? cli : cli(field.value); };
  document.getElementById("ask-cli").hidden = !cli;
  document.getElementById("ask-label").hidden = !input;
  document.querySelector("#ask-label span").textContent = input;
  document.getElementById("ask-yes").textContent = yes;
  field.type = type;
  field.value = value;
  field.oninput = tell;
  tell();
  dialog.returnValue = "no";
  dialog.showModal();
  // So that Enter that is held down on a page's button does not go on in the dialog.
  if (!input) document.getElementById("ask-no").focus();
  return new Promise((done) => {
    dialog.addEventListener("close", () => done(dialog.returnValue === "yes" ? field.value : null), { once: true });
  });
}

export const at = (second) => (second === null || second === undefined ? "–" : new Date(second * 1000).toISOString().replace("T", " ").replace(/(\.000)?Z$/, " UTC"));

/** When a timer is due, in UNIX seconds with their fraction; null if nothing tells. */
export const dueOf = ({ dueMs }) => (dueMs === null || dueMs === undefined ? null : dueMs / 1000);

/** A time from now on, as people say it: "in 3 min", "2 h ago". */
export function fromNow(second) {
  if (second === null || second === undefined) return "";
  const delta = Math.round(second - Date.now() / 1000);
  const size = Math.abs(delta);
  const [amount, unit] = size < 100 ? [size, "s"] : size < 6_000 ? [Math.round(size / 60), "min"] : size < 172_800 ? [Math.round(size / 3600), "h"] : [Math.round(size / 86_400), "d"];
  return delta < 0 ? `${amount} ${unit} ago` : `in ${amount} ${unit}`;
}

export const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));

/** A word of a command line, as a shell takes it. */
export const quoted = (text) => (/^[\w.:/@+-]+$/.test(text) ? text : "'" + text.replaceAll("'", `'"'"'`) + "'");

/** The options of a command about the timer of *id*, and that id. */
export const about = (id, options) => (id.startsWith("-") ? `${options} -- ${quoted(id)}` : `${quoted(id)} ${options}`);

/** The bytes of a field, which JSON has as text or in base64. */
export function bytesOf(told, name = "value") {
  const encoded = told[`${name}Base64`];
  if (encoded) return Uint8Array.from(atob(encoded), (each) => each.charCodeAt(0));
  return new TextEncoder().encode(told[name] ?? "");
}

export const hex = (bytes) => Array.from(bytes, (each) => each.toString(16).padStart(2, "0")).join(" ");

/** A field for people: its text, its bytes in hex if it is none, "empty", or a dash if there is none. */
export function textOf(told, name) {
  if (told[`${name}Base64`]) return el("code", { title: "not UTF-8: in hex" }, hex(bytesOf(told, name)));
  return told[name] === "" ? el("span", { class: "soft" }, "empty") : told[name] ?? "–";
}

export function table(heads, rows) {
  const cell = (tag, content, index) => el(tag, { class: heads[index].number ? "number" : null, scope: tag === "th" ? "col" : null }, content);
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table" },
    el("table", {},
      el("thead", {}, el("tr", {}, heads.map((head, index) => cell("th", head.name, index)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((content, index) => cell("td", content, index)))))));
}

/** Why timers may be missing in an answer of the workers: a paragraph for each reason. */
export const missing = ({ unknown, lake }) => [
  unknown.length ? `Unknown: ${unknown.map((each) => `partition ${each.partition} (${each.why})`).join("; ")}` : "",
  lake ? `Timers may be missing: ${lake}` : "",
].filter(Boolean).map((why) => el("p", { class: "bad" }, why));

/** That *what* is nowhere, unless some of the workers were not heard: then it is not known. */
export const nothing = (what, { unknown, lake, cut }) => el("p", { class: "soft" }, unknown.length || lake || cut ? "None in the partitions that have answered." : what);

export const failure = (error) => el("p", { class: "bad", role: "alert" }, error.message);
