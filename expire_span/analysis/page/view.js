"use strict";
/* One text and what a model remembers of it. Everything is drawn from plain arrays:

   data.pieces   text of every token
   data.spans    layers x tokens, steps that each memory is to be kept
   data.deleted  layers x tokens, steps read when it was deleted, -1 if it was not
   data.pooled   layers x tokens, steps read when it was held only as part of a mean, -1 if never
   data.heads    layers x heads, how far each looks; empty if all look equally far
   data.live     layers x tokens, memories in use when the token was read
   data.loss     bits that the token cost, NaN if nothing predicted it
   data.unit, data.whole, data.cost   what a token, all of them, and its loss are called

   Long texts stay plain text, which costs little; only the part in sight has an element for each
   token. */

const LEVELS = 24;
const CHUNK = 800;
const STOPS = {
  light: ["#fffef5", "#e4f2c4", "#a9ddb7", "#5fc0c0", "#2f93bd", "#2462a6", "#172c78"],
  dark: ["#14181d", "#16304a", "#1b5070", "#2a7d8f", "#58a894", "#a9cf8b", "#f4f0a0"],
};
const CHANGE_STOPS = {
  light: ["#1f5fae", "#79aee0", "#fbfaf7", "#f0a765", "#b3470a"],
  dark: ["#78b6f5", "#2b5f94", "#14181d", "#95501a", "#ffab66"],
};

function numbers(text, kind) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let n = 0; n < raw.length; n += 1) bytes[n] = raw.charCodeAt(n);
  return kind === "int" ? new Int32Array(bytes.buffer) : new Float32Array(bytes.buffer);
}

/* What the server or the report holds, with its arrays unpacked. */
function unpack(packed) {
  return {
    ...packed,
    spans: numbers(packed.spans), live: numbers(packed.live), loss: numbers(packed.loss),
    deleted: numbers(packed.deleted, "int"), pooled: numbers(packed.pooled, "int"),
  };
}

function mix(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  const part = (stop) => [1, 3, 5].map((n) => parseInt(stop.slice(n, n + 2), 16));
  const one = part(stops[low]), two = part(stops[low + 1]);
  return one.map((value, n) => Math.round(value + (place - low) * (two[n] - value)));
}

/* Shades as style rules, so that a change of theme repaints nothing. Ink is black or white. */
function shadeRules() {
  const rules = [];
  for (const theme of ["light", "dark"]) {
    for (const [prefix, stops] of [["s", STOPS[theme]], ["d", CHANGE_STOPS[theme]]]) {
      for (let level = 0; level < LEVELS; level += 1) {
        const [red, green, blue] = mix(stops, level / (LEVELS - 1));
        const bright = 0.299 * red + 0.587 * green + 0.114 * blue > 128;
        rules.push(`:root[data-theme="${theme}"] .${prefix}${level} { --shade: ` +
          `rgb(${red} ${green} ${blue}); --on-shade: ${bright ? "#14181d" : "#f8f9fa"}; }`);
      }
    }
  }
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(rules.join("\n"));
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
}

