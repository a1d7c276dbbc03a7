"use strict";
// Everything that a model or a submission wrote is put on the page as text, never as markup.
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const paint = () => { root.dataset.theme = chosen ?? (dark.matches ? "dark" : "light"); };
  dark.addEventListener("change", paint);
  document.getElementById("theme").addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    paint();
  });
  paint();

  const el = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "on") node.addEventListener("click", value);
      else if (value !== null && value !== undefined) node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child !== null));
    return node;
  };
  const count = (value) => value.toLocaleString("en-US");

  const entries = JSON.parse(document.getElementById("entries").textContent);
  const unpacked = new Map();
  const unpack = async (index) => {
    if (!unpacked.has(index)) {
      const text = atob(document.getElementById(`chunk-${index}`).textContent);
      const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      unpacked.set(index, await new Response(stream).json());
    }
    return unpacked.get(index);
  };

  const list = document.getElementById("list");
  const detail = document.getElementById("detail");
  const state = { shown: [], index: -1, turn: 0, whole: false };
  const kindOf = (status, score) => (status === "ok" ? "ok" : score > 0 ? "ran" : "bad");

  const filters = {
    agent: ["all agents", (entry) => entry.agent + (severalArms ? ` · ${entry.arm}` : "")],
    task: ["all environments", (entry) => entry.task],
    outcome: ["all outcomes", (entry) => entry.outcome],
  };
  const severalArms = new Set(entries.map((entry) => entry.arm)).size > 1;
  const bothKinds = new Set(entries.map((entry) => entry.judged)).size > 1;
  const severalRuns = new Set(entries.map((entry) => entry.run)).size > 1;
  for (const [name, [all, of]] of Object.entries(filters)) {
    const select = document.getElementById(`filter-${name}`);
    select.append(el("option", { value: "" }, all));
    for (const value of [...new Set(entries.map(of))].sort()) select.append(el("option", { value }, value));
    select.addEventListener("change", () => { fill(); if (!state.shown.includes(state.index)) open(state.shown[0]); });
  }

  const fill = () => {
    const wanted = Object.entries(filters).map(([name, [, of]]) => [document.getElementById(`filter-${name}`).value, of]);
    state.shown = entries.map((_, index) => index)
      .filter((index) => wanted.every(([value, of]) => !value || of(entries[index]) === value));
    list.replaceChildren(...state.shown.map((index) => {
      const entry = entries[index];
      const dots = el("span", { class: "dots", "aria-hidden": "true" }, ...entry.scores.map((score) => {
        const bar = el("i");
        bar.style.height = `${Math.max(2, Math.round(15 * score))}px`;
        return bar;
      }));
      const name = entry.agent + (severalArms ? ` · ${entry.arm}` : "") + ` #${entry.trajectory + 1}`;
      return el("li", { "data-index": index, on: () => open(index) },
        el("div", { class: "line" }, el("b", { title: name }, name), dots),
        el("small", { title: entry.task }, `${entry.best.toFixed(2)} · ${entry.task.replace(/^ptxgym\//, "")}` +
          `${bothKinds ? ` · ${entry.judged}` : ""}`));
    }));
    mark();
  };
  const mark = () => {
    for (const item of list.children) {
      const current = Number(item.dataset.index) === state.index;
      item.setAttribute("aria-current", String(current));
      if (current) {
        const [top, bottom] = [item.offsetTop - list.offsetTop, item.offsetTop - list.offsetTop + item.offsetHeight];
        if (top < list.scrollTop) list.scrollTop = top;
        else if (bottom > list.scrollTop + list.clientHeight) list.scrollTop = bottom - list.clientHeight;
      }
    }
  };

  const open = async (index, turn = null) => {
    if (index === undefined) { state.index = -1; detail.replaceChildren(el("p", {}, "No trajectory is like that.")); return; }
    state.index = index;
    mark();
    detail.setAttribute("aria-busy", "true");
    const episode = await unpack(index);
    if (state.index !== index) return;
    const scores = entries[index].scores;
    state.turn = turn ?? scores.indexOf(Math.max(...scores));
    show(episode);
  };

  const show = (episode) => {
    const entry = entries[state.index];
    const turn = episode.turns[state.turn];
    history.replaceState(null, "", `#${encodeURIComponent(entry.id)}@${turn.turn}`);
    const kind = kindOf(turn.status, turn.score);
    const arm = entry.arm === "none" ? "" : ` · knowledge: ${entry.arm}`;
    detail.setAttribute("aria-busy", "false");
    detail.replaceChildren(
      el("h3", {}, `${entry.agent} on ${entry.task.replace(/^ptxgym\//, "")}`),
      el("p", { class: "where" }, `${severalRuns ? `${entry.run} · ` : ""}trajectory ${entry.trajectory + 1}${arm}` +
        ` · ${entry.judged} · best score ${entry.best.toFixed(2)}` +
        `${entry.problem ? ` · ${entry.status === "done" ? "ended" : entry.status}: ${entry.problem}` : ""}`),
      el("div", { class: "steps", role: "group", "aria-label": "Turns" }, ...episode.turns.map((each, number) =>
        el("button", {
          type: "button", "data-kind": kindOf(each.status, each.score), "data-turn": each.turn,
          "aria-current": String(number === state.turn), title: each.status, on: () => go(number),
        }, el("small", {}, `turn ${each.turn}`), el("b", {}, each.score.toFixed(2))))),
      el("div", { class: "verdict", "data-kind": kind },
        el("p", { class: "code" }, `${turn.status}${turn.code === turn.status ? "" : ` · ${turn.code}`} · stage ${turn.stage}` +
          ` · score ${turn.score.toFixed(3)} · best so far ${turn.best.toFixed(3)}${turn.device ? ` · ${turn.device}` : ""}`),
        turn.message ? el("p", {}, turn.message) : null,
        turn.speed ? el("p", {}, `Speed-up ${turn.speed}`) : null),
      panels(turn),
      ...source(episode, turn),
      ...texts(episode, turn));
  };

  const bars = (rows) => {
    const largest = Math.max(...rows.map((row) => row.value), 1e-12);
    return el("div", { class: "bars" }, ...rows.flatMap((row) => {
      const bar = el("i", row.target ? { class: "target" } : {});
      bar.style.width = `${(100 * Math.max(0, row.value)) / largest}%`;
      return [el("span", {}, row.name), el("span", { class: "track" }, bar), el("span", {}, row.text)];
    }));
  };
  const panel = (title, remark, ...children) =>
    el("div", { class: "panel" }, el("h4", {}, title, remark ? el("small", {}, ` ${remark}`) : null), ...children);

  const panels = (turn) => {
    const found = [];
    const terms = turn.terms.map(([name, value]) => ({ name, value, text: value.toFixed(3) }));
    found.push(panel("Reward", turn.reward.toFixed(3), terms.length ? bars(terms) : null,
      el("p", {}, `The terms sum to the reward; ${turn.reward > 0 ? "the best so far has gained" : "the best so far has gained nothing"}.`)));
    if (turn.evidence) {
      const evidence = turn.evidence;
      const rows = evidence.families.map(([name, value, target]) =>
        ({ name, value, text: count(value), target }));
      const where = evidence.workload ? `, workload ${evidence.workload}` : "";
      found.push(panel("Executed instructions", `warps’, by family; ${evidence.source}${where}`, bars(rows),
        el("p", {}, `Target instructions${rows.some((row) => row.target) ? " (green)" : ""} did ` +
          `${Math.round(100 * evidence.coverage)} % of the multiply-adds. ${evidence.why}`)));
      found[found.length - 1].classList.add("histogram");
    }
    if (turn.outputs.length) {
      found.push(panel("Outputs", "relative error / budget", ...turn.outputs.map((output) => {
        const fits = output.fits.length ? ` Fits: ${output.fits.join("; ")}.` : "";
        const where = output.ok ? "" : ` ${[output.region, output.pattern].filter(Boolean).join(", ")}.${fits}`;
        return el("p", {}, el("b", { class: output.ok ? "good" : "bad" }, `${output.ok ? "✓" : "✗"} ${output.name} `),
          `${output.error} / ${output.budget}.${where}`);
      })));
    }
    const cost = turn.cost === null ? "" : `, $${turn.cost.toFixed(4)}`;
    found.push(panel("Answer", turn.model, el("p", {},
      `${count(turn.tokens[0])} tokens read, ${count(turn.tokens[1])} written${cost}; ${turn.seconds[0]} s to answer, ` +
      `${turn.seconds[1]} s to judge. Ended by ${turn.finish || "?"}${turn.refused ? ", refused" : ""}` +
      `${turn.attempts > 1 ? `, ${turn.attempts} calls` : ""}${turn.notes.length ? `; ${turn.notes.join(", ")}` : ""}.`)));
    return el("div", { class: "panels" }, ...found);
  };

  // Colours for CUDA C++: what a reader needs, a line at a time; `comment` tells whether the line begins in one.
  const TOKEN = /(\/\/.*|\/\*.*?(?:\*\/|$))|("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])+')|(^\s*#\s*\w+)|\b(asm|auto|bool|break|case|char|const|constexpr|continue|default|do|else|enum|extern|float|for|if|inline|int|long|namespace|return|short|signed|sizeof|static|static_cast|struct|switch|template|typename|unsigned|using|void|volatile|while|u?int(?:8|16|32|64)_t|__\w+__|__nv_bfloat16\w*|CUtensorMap)\b|\b(\d[\w.]*)|\b([A-Za-z_]\w*)(?=\()/g;
  const KINDS = ["c", "s", "p", "k", "n", "f"];
  const endsInComment = (line, inside) => {
    let rest = line;
    if (inside) {
      const end = rest.indexOf("*/");
      if (end < 0) return true;
      rest = rest.slice(end + 2);
    }
    const plain = rest.replace(/"(?:\\.|[^"\\])*"/g, "").replace(/\/\*.*?\*\//g, "").replace(/\/\/.*/, "");
    return plain.includes("/*");
  };
  const coloured = (line, inside) => {
    const found = [];
    let at = 0;
    if (inside) {
      const end = line.indexOf("*/");
      at = end < 0 ? line.length : end + 2;
      found.push(el("span", { class: "t-c" }, line.slice(0, at)));
    }
    const rest = line.slice(at);
    let last = 0;
    for (const match of rest.length < 2000 ? rest.matchAll(TOKEN) : []) {
      const kind = KINDS[match.slice(1).findIndex((group) => group !== undefined)];
      found.push(rest.slice(last, match.index), el("span", { class: `t-${kind}` }, match[0]));
      last = match.index + match[0].length;
    }
    return [...found, rest.slice(last)];
  };

  const CONTEXT = 3;
  const note = (mark_) => [el("b", {}, mark_.code ? `${mark_.severity} ${mark_.code}` : mark_.severity), mark_.text];
  const source = (episode, turn) => {
    const marks = new Map();
    for (const each of turn.marks) {
      if (each.line !== null) marks.set(each.line, [...(marks.get(each.line) ?? []), each]);
    }
    let [before, after, added, deleted] = [0, 0, 0, 0];
    const open_ = { old: false, new: false };
    const lines = turn.rows.map(([sign, number]) => {
      if (sign !== "+") before += 1;
      if (sign !== "-") after += 1;
      if (sign === "+") added += 1;
      if (sign === "-") deleted += 1;
      const comment = sign === "-" ? open_.old : open_.new;
      const ends = endsInComment(episode.lines[number], comment);
      if (sign !== "+") open_.old = ends;
      if (sign !== "-") open_.new = ends;
      return { sign, number, before, after, comment };
    });
    const changed = turn.parent !== null;
    const near = new Uint8Array(lines.length).fill(changed && !state.whole ? 0 : 1);
    lines.forEach((line, at) => {
      if (line.sign === " " && !marks.has(line.after)) return;
      near.fill(1, Math.max(0, at - CONTEXT), at + CONTEXT + 1);
    });
    const body = el("tbody");
    const write = (line, place) => {
      const hits = line.sign === "-" ? [] : marks.get(line.after) ?? [];
      const serious = hits.some((each) => each.severity !== "note" && each.severity !== "party");
      const row = el("tr", { class: [{ "+": "add", "-": "del" }[line.sign] ?? "", serious ? "hit" : ""].join(" ").trim() },
        el("td", { class: "no" }, line.sign === "+" || !changed ? "" : String(line.before)),
        el("td", { class: "no" }, line.sign === "-" ? "" : String(line.after)),
        el("td", { class: "sign" }, line.sign),
        el("td", { class: "text" }, ...coloured(episode.lines[line.number], line.comment)));
      place(row);
      for (const each of hits) {
        place(el("tr", { class: `mark ${each.severity}` }, el("td", { colspan: 3 }), el("td", {}, el("div", {}, ...note(each)))));
      }
    };
    for (let at = 0; at < lines.length;) {
      if (near[at]) { write(lines[at], (row) => body.append(row)); at += 1; continue; }
      let end = at;
      while (end < lines.length && !near[end]) end += 1;
      const hidden = lines.slice(at, end);
      const fold = el("tr", { class: "fold" }, el("td", { colspan: 4 }, `${count(hidden.length)} unchanged lines`));
      fold.addEventListener("click", () => { for (const line of hidden) write(line, (row) => fold.before(row)); fold.remove(); });
      body.append(fold);
      at = end;
    }
    const remark = changed ? `against turn ${turn.parent}: +${count(added)} −${count(deleted)} lines` : lines.length ? `${count(lines.length)} lines` : "";
    const toggle = changed && lines.length
      ? el("button", { type: "button", id: "whole", on: swap }, state.whole ? "changes only" : "whole kernel") : null;
    const loose = turn.marks.filter((each) => each.line === null);
    return [
      ...loose.map((each) => el("p", { class: `said ${each.severity}` }, ...note(each))),
      el("div", { class: "tools" }, el("h4", {}, "Kernel ", el("small", {}, remark)), toggle),
      el("div", { class: "source", tabindex: 0 }, lines.length ? el("table", {}, body) : el("p", { class: "empty" },
        turn.solution ? `The proven solution ${turn.solution}: its text stays out of records and reports.` : "no kernel")),
    ];
  };

  const fold = (title, text) => el("details", {}, el("summary", {}, title), el("pre", {}, text));
  const texts = (episode, turn) => [
    fold("Feedback that the model reads next", episode.texts[turn.feedback]),
    fold("Whole answer", episode.texts[turn.response]),
    turn.reasoning === null ? null : fold("Reasoning", episode.texts[turn.reasoning]),
    el("details", {}, el("summary", {}, `Messages before the answer (${turn.messages.length})`),
      ...turn.messages.flatMap(([role, text]) => [el("h4", {}, role), el("pre", {}, episode.texts[text])])),
  ].filter((each) => each !== null);

  const go = async (number) => {
    const episode = await unpack(state.index);
    if (number < 0 || number >= episode.turns.length) return;
    state.turn = number;
    show(episode);
  };
  const swap = async () => { state.whole = !state.whole; show(await unpack(state.index)); };
  const move = (by) => {
    const next = state.shown[state.shown.indexOf(state.index) + by];
    if (next !== undefined) open(next);
  };
  const keys = {
    ArrowLeft: () => go(state.turn - 1), ArrowRight: () => go(state.turn + 1),
    ArrowUp: () => move(-1), ArrowDown: () => move(1), w: swap,
  };
  const viewer = document.getElementById("viewer");
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key] || state.index < 0) return;
    if (event.target.closest("select, input, .scroll, .source")) return;
    const box = viewer.getBoundingClientRect();
    if (box.top > innerHeight * 0.7 || box.bottom < 0) return; // arrows scroll elsewhere on the page
    event.preventDefault();
    keys[event.key]();
  });

  const start = () => {
    const wanted = decodeURIComponent(location.hash.slice(1));
    const [id, turn] = [wanted.slice(0, wanted.lastIndexOf("@")), Number(wanted.slice(wanted.lastIndexOf("@") + 1))];
    const linked = entries.findIndex((entry) => entry.id === id);
    const gain = (entry) => Math.max(...entry.scores) - entry.scores[0];
    const best = entries.reduce((found, entry, index) => (gain(entry) > gain(entries[found]) ? index : found), 0);
    fill();
    if (linked >= 0) open(linked, Math.max(0, turn - 1)).then(() => viewer.scrollIntoView());
    else open(entries.length ? best : undefined);
  };
  start();
})();
