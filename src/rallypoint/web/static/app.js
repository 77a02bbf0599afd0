// The live page: draws the server's events. It makes no other requests.

import { bytes, clock, coarse, count, duration, make, write } from "/static/format.js";

const $ = (id) => document.getElementById(id);
const STRIP_ROUNDS = 16;
const SILENT_SECONDS = 7;

const state = {
  wanted: new URLSearchParams(location.search).get("run"),
  server: null, run: null, rounds: [], runAt: 0, roundsAt: 0,
  picked: null, source: null, filter: "",
};

// -- events ---------------------------------------------------------------------------------

function listen() {
  if (state.source) state.source.close();
  const query = state.wanted === null ? "" : `?run=${encodeURIComponent(state.wanted)}`;
  const source = new EventSource(`/api/v1/events${query}`);
  state.source = source;
  source.onopen = () => live(true);
  source.onerror = () => {
    live(false);
    if (source.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000);
  };
  source.addEventListener("server", (event) => takeServer(JSON.parse(event.data)));
  source.addEventListener("run", (event) => {
    state.run = JSON.parse(event.data);
    state.runAt = Date.now();
    draw();
  });
  source.addEventListener("rounds", (event) => {
    state.rounds = JSON.parse(event.data);
    state.roundsAt = Date.now();
    drawRounds();
    drawMembers();
  });
}

function live(yes) {
  const element = $("live");
  element.classList.toggle("off", !yes);
  write(element, yes ? "live" : "disconnected, reconnecting");
}

function takeServer(server) {
  state.server = server;
  write($("health"), [
    server.endpoint, `up ${coarse(server.uptime_seconds)}`,
    count(server.connections, "connection", "connections"),
    `event loop ${(server.lag_seconds * 1000).toFixed(0)} ms late`, bytes(server.memory_bytes),
    ...(server.access.startsWith("INSECURE") ? [server.access] : []),
    ...(server.role ? [server.role] : []),
    ...(server.durable ? [`durable: ${server.durable.where}`] : []),
    ...(server.durable && server.durable.trouble ? [server.durable.trouble] : []),
    ...(server.faults ? [`${server.faults} internal errors, see the server's log`] : []),
  ].join("  ·  "));
  const trouble = Boolean(server.durable && server.durable.trouble);
  $("health").classList.toggle("bad", server.lag_seconds > 0.5 || server.faults > 0 || trouble);
  write($("where"), server.endpoint);
  write($("empty-title"), state.wanted === null ? "No run yet" : `No run ${state.wanted} yet`);
  $("empty").hidden = Boolean(state.run);
  if (state.wanted === null && server.runs.length) choose(server.runs[0].run_id, false);
  const first = items.size === 0;
  drawRuns();
  if (first) showChosen();
}

function choose(name, byHand) {
  if (byHand && name === state.wanted) return;
  state.wanted = name;
  state.run = null;
  state.rounds = [];
  state.picked = null;
  if (byHand) history.pushState({}, "", `?run=${encodeURIComponent(name)}`);
  $("body").replaceChildren();
  rows.clear();
  drawRuns();
  showChosen();
  listen();
}

function showChosen() {
  const chosen = $("runs").querySelector("[aria-current]");
  if (chosen) chosen.scrollIntoView({ block: "nearest", inline: "nearest" });
}

addEventListener("popstate", () => {
  const name = new URLSearchParams(location.search).get("run");
  if (name !== null) choose(name, false);
});

// -- runs -----------------------------------------------------------------------------------

const items = new Map();

function drawRuns() {
  const server = state.server;
  if (!server) return;
  write($("run-count"), String(server.run_count));
  const seen = new Set();
  server.runs.forEach((line, place) => {
    seen.add(line.run_id);
    let item = items.get(line.run_id);
    if (!item) {
      const button = make("button", { type: "button" });
      button.append(make("span", { class: "name" }), make("span", { class: "badge" }),
        make("span", { class: "dim" }));
      button.addEventListener("click", () => choose(line.run_id, true));
      item = make("li", {}, button);
      items.set(line.run_id, item);
    }
    const [name, badge, dim] = item.firstChild.children;
    write(name, line.run_id);
    write(badge, line.phase);
    badge.dataset.phase = line.phase; // the colour
    write(dim, `round ${line.round}, ${count(line.nodes, "node", "nodes")}`);
    const chosen = line.run_id === state.wanted;
    if (chosen) item.firstChild.setAttribute("aria-current", "true");
    else item.firstChild.removeAttribute("aria-current");
    if ($("runs").children[place] !== item) $("runs").insertBefore(item, $("runs").children[place] || null);
  });
  for (const [name, item] of items) {
    if (!seen.has(name)) { item.remove(); items.delete(name); }
  }
}