function setUpTheme(button) {
  const asked = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const apply = () => {
    const theme = chosen || (asked.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    button.textContent = theme === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${theme === "dark" ? "light" : "dark"} colours`);
    document.dispatchEvent(new Event("themechange"));
  };
  button.addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    apply();
  });
  asked.addEventListener("change", apply);
  apply();
}

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const shown = (piece) => piece === "\n" ? "↵ new line" : piece === " " ? "␣ space"
  : piece === "" ? "(first bytes of a character)" : piece;
const whole = (number) => Math.round(number).toLocaleString("en");

let viewCount = 0;

class MemoryView {
  constructor(data, { heading = null } = {}) {
    this.number = viewCount += 1;
    this.layer = "mean";
    this.scale = "linear";
    this.colour = "span";
    this.time = null; // null: spans of the whole text, without time
    this.cursor = -1;
    this.reference = null; // the view that this one is compared with
    this.peers = []; // views that show the same layer, scale and time
    this.element = make("section", { class: "view" });
    this.build(heading);
    this.load(data);
    document.addEventListener("themechange", () => this.drawCurve());
    new ResizeObserver(() => this.drawCurve()).observe(this.curve);
  }

  build(heading) {
    const id = `view-${this.number}`;
    this.title = make("h2", { id: `${id}-title` }, heading || "");
    this.layerChoice = make("select", { onchange: () => this.choose({ layer: this.layerChoice.value }) });
    this.scaleChoice = make("select", { onchange: () => this.choose({ scale: this.scaleChoice.value }) }, make("option", { value: "linear" }, "linear"), make("option", { value: "log" }, "logarithmic"));
    this.colourChoice = make("select", { onchange: () => {
      this.colour = this.colourChoice.value;
      this.refresh();
    } }, make("option", { value: "span" }, "span"), make("option", { value: "change" }, "change of span"));
    this.colourLabel = make("label", { class: "hidden" }, "Shade by", this.colourChoice);
    const controls = make("div", { class: "controls" },
      make("label", {}, "Layer", this.layerChoice), make("label", {}, "Scale", this.scaleChoice),
      this.colourLabel);
    this.slider = make("input", { type: "range", min: 0, step: 1, "aria-label": "Steps read",
      oninput: () => this.chooseTime(Number(this.slider.value)) });
    this.timeShown = make("output", {}, "");
    this.wholeButton = make("button", { type: "button", title: "Spans of the whole text, whatever the time",
      onclick: () => this.chooseTime(null) }, "All spans");
    this.playButton = make("button", { type: "button", onclick: () => this.play() }, "▶ Read");
    const time = make("div", { class: "time" }, this.playButton, this.slider, this.timeShown, this.wholeButton);
    this.curve = make("canvas", { class: "curve", role: "img",
      onclick: (event) => this.chooseTime(this.timeAt(event)) });
    this.legend = make("div", { class: "legend" });
    this.text = make("div", { class: "text", tabindex: 0, role: "group",
      "aria-label": "What was read. Arrow keys go from token to token.",
      onkeydown: (event) => this.key(event), onscroll: () => this.later("see"),
      onmouseover: (event) => this.point(event.target), onclick: (event) => this.point(event.target) });
    this.facts = make("aside", { class: "facts", "aria-live": "polite" });
    this.element.setAttribute("aria-labelledby", `${id}-title`);
    this.element.append(make("div", { class: "head" }, this.title, controls), time, this.curve, this.legend,
      make("div", { class: "body" }, this.text, this.facts));
    this.waiting = new Set();
  }

  load(data) {
    this.stop();
    this.data = data;
    const tokens = data.pieces.length;
    const choices = this.layerNames();
    if (!choices.includes(this.layer)) this.layer = "mean";
    this.layerChoice.replaceChildren(...choices.map((value) => make("option", { value },
      value === "mean" ? "mean of layers" : value === "longest" ? "longest of any layer"
        : `layer ${Number(value) + 1}`)));
    this.layerChoice.value = this.layer;
    this.slider.max = tokens;
    if (this.time !== null) this.time = Math.min(this.time, tokens);
    this.cursor = Math.min(this.cursor, tokens - 1);
    this.fillText();
    this.refresh();
  }

  /* Plain text in chunks; `see` gives those in sight their elements. */
  fillText() {
    const { pieces } = this.data;
    this.chunks = [];
    for (let first = 0; first < pieces.length; first += CHUNK) this.chunks.push(this.newChunk(first));
    this.text.replaceChildren(...this.chunks.map((chunk) => chunk.element));
  }

  newChunk(first) {
    const last = Math.min(first + CHUNK, this.data.pieces.length);
    const element = make("span", {});
    element.textContent = this.data.pieces.slice(first, last).join("");
    return { first, last, element, tokens: null };
  }

  /* Tokens as elements where they can be seen, plain text everywhere else. */
  see() {
    const box = this.text.getBoundingClientRect();
    const margin = box.height / 2;
    for (const chunk of this.chunks) {
      const place = chunk.element.getBoundingClientRect();
      const near = place.bottom > box.top - margin && place.top < box.bottom + margin;
      if (near && !chunk.tokens) this.spell(chunk);
      else if (!near && chunk.tokens) {
        chunk.tokens = null;
        chunk.element.textContent = this.data.pieces.slice(chunk.first, chunk.last).join("");
      }
    }
  }

  spell(chunk) {
    const { pieces } = this.data;
    chunk.tokens = [];
    const all = document.createDocumentFragment();
    for (let n = chunk.first; n < chunk.last; n += 1) {
      const element = document.createElement("b");
      element.textContent = pieces[n];
      element.token = n;
      chunk.tokens.push(element);
      all.append(element);
    }
    chunk.element.replaceChildren(all);
    this.paint(chunk);
  }

  paint(chunk) {
    for (const element of chunk.tokens) {
      const look = this.look(element.token);
      if (element.className !== look) element.className = look;
    }
  }

  look(token) {
    const names = [];
    if (this.colour === "change" && this.change) {
      const change = this.change[token];
      const share = Number.isNaN(change) ? 0.5 : 0.5 + 0.5 * change / this.largestChange;
      names.push(`d${Math.round(Math.min(Math.max(share, 0), 1) * (LEVELS - 1))}`);
    } else names.push(`s${this.level(this.values[token])}`);
    if (this.changed && this.changed.has(token)) names.push("changed");
    if (this.data.pieces[token] === "\n") names.push("newline");
    if (this.time !== null) {
      if (token >= this.time) names.push("unread");
      else {
        const left = this.left(token, this.time);
        if (left === 0) names.push("gone");
        else if (left < 1) names.push("fading");
      }
    }
    if (token === this.cursor) names.push("cursor");
    return names.join(" ");
  }

  level(span) {
    const share = this.scale === "log" ? Math.log1p(span) / Math.log1p(this.top) : span / this.top;
    return Math.round(Math.min(Math.max(share, 0), 1) * (LEVELS - 1));
  }

  layersShown(choice = this.layer) {
    if (choice === "mean" || choice === "longest") {
      return Array.from({ length: this.data.layers }, (_, n) => n);
    }
    return [Number(choice)];
  }

  /* Share of a memory that is left once so many steps have been read, in the layers shown. */
  left(token, time) {
    let sum = 0;
    const layers = this.layersShown();
    for (const layer of layers) sum += this.leftIn(layer, token, time);
    return sum / layers.length;
  }

  leftIn(layer, token, time) {
    const place = layer * this.data.capacity + token;
    const deleted = this.data.deleted[place];
    if (deleted >= 0 && deleted <= time) return 0;
    const pooled = this.data.pooled[place];
    if (pooled >= 0 && pooled <= time) return 0.5; // something is left, but not all
    const over = time - token - this.data.spans[place];
    if (this.data.ramp === 0) return over > 0 ? 0 : 1;
    return Math.min(Math.max(1 - over / this.data.ramp, 0), 1);
  }

  /* Layer and scale, here and in the views beside this one. */
  choose(change) {
    for (const view of [this, ...this.peers]) {
      if (change.layer !== undefined && !view.layerNames().includes(change.layer)) continue;
      Object.assign(view, change);
      view.layerChoice.value = view.layer;
      view.scaleChoice.value = view.scale;
    }
    for (const view of [this, ...this.peers]) view.refresh();
  }

  chooseTime(time) {
    for (const view of [this, ...this.peers]) {
      view.stop();
      view.setTime(time === null ? null : Math.min(time, view.data.pieces.length));
      if (time !== null) view.follow(view.time - 1);
    }
  }

  layerNames() {
    return ["mean", "longest", ...Array.from({ length: this.data.layers }, (_, n) => String(n))];
  }

  /* All that depends on layer, scale and shade. */
  refresh() {
    const { data } = this, tokens = data.pieces.length;
    this.values = this.spansOf(this.layer);
    const sorted = Float32Array.from(this.values).sort();
    this.top = Math.max(sorted[Math.floor(0.96 * (tokens - 1))] || 0, 1);
    if (this.reference) this.top = this.reference.top; // shades mean the same in both
    this.longest = data.spans.reduce((a, b) => Math.max(a, b), 1); // of any layer
    this.compareValues();
    this.drawTime();
    this.later("see", "repaint", "drawCurve", "tell");
  }

  /* Compare with another view, token by token outside the passages that differ. */
  compare(other, passages = null) {
    this.reference = other;
    this.passages = passages;
    this.colourLabel.classList.toggle("hidden", other === null);
    if (other === null) this.colour = this.colourChoice.value = "span";
    this.refresh();
  }

  compareValues() {
    this.change = this.changed = null;
    if (!this.reference) return;
    const one = this.reference.data.pieces, two = this.data.pieces;
    const passages = this.passages || differing(one, two);
    const theirs = this.reference.spansOf(this.layer);
    this.change = new Float32Array(two.length).fill(NaN);
    this.changed = new Set();
    let a = 0, b = 0;
    for (const [a0, a1, b0, b1] of [...passages, [one.length, one.length, two.length, two.length]]) {
      for (; a < a0 && b < b0; a += 1, b += 1) this.change[b] = this.values[b] - theirs[a];
      for (b = b0; b < b1; b += 1) this.changed.add(b);
      a = a1;
    }
    const sizes = Array.from(this.change).filter((x) => !Number.isNaN(x)).map(Math.abs).sort((x, y) => x - y);
    this.largestChange = Math.max(sizes[Math.floor(0.995 * (sizes.length - 1))] || 0, 1);
  }

  /* The span of every token: of one layer, the mean of all or the longest. */
  spansOf(choice) {
    const { data } = this, layers = this.layersShown(choice);
    const found = new Float32Array(data.pieces.length);
    for (let n = 0; n < found.length; n += 1) {
      for (const layer of layers) {
        const span = data.spans[layer * data.capacity + n];
        found[n] = choice === "longest" ? Math.max(found[n], span) : found[n] + span / layers.length;
      }
    }
    return found;
  }

  repaint() {
    for (const chunk of this.chunks) if (chunk.tokens) this.paint(chunk);
  }

  /* Do these once, with the next frame. */
  later(...tasks) {
    if (this.waiting.size === 0) {
      requestAnimationFrame(() => {
        const due = [...this.waiting];
        this.waiting.clear();
        for (const task of due) this[task]();
      });
    }
    for (const task of tasks) this.waiting.add(task);
  }

  setTime(time) {
    this.time = time;
    this.drawTime();
    this.later("repaint", "drawCurve", "tell");
  }

  drawTime() {
    const tokens = this.data.pieces.length, time = this.time === null ? tokens : this.time;
    this.slider.value = time;
    let remembered = 0;
    if (this.time !== null) {
      for (let n = 0; n < time; n += 1) if (this.left(n, time) > 0) remembered += 1;
    }
    const count = this.time === null ? `${whole(tokens)} ${this.data.unit}s`
      : `step ${whole(time)}: ${whole(remembered)} remembered, ${whole(time - remembered)} forgotten`;
    this.timeShown.textContent = count;
    this.drawLegend();
    this.wholeButton.disabled = this.time === null;
  }

  play() {
    if (this.playing) return this.stop();
    const tokens = this.data.pieces.length;
    let time = this.time === null || this.time >= tokens ? 0 : this.time;
    const pace = Math.max(tokens / 1200, 1); // a text takes about 20 seconds
    this.playButton.textContent = "❚❚ Pause";
    const advance = () => {
      time += pace;
      for (const view of [this, ...this.peers]) {
        view.setTime(Math.min(Math.floor(time), view.data.pieces.length));
      }
      this.follow(this.time - 1);
      if (time >= tokens) this.stop();
      else if (this.playing) this.playing = requestAnimationFrame(advance);
    };
    this.playing = requestAnimationFrame(advance);
  }

  stop() {
    cancelAnimationFrame(this.playing);
    this.playing = null;
    this.playButton.textContent = "▶ Read";
  }

  /* Keep a token in sight. */
  follow(token) {
    const chunk = this.chunks[Math.floor(Math.max(token, 0) / CHUNK)];
    if (!chunk) return;
    if (!chunk.tokens) this.spell(chunk);
    const box = this.text.getBoundingClientRect();
    const place = chunk.tokens[token - chunk.first]?.getBoundingClientRect();
    if (!place) return;
    if (place.bottom > box.bottom - 20) this.text.scrollTop += place.bottom - box.bottom + box.height / 2;
    else if (place.top < box.top) this.text.scrollTop -= box.top - place.top + box.height / 3;
  }

  followEnd() {
    this.follow(this.data.pieces.length - 1);
  }

  point(target) {
    if (target.token === undefined || target.token === this.cursor) return;
    this.moveCursor(target.token);
  }

  key(event) {
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: "down", ArrowUp: "up" };
    const last = this.data.pieces.length - 1;
    let next = null;
    if (event.key === "Home" && event.ctrlKey) next = 0;
    else if (event.key === "End" && event.ctrlKey) next = last;
    else if (event.key === "Enter") return this.chooseTime(Math.max(this.cursor, 0) + 1);
    else if (event.key === "Escape") return this.chooseTime(null);
    else if (event.key in moves && !event.ctrlKey && !event.altKey && !event.metaKey) {
      const move = moves[event.key];
      if (typeof move === "number") {
        next = this.cursor + move;
        while (next > 0 && next < last && this.data.pieces[next] === "") next += move;
      } else next = this.nextLine(move);
    }
    if (next === null) return;
    event.preventDefault();
    this.moveCursor(Math.min(Math.max(next, 0), last));
    this.follow(this.cursor);
  }

  /* The token above or below the cursor. */
  nextLine(way) {
    const here = this.elementOf(this.cursor)?.getBoundingClientRect();
    if (!here) return 0;
    const step = way === "down" ? 1 : -1, last = this.data.pieces.length - 1;
    let best = this.cursor, distance = Infinity, lines = 0, top = here.top;
    for (let n = this.cursor + step; n >= 0 && n <= last; n += step) {
      const chunk = this.chunks[Math.floor(n / CHUNK)];
      if (!chunk.tokens) this.spell(chunk);
      const place = chunk.tokens[n - chunk.first].getBoundingClientRect();
      if (place.width === 0) continue;
      if (Math.abs(place.top - top) > 4) { lines += 1; top = place.top; }
      if (lines > 1) break;
      if (lines === 1 && Math.abs(place.left - here.left) < distance) {
        distance = Math.abs(place.left - here.left);
        best = n;
      }
    }
    return best;
  }

  elementOf(token) {
    const chunk = this.chunks[Math.floor(token / CHUNK)];
    return chunk && chunk.tokens ? chunk.tokens[token - chunk.first] : null;
  }

  moveCursor(token) {
    const before = this.cursor;
    this.cursor = token;
    for (const n of [before, token]) {
      const element = n >= 0 ? this.elementOf(n) : null;
      if (element) element.className = this.look(n);
    }
    this.tell();
  }

  /* What is known of the token under the cursor. */
  tell() {
    const { data } = this, token = this.cursor;
    if (token < 0) {
      this.facts.replaceChildren(make("p", { class: "hint" },
        `Point at ${data.whole}, or go through it with the arrow keys, to see how long each ${data.unit} ` +
        `is kept. Enter sets the time to that ${data.unit}, Escape shows all spans again.`));
      return;
    }
    const loss = data.loss[token];
    const list = make("dl");
    const say = (name, value) => list.append(make("dt", {}, name), make("dd", {}, value));
    say("place", whole(token));
    say("span", `${whole(this.values[token])} steps`);
    if (this.change) say("change", Number.isNaN(this.change[token]) ? "not in the other"
      : `${this.change[token] > 0 ? "+" : ""}${this.change[token].toFixed(1)} steps`);
    say(data.cost, Number.isNaN(loss) ? "not predicted" : `${loss.toFixed(2)} bits`);
    const rows = Array.from({ length: data.layers }, (_, layer) => {
      const place = layer * data.capacity + token, span = data.spans[place], deleted = data.deleted[place];
      const bar = make("i");
      bar.style.width = `${100 * Math.min(span / this.longest, 1)}%`;
      return make("tr", { class: String(layer) === this.layer ? "chosen" : null },
        make("td", {}, `${layer + 1}`),
        make("td", {}, whole(span), make("span", { class: "meter" }, bar)),
        make("td", {}, whole(token + span)), make("td", {}, deleted < 0 ? "kept" : whole(deleted)));
    });
    const heads = ["layer", "span", "deadline", "deleted"].map((name) => make("th", { scope: "col" }, name));
    const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
    this.facts.replaceChildren(make("h3", {}, shown(data.pieces[token])), list, table);
  }

  drawLegend() {
    const prefix = this.colour === "change" && this.change ? "d" : "s";
    const bar = make("span", { class: "bar", "aria-hidden": "true" });
    for (let level = 0; level < LEVELS; level += 1) bar.append(make("i", { class: `${prefix}${level}` }));
    const ends = prefix === "d"
      ? [`−${whole(this.largestChange)}`, `+${whole(this.largestChange)} steps`]
      : ["0", `${whole(this.top)} steps or more`];
    this.legend.replaceChildren(make("span", { class: "key" }, ends[0], bar, ends[1]));
    const heads = this.layersShown().length === 1 ? this.data.heads[Number(this.layer)] : null;
    if (heads) this.legend.append(
      make("span", { class: "key" }, `its heads look back ${heads.map(whole).join(", ")} steps`));
    if (this.time !== null) this.legend.append(
      make("span", { class: "key" }, make("span", { class: `sample s${LEVELS - 8} fading` }, "abc"),
        this.data.policy === "Compressive" ? "part of a mean" : "fading",
        this.layersShown().length > 1 ? " or gone in some layers" : ""),
      make("span", { class: "key" }, make("span", { class: "sample gone" }, "abc"), "forgotten"),
      make("span", { class: "key" }, make("span", { class: "sample unread" }, "abc"), "not read yet"));
  }

  timeAt(event) {
    const box = this.curve.getBoundingClientRect();
    const share = (event.clientX - box.left - this.frame.left) / this.frame.width;
    return Math.round(Math.min(Math.max(share, 0), 1) * this.data.pieces.length);
  }

  /* Live memory, and under it the loss, along the text. */
  drawCurve() {
    const { data, curve } = this;
    const tokens = data.pieces.length, layers = this.layersShown();
    const ratio = window.devicePixelRatio || 1, width = curve.clientWidth, height = 120;
    if (!width) return;
    curve.width = width * ratio;
    curve.height = height * ratio;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name);
    const pen = curve.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    const frame = this.frame = { left: 64, width: width - 82 };
    const live = new Float32Array(tokens);
    for (let n = 0; n < tokens; n += 1) {
      for (const layer of layers) live[n] += data.live[layer * data.capacity + n] / layers.length;
    }
    const smooth = tokens > 600 ? Math.max(Math.round(tokens / 300), 8) : 1;
    const strips = [
      { values: live, top: 8, height: 58, name: "live", colour: colour("--accent"), width: 1.6 },
      { values: data.loss.subarray(0, tokens), top: 76, height: 34, name: "bits", colour: colour("--soft"), width: 1, smooth },
    ];
    for (const strip of strips) this.drawStrip(pen, frame, strip, colour);
    const time = this.time === null ? null : frame.left + frame.width * this.time / Math.max(tokens, 1);
    if (time !== null) {
      pen.fillStyle = colour("--mark");
      pen.fillRect(time - 1, 4, 2, 110);
    }
    const most = live.reduce((a, b) => Math.max(a, b), 0);
    curve.setAttribute("aria-label", `Live memories along the text, at most ${whole(most)}, ` +
      `${whole(live[tokens - 1] || 0)} at its end; below, the loss in bits.`);
  }

  drawStrip(pen, frame, strip, colour) {
    const means = binned(strip.values, Math.max(Math.floor(frame.width), 1), strip.smooth || 1);
    const most = Math.max(...means.filter((x) => !Number.isNaN(x)), 1e-9);
    pen.strokeStyle = colour("--line");
    pen.strokeRect(frame.left + .5, strip.top + .5, frame.width, strip.height);
    pen.fillStyle = colour("--soft");
    pen.textAlign = "right";
    const label = most >= 20 ? whole(most) : most >= 0.1 ? most.toFixed(1) : most.toPrecision(1);
    pen.fillText(label, frame.left - 6, strip.top + 9);
    pen.fillText("0", frame.left - 6, strip.top + strip.height);
    pen.textAlign = "left";
    pen.fillText(strip.name, 4, strip.top + strip.height / 2 + 4);
    pen.beginPath();
    pen.strokeStyle = strip.colour;
    pen.lineWidth = strip.width;
    means.forEach((mean, n) => {
      if (Number.isNaN(mean)) return;
      const x = frame.left + frame.width * n / Math.max(means.length - 1, 1);
      pen.lineTo(x, strip.top + strip.height * (1 - mean / most));
    });
    pen.stroke();
    pen.lineWidth = 1;
  }

  /* One more token, as it is written; its arrays have room. */
  append(token) {
    const { data } = this, n = data.pieces.length;
    data.pieces.push(token.piece);
    data.loss[n] = token.loss;
    token.spans.forEach((span, layer) => {
      data.spans[layer * data.capacity + n] = span;
      data.live[layer * data.capacity + n] = token.live[layer];
      data.deleted[layer * data.capacity + n] = data.pooled[layer * data.capacity + n] = -1;
    });
    for (const kind of ["deleted", "pooled"]) {
      for (const [layer, place] of token[kind]) data[kind][layer * data.capacity + place] = n + 1;
    }
    const last = this.chunks[this.chunks.length - 1];
    if (last && last.last - last.first < CHUNK) {
      last.last += 1;
      if (last.tokens) {
        const element = document.createElement("b");
        element.textContent = token.piece;
        element.token = n;
        last.tokens.push(element);
        last.element.append(element);
      } else last.element.textContent += token.piece;
    } else {
      const chunk = this.newChunk(n);
      this.chunks.push(chunk);
      this.text.append(chunk.element);
    }
    this.slider.max = n + 1;
    this.time = n + 1;
    this.later("refresh");
  }
}

/* Means over as many stretches as there are pixels, each at least `smooth` long; NaN counts not. */
function binned(values, bins, smooth) {
  const count = Math.min(bins, Math.max(Math.ceil(values.length / smooth), 1));
  const means = new Array(count).fill(NaN);
  for (let bin = 0; bin < count; bin += 1) {
    const last = Math.max(Math.floor((bin + 1) * values.length / count), 1);
    let sum = 0, found = 0;
    for (let n = Math.floor(bin * values.length / count); n < last; n += 1) {
      if (!Number.isNaN(values[n])) { sum += values[n]; found += 1; }
    }
    if (found) means[bin] = sum / found;
  }
  return means;
}
