"use strict";
/* An editor over a view; two of them to compare texts or models. */

const settings = JSON.parse(document.getElementById("data").textContent);
const PAUSE = 250; // milliseconds after the last key

/* Ask, and give the answer, or throw what the server says is wrong. */
async function ask(path, question, signal) {
  let response;
  try {
    response = await fetch(path, { method: "POST", signal, body: JSON.stringify(question),
      headers: { "content-type": "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer: is it still running?");
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  throw new Error(answer.message || `The server answers ${response.status}.`);
}

/* Lines of JSON as they arrive. */
async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const parts = (rest + (value || "")).split("\n");
    rest = parts.pop();
    for (const part of parts) if (part) yield JSON.parse(part);
    if (done) return;
  }
}

/* The same data with room for more tokens. */
function withRoom(data, more) {
  const capacity = data.capacity + more;
  const spread = (from, kind) => {
    const to = new kind(data.layers * capacity);
    for (let layer = 0; layer < data.layers; layer += 1) {
      to.set(from.subarray(layer * data.capacity, (layer + 1) * data.capacity), layer * capacity);
    }
    return to;
  };
  const loss = new Float32Array(capacity).fill(NaN);
  loss.set(data.loss);
  return { ...data, capacity, loss, spans: spread(data.spans, Float32Array),
    live: spread(data.live, Float32Array), deleted: spread(data.deleted, Int32Array),
    pooled: spread(data.pooled, Int32Array) };
}

class Pane {
  constructor(text, model) {
    this.view = null;
    this.changed = () => {};
    this.editor = make("textarea", { "aria-label": "Text to be read", spellcheck: "false",
      oninput: () => this.soon() });
    this.editor.value = text;
    this.model = make("select", { onchange: () => this.read() },
      ...settings.models.map((name) => make("option", { value: name }, name)));
    this.model.value = model;
    this.length = make("input", { type: "number", min: 1, max: settings.continuation, value: 300 });
    this.temperature = make("input", { type: "number", min: 0.05, max: 5, step: 0.05, value: 0.8 });
    this.seed = make("input", { type: "number", min: 0, value: 0 });
    this.writeButton = make("button", { type: "button", class: "primary", onclick: () => this.write() }, "Continue");
    this.status = make("span", { class: "status", role: "status" });
    this.element = make("div", { class: "pane" },
      make("div", { class: "editor" }, this.editor, make("div", { class: "row" },
        make("label", { class: settings.models.length > 1 ? null : "hidden" }, "Model", this.model),
        this.writeButton, make("label", {}, "tokens", this.length),
        make("label", {}, "temperature", this.temperature), make("label", {}, "seed", this.seed),
        this.status)));
    this.read();
  }

  say(message, problem = false) {
    this.status.textContent = message;
    this.status.classList.toggle("problem", problem);
  }

  /* Whatever is under way is of no interest any more. */
  interrupt() {
    clearTimeout(this.timer);
    if (this.question) this.question.abort();
    this.question = new AbortController();
    this.writing = false;
    this.writeButton.textContent = "Continue";
    return this.question;
  }

  soon() {
    this.interrupt();
    this.timer = setTimeout(() => this.read(), PAUSE);
  }

  async read() {
    const question = this.interrupt();
    const text = this.editor.value;
    if (text.length > settings.characters) {
      this.say(`This text has ${whole(text.length)} characters, but at most ` +
        `${whole(settings.characters)} can be read here: shorten it.`, true);
      return;
    }
    if (text === "") return this.say("There is nothing to read yet: type some text.");
    const began = performance.now();
    this.say("reading …");
    try {
      const response = await ask("/api/read", { text, model: this.model.value }, question.signal);
      this.show(unpack(await response.json()));
      this.say(`read in ${((performance.now() - began) / 1000).toFixed(2)} s`);
    } catch (error) {
      if (error.name !== "AbortError") this.say(error.message, true);
    }
  }

  async write() {
    if (this.writing) { // the button now says Stop
      this.interrupt();
      return this.say("stopped");
    }
    const question = this.interrupt();
    this.writing = true;
    this.writeButton.textContent = "Stop";
    const text = this.editor.value, length = Number(this.length.value);
    this.say("reading …");
    let written = 0;
    try {
      const response = await ask("/api/write", { text, model: this.model.value, length,
        temperature: Number(this.temperature.value), seed: Number(this.seed.value) }, question.signal);
      for await (const line of lines(response)) {
        if (question.signal.aborted) return;
        if (line.message) throw new Error(line.message);
        if (line.text) this.show(withRoom(unpack(line.text), length));
        else {
          this.view.append(line);
          this.view.later("followEnd");
          this.editor.value += line.piece;
          written += 1;
          this.say(`${whole(written)} of ${whole(length)} written`);
        }
      }
      this.say(`${whole(written)} written`);
    } catch (error) {
      if (error.name !== "AbortError") this.say(error.message, true);
    } finally {
      if (this.question === question) {
        this.writing = false;
        this.writeButton.textContent = "Continue";
      }
    }
  }

  show(data) {
    if (this.view) this.view.load(data);
    else {
      this.view = new MemoryView(data);
      this.element.append(this.view.element);
    }
    this.view.title.replaceChildren(data.name, make("small", {}, `${data.policy}, ${data.layers} layers`));
    this.changed();
  }
}

shadeRules();
setUpTheme(document.getElementById("theme"));
const panes = document.getElementById("panes");
const first = new Pane(settings.text, settings.models[0]);
let second = null;
panes.append(first.element);

function relate() {
  if (!second || !second.view || !first.view) return;
  first.view.peers = [second.view];
  second.view.peers = [first.view];
  if (!second.view.reference) { // it is new, and shows what the other does
    first.view.choose({ layer: first.view.layer, scale: first.view.scale });
    first.view.chooseTime(first.view.time);
  }
  second.view.compare(first.view);
}

first.changed = relate;
document.getElementById("compare").addEventListener("click", (event) => {
  if (second) {
    second.interrupt();
    second.element.remove();
    second = null;
    if (first.view) first.view.peers = [];
  } else {
    second = new Pane(first.editor.value, settings.models[1] || settings.models[0]);
    second.changed = relate;
    panes.append(second.element);
  }
  panes.classList.toggle("two", second !== null);
  event.target.setAttribute("aria-pressed", String(second !== null));
});