// -- one run ---------------------------------------------------------------------------------

function draw() {
  const run = state.run;
  $("empty").hidden = Boolean(run);
  $("run").hidden = !run;
  if (!run) return;
  document.title = `${run.run_id}: ${run.phase} · Rallypoint`;
  write($("run-name"), run.run_id);
  write($("phase"), run.phase);
  $("phase").dataset.phase = run.phase;
  write($("reason"), run.reason);
  drawClocks();
  drawMissing(run);
  drawFacts(run);
  drawFailures(run);
  drawRounds();
  drawMembers();
}

function drawClocks() {
  const run = state.run;
  if (!run) return;
  const passed = (Date.now() - state.runAt) / 1000;
  const since = run.since_seconds === null ? "" : `for ${duration(run.since_seconds + passed)}`;
  write($("since"), `round ${run.round}${run.incarnation > 1 ? `, incarnation ${run.incarnation}` : ""} · ${since}`);
  const list = $("timers");
  while (list.children.length > run.timers.length) list.lastChild.remove();
  run.timers.forEach((timer, i) => {
    const item = list.children[i] || list.appendChild(make("li", {}, make("b"), make("span")));
    const left = timer.remaining_seconds === null ? "runs" : duration(Math.max(0, timer.remaining_seconds - passed));
    write(item.children[0], left);
    write(item.children[1], ` ${timer.name} (${timer.setting})`);
  });
}

function drawMissing(run) {
  $("missing").hidden = run.missing.length === 0;
  const shown = run.missing.slice(0, 50).map((name) => make("li", {}, name));
  if (run.missing.length > 50) shown.push(make("li", {}, `and ${run.missing.length - 50} more`));
  $("missing-list").replaceChildren(...shown);
}

function drawFacts(run) {
  const s = run.settings;
  const facts = [];
  if (s) {
    const span = s.min_nodes === s.max_nodes ? `${s.min_nodes}` : `${s.min_nodes} to ${s.max_nodes}`;
    facts.push(["nodes", span + (s.target_nodes ? `, ${s.target_nodes} wanted` : "")]);
    facts.push(["restarts", `${run.budget.used} of ${run.budget.allowed === null ? "any number" : run.budget.allowed}`]);
    facts.push(["lease", `${s.lease} s`], ["last call", `${s.last_call} s`]);
    facts.push(["opened by", run.opened_by]);
  }
  for (const notice of run.notices) facts.push(["will leave", `${notice.node}: ${notice.why}${notice.remaining_seconds === null ? "" : `, in ${duration(notice.remaining_seconds)}`} (by ${notice.by})`]);
  for (const out of run.exclusions) facts.push(["excluded", `${out.aspect} ${out.name}: ${out.why} (by ${out.by}${out.remaining_seconds === null ? "" : `, ${duration(out.remaining_seconds)} more`})`]);
  if (run.shut_out.length) facts.push(["last lost", run.shut_out[0].why]);
  const parts = facts.flatMap(([name, value]) => [make("div", {}, make("dt", {}, name), make("dd", {}, value))]);
  $("facts").replaceChildren(...parts);
}

function drawFailures(run) {
  $("failures").hidden = run.failures.length === 0;
  const shown = run.failures.slice(0, 4).map((f) => {
    const how = f.signal ? `signal ${f.signal}` : `exit code ${f.exit_code}`;
    const head = make("p", {}, `rank ${f.rank} on ${f.node}, round ${f.round}: ${how}`);
    return make("div", {}, head, make("pre", { tabindex: "0" }, f.message || "(no output on stderr)"));
  });
  $("failure-list").replaceChildren(...shown);
}

// -- rounds ----------------------------------------------------------------------------------

const key = (line) => `${line.incarnation}.${line.number}`;

function lines() {
  const named = new Map(state.rounds.map((line) => [key(line), line.nodes]));
  return (state.run ? state.run.rounds : []).map((line) => ({ ...line, nodes: named.get(key(line)) || [] }));
}

