// Which screen is shown: the part of the address behind the #.

import { el, failure, get } from "./page.js";
import { ahead } from "./ahead.js";
import { api } from "./api.js";
import { now, partitions } from "./now.js";
import { refused } from "./refused.js";
import { schedules } from "./schedules.js";
import { timer, timers } from "./timers.js";
import { topics } from "./topics.js";
import { trial } from "./try.js";

const SCREENS = { now, ahead, timers, timer, schedules, refused, topics, partitions, try: trial, api };
const main = document.getElementById("main");
export const caller = { name: "", role: "read" };

let leaving = new AbortController();

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const [path, query] = location.hash.slice(2).split("?");
  const [name, ...rest] = (path || "now").split("/").map(decodeURIComponent);
  const screen = SCREENS[name] || now;
  for (const each of document.querySelectorAll("nav a")) {
    const isHere = each.hash.slice(2) === (name === "timer" ? "timers" : name);
    if (isHere) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  const place = el("div");
  main.replaceChildren(place);
  try {
    await screen({ place, signal, rest, query: new URLSearchParams(query), mayAct: caller.role === "operate" });
  } catch (error) {
    if (!signal.aborted) place.append(failure(error));
  }
}

async function begin() {
  try {
    Object.assign(caller, await get("me"));
    const may = caller.role === "operate" ? "may look and act" : "may look only";
    document.getElementById("who").textContent = `${caller.name}: ${may}`;
  } catch (error) {
    document.getElementById("who").textContent = error.message;
  }
  window.addEventListener("hashchange", () => {
    show();
    main.focus();
  });
  await show();
}

begin();
