"use strict";

const byId = (id) => document.getElementById(id);
const history = [];
let running = null;

function authorization() {
  const key = byId("key");
  return key && key.value ? { Authorization: `Bearer ${key.value}` } : {};
}

// ---- status -----------------------------------------------------------------------------------

function showHealth(report) {
  const badge = byId("badge");
  if (badge.textContent !== report.status) {
    // The page was rendered without the model's details, which are known only once it is loaded.
    if (badge.textContent === "loading" && history.length === 0 && !byId("prompt").value) location.reload();
    badge.textContent = report.status;
    badge.className = `badge ${report.status}`;
  }
  if (byId("detail").textContent !== report.detail) byId("detail").textContent = report.detail;
  byId("progress").hidden = report.status !== "loading";
  byId("progress").value = report.progress;
  byId("running").textContent = report.running;
  byId("waiting").textContent = report.waiting;
  for (const state of ["live", "cached", "free"]) byId(state).textContent = report.pages[state];
  const total = report.pages.total || 1;
  byId("bar-live").style.width = `${(100 * report.pages.live) / total}%`;
  byId("bar-cached").style.width = `${(100 * report.pages.cached) / total}%`;
}

async function pollHealth() {
  try {
    showHealth(await (await fetch("/health")).json());
  } catch {
    byId("badge").textContent = "unreachable";
    byId("badge").className = "badge failed";
  }
  setTimeout(pollHealth, document.hidden ? 10000 : 1500);
}

// ---- chat -------------------------------------------------------------------------------------

function addTurn(role, text) {
  byId("empty").hidden = true;
  const turn = document.createElement("div");
  turn.className = `turn ${role}`;
  const who = document.createElement("span");
  who.className = "who";
  who.textContent = { user: "You: ", assistant: "Model: ", error: "Error: " }[role];
  const body = document.createElement("span");
  body.textContent = text;
  turn.append(who, body);
  byId("log").append(turn);
  scrollDown();
  return { turn, body };
}

function scrollDown() {
  const log = byId("log");
  log.scrollTop = log.scrollHeight;
}

function addReasoning(view, text) {
  if (!view.reasoning) {
    const details = document.createElement("details");
    details.open = true;
    const summary = document.createElement("summary");
    summary.textContent = "Reasoning";
    view.reasoning = document.createElement("span");
    details.append(summary, view.reasoning);
    view.turn.insertBefore(details, view.body);
  }
  view.reasoning.textContent += text;
}

function addMeta(view, choice, timings) {
  const meta = document.createElement("span");
  meta.className = "meta";
  const parts = [choice.finish_reason === "length" ? "cut at the token limit" : choice.finish_reason];
  if (timings) {
    parts.push(`${timings.predicted_n} tokens`, `${timings.predicted_per_second} tokens/s`);
    if (timings.cached_n) parts.push(`${timings.cached_n} prompt tokens from the cache`);
  }
  meta.textContent = parts.join(" · ");
  view.turn.append(meta);
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    const blocks = buffer.split("\n\n");
    buffer = blocks.pop();
    for (const block of blocks) {
      if (block.startsWith("data: ") && block !== "data: [DONE]") yield JSON.parse(block.slice(6));
    }
  }
}

async function complete(view, signal) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    signal,
    headers: { "Content-Type": "application/json", ...authorization() },
    body: JSON.stringify({
      model: document.body.dataset.model,
      messages: history,
      stream: true,
      temperature: Number(byId("temperature").value),
      max_tokens: Number(byId("limit").value),
    }),
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  for await (const chunk of events(response)) {
    if (chunk.error) throw new Error(chunk.error.message);
    const choice = chunk.choices[0];
    if (!choice) continue;
    if (choice.delta.reasoning_content) addReasoning(view, choice.delta.reasoning_content);
    if (choice.delta.content) view.body.textContent += choice.delta.content;
    if (choice.finish_reason) addMeta(view, choice, chunk.timings);
    scrollDown();
  }
}

async function send(text) {
  history.push({ role: "user", content: text });
  addTurn("user", text);
  const view = addTurn("assistant", "");
  running = new AbortController();
  setBusy(true);
  try {
    await complete(view, running.signal);
  } catch (error) {
    if (error.name !== "AbortError") addTurn("error", error.message);
  }
  if (view.body.textContent) history.push({ role: "assistant", content: view.body.textContent });
  else if (!view.reasoning) view.turn.remove();
  running = null;
  setBusy(false);
}

function setBusy(busy) {
  byId("send").disabled = busy;
  byId("stop").disabled = !busy;
  byId("log").setAttribute("aria-busy", busy);
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = byId("prompt").value.trim();
  if (!text || running) return;
  byId("prompt").value = "";
  send(text);
});

byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("form").requestSubmit();
  }
});

byId("stop").addEventListener("click", () => running && running.abort());

byId("clear").addEventListener("click", () => {
  if (running) running.abort();
  history.length = 0;
  for (const turn of document.querySelectorAll(".turn")) turn.remove();
  byId("empty").hidden = false;
  byId("prompt").focus();
});

pollHealth();