function drawRounds() {
  const all = lines();
  write($("round-count"), String(all.length));
  const track = $("track");
  const atEnd = track.scrollLeft + track.clientWidth >= track.scrollWidth - 4;
  while (track.children.length > all.length) track.lastChild.remove();
  if (state.picked !== null && !all.some((line) => key(line) === state.picked)) state.picked = null;
  all.forEach((line, i) => {
    const block = track.children[i] || track.appendChild(newBlock());
    drawBlock(block, line, i === all.length - 1);
  });
  if (atEnd) track.scrollLeft = track.scrollWidth;
  drawRound(all);
}

function newBlock() {
  const block = make("div", { class: "block", role: "option" }, make("b"), make("span"), make("small"));
  block.addEventListener("click", () => pick(block.dataset.key));
  return block;
}

function drawBlock(block, line, isLast) {
  const kind = line.sealed_seconds === null ? "joining" : line.ended_seconds === null ? "working" : line.lost.length ? "lost" : "ended";
  const lasted = line.sealed_seconds === null ? 0 : line.sealed_seconds - (line.ended_seconds || 0);
  block.dataset.key = key(line);
  block.dataset.kind = kind;
  block.id = `round-${line.incarnation}-${line.number}`;
  block.style.flexGrow = String(1 + Math.sqrt(Math.min(lasted, 86400)));
  write(block.children[0], String(line.number));
  write(block.children[1], line.sealed_seconds === null ? "gathering" : count(line.size, "node", "nodes"));
  write(block.children[2], line.sealed_seconds === null ? "" : coarse(lasted));
  const chosen = state.picked === null ? isLast : state.picked === block.dataset.key;
  block.setAttribute("aria-selected", String(chosen));
  if (chosen) $("track").setAttribute("aria-activedescendant", block.id);
}

function pick(name) {
  const all = lines();
  const last = all.length ? key(all[all.length - 1]) : null;
  state.picked = name === last ? null : name; // the last round follows new events
  drawRounds();
}

$("track").addEventListener("keydown", (event) => {
  const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
  if (!(event.key in steps)) return;
  event.preventDefault();
  const names = lines().map(key);
  if (!names.length) return;
  const at = state.picked === null ? names.length - 1 : names.indexOf(state.picked);
  const next = Math.min(names.length - 1, Math.max(0, at + steps[event.key]));
  pick(names[next]);
  $("track").children[next].scrollIntoView({ block: "nearest", inline: "nearest" });
});

function drawRound(all) {
  const at = state.picked === null ? all.length - 1 : all.findIndex((line) => key(line) === state.picked);
  const line = all[at];
  if (!line) { $("round").replaceChildren(); return; }
  const before = all.slice(0, at).reverse().find((other) => other.sealed_seconds !== null);
  const rowsOf = [];
  const add = (name, value) => value && rowsOf.push(make("dt", {}, name), make("dd", {}, value));
  add("opened", `${clock(line.opened_seconds, state.runAt)}${line.opened_because ? `: ${line.opened_because}` : ""}`);
  if (line.sealed_seconds !== null) {
    add("sealed", `${clock(line.sealed_seconds, state.runAt)}, after ${duration(line.opened_seconds - line.sealed_seconds)}: ${line.sealed_because}`);
  }
  if (line.ended_seconds !== null) add("ended", `${clock(line.ended_seconds, state.runAt)}: ${line.ended_because}`);
  add("lost", line.lost.join(", "));
  if (before && line.nodes.length && before.nodes.length) {
    const was = new Set(before.nodes), is = new Set(line.nodes);
    add("joined", some(line.nodes.filter((name) => !was.has(name))));
    add("left", some(before.nodes.filter((name) => !is.has(name))));
  }
  add("nodes", some(line.nodes));
  const title = make("h3", {}, `Round ${line.number}`);
  const list = make("dl", {}, ...rowsOf);
  const old = $("round");
  if (old.textContent !== title.textContent + list.textContent) old.replaceChildren(title, list);
}

function some(names) {
  if (names.length <= 6) return names.join(", ");
  return `${names.slice(0, 6).join(", ")} and ${names.length - 6} more`;
}

// -- members ---------------------------------------------------------------------------------

const rows = new Map();

function drawMembers() {
  const run = state.run;
  if (!run) return;
  const sealed = lines().filter((line) => line.nodes.length).slice(-STRIP_ROUNDS);
  const sets = sealed.map((line) => new Set(line.nodes));
  const here = new Set(run.members.map((member) => member.label));
  const gone = new Map();
  for (const line of sealed) {
    for (const label of line.nodes) {
      if (!here.has(label)) gone.set(label, { id: `gone ${label}`, label, place: "gone", rank: null, slot: null, connected: true, since_seconds: null, heard_seconds: null });
    }
  }
  const all = [...run.members, ...gone.values()];
  const tally = {};
  for (const member of all) tally[member.place] = (tally[member.place] || 0) + 1;
  write($("member-count"), run.members.length.toLocaleString("en"));
  write($("places"), Object.entries(tally).map(([place, number]) => `${number.toLocaleString("en")} ${place}`).join("  ·  "));
  const shown = all.filter(matches);
  $("rows").setAttribute("aria-rowcount", String(shown.length + 1));
  const seen = new Set();
  let place = $("body").firstChild;
  for (const member of shown) {
    seen.add(member.id);
    let row = rows.get(member.id);
    if (!row) { row = newRow(); rows.set(member.id, row); }
    drawRow(row, member, sealed, sets);
    if (row === place) place = place.nextSibling;
    else $("body").insertBefore(row, place);
  }
  for (const [id, row] of rows) if (!seen.has(id)) { row.remove(); rows.delete(id); }
}

function matches(member) {
  if (!state.filter) return true;
  const text = `${member.label} ${member.slot || ""} ${member.place} ${member.rank ?? ""}`.toLowerCase();
  return state.filter.split(/\s+/).every((word) => text.includes(word));
}

function newRow() {
  const row = make("div", { class: "row", role: "row" });
  for (const name of ["rank", "node", "slot", "place", "for", "beat"]) row.append(make("span", { role: "cell", class: name }));
  row.append(make("span", { role: "cell", class: "strip" }, make("span", { role: "img" })));
  return row;
}

function drawRow(row, member, sealed, sets) {
  const cells = row.children;
  row.dataset.place = member.place;
  write(cells[0], member.rank === null ? "" : String(member.rank));
  write(cells[1], member.label);
  write(cells[2], member.slot || "");
  write(cells[3], member.place);
  write(cells[4], coarse(member.since_seconds));
  const late = member.heard_seconds !== null && member.heard_seconds > SILENT_SECONDS;
  write(cells[5], !member.connected ? "disconnected" : member.heard_seconds === null ? "" : late ? `${coarse(member.heard_seconds)} ago` : "on time");
  cells[5].classList.toggle("bad", late || !member.connected);
  const strip = cells[6].firstChild;
  const marks = sets.map((set) => (set.has(member.label) ? "1" : "0")).join("");
  if (strip.dataset.marks === marks) return;
  strip.dataset.marks = marks;
  const took = sealed.filter((line, i) => marks[i] === "1").map((line) => line.number);
  strip.setAttribute("aria-label", took.length ? `in rounds ${took.join(", ")}` : "in no round");
  strip.title = strip.getAttribute("aria-label");
  strip.style.width = `${marks.length * 12}px`;
  strip.style.backgroundImage = [...marks].map((mark) => `linear-gradient(var(--${mark === "1" ? "in" : "out"}), var(--${mark === "1" ? "in" : "out"}))`).join(",");
  strip.style.backgroundSize = "10px 12px";
  strip.style.backgroundRepeat = "no-repeat";
  strip.style.backgroundPosition = [...marks].map((_, i) => `${i * 12}px 0`).join(",");
}

// -- user input --------------------------------------------------------------------------------

$("filter").addEventListener("input", (event) => {
  state.filter = event.target.value.trim().toLowerCase();
  drawMembers();
});

addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== $("filter")) {
    event.preventDefault();
    $("filter").focus();
  } else if (event.key === "Escape" && document.activeElement === $("filter")) {
    $("filter").value = "";
    $("filter").dispatchEvent(new Event("input"));
    $("filter").blur();
  }
});

function theme(name) {
  document.documentElement.dataset.theme = name;
  write($("theme"), `Theme: ${name}`);
}

$("theme").addEventListener("click", () => {
  const next = { auto: "dark", dark: "light", light: "auto" }[document.documentElement.dataset.theme];
  theme(next);
  try { localStorage.setItem("theme", next); } catch (error) { console.warn(error); }
});

theme(document.documentElement.dataset.theme);
setInterval(drawClocks, 250);
listen();
