// The page's own script: tables that sort and filter, charts by Vega, the triangle of weights.
(function () {
  "use strict";
  const DATA = JSON.parse(document.getElementById("page-data").textContent);
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const ENCODER = Object.fromEntries(DATA.encoders.map((e, order) => [e.encoder, { ...e, order }]));
  const INK = "var(--ink)", QUIET = "var(--quiet)", LINE = "var(--line)";

  // --- light and dark ---------------------------------------------------------------------------
  $("#theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  // --- tables -----------------------------------------------------------------------------------
  function cellAt(row, column) {
    let at = 0;
    for (const cell of row.cells) {
      if (column < at + cell.colSpan) return cell;
      at += cell.colSpan;
    }
    return null;
  }
  function sortTable(table, header) {
    const column = header.cellIndex, number = header.dataset.kind === "number";
    const before = header.getAttribute("aria-sort");
    const flip = { ascending: "descending", descending: "ascending" };
    const direction = before ? flip[before] : header.dataset.first;
    $$("th[aria-sort]", table).forEach((th) => th.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", direction);
    const sign = direction === "ascending" ? 1 : -1;
    const keyed = [...table.tBodies[0].rows].map((row, place) => {
      const text = cellAt(row, column)?.dataset.sort ?? cellAt(row, column)?.textContent ?? "";
      return { row, place, key: number && text !== "" ? Number(text) : text };
    });
    keyed.sort((a, b) => {
      if (a.key === "" || b.key === "") return (a.key === "") - (b.key === "") || a.place - b.place;
      const order = number ? a.key - b.key : String(a.key).localeCompare(String(b.key));
      return sign * order || a.place - b.place;
    });
    table.tBodies[0].append(...keyed.map((of) => of.row));
  }
  for (const table of $$("table.sortable")) {
    for (const header of $$("thead th", table)) {
      $("button", header)?.addEventListener("click", () => sortTable(table, header));
    }
  }
  const filter = $("#filter");
  function filterRows() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of $$(".board tbody tr")) {
      const text = row.dataset.words.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      if (!row.hidden && !row.closest(".board").hidden) shown += 1;
    }
    $("#found").textContent = words.length ? `${shown} encoders shown` : "";
  }
  filter.addEventListener("input", filterRows);
  function onChoice(name, act) {
    for (const input of $$(`input[name="${name}"]`)) {
      input.addEventListener("change", () => input.checked && act(input.value));
    }
  }
  onChoice("ds-board", (value) => {
    for (const board of $$(".board")) board.hidden = board.dataset.board !== value;
    filterRows();
  });
  onChoice("columns", (value) => {
    for (const table of $$(".leaderboard")) {
      table.classList.toggle("show-axes", value === "axes");
      table.classList.toggle("show-measures", value === "measures");
    }
  });

  // --- charts -----------------------------------------------------------------------------------
  const CONFIG = {
    background: null,
    font: "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif",
    axis: { labelColor: QUIET, titleColor: QUIET, gridColor: LINE, domainColor: LINE, tickColor: LINE,
      labelFontSize: 11, titleFontSize: 11, titleFontWeight: "normal", gridOpacity: 0.7, labelFlush: false },
    header: { labelColor: INK, titleColor: INK },
    legend: { labelColor: QUIET, titleColor: QUIET, labelFontSize: 12 },
    text: { color: INK },
    view: { stroke: null },
  };
  const views = {};
  const chosen = () => $$("#chooser input:checked").map((input) => input.value);

  // What the name of an encoder says of the images that it may have seen in pre-training.
  const seen = (encoder, dataset) => DATA.overlaps[encoder]?.[dataset] ?? "no";
  const titled = (encoder, dataset) =>
    DATA.titles[encoder] + { yes: " (seen)", unknown: " (seen?)", no: "" }[seen(encoder, dataset)];
  const marked = (encoder, dataset) => (seen(encoder, dataset) === "yes" ? "† " : "") + DATA.titles[encoder];

  function rowsOf(name) {
    return DATA.rows[name].map((row) => {
      const key = row.encoder ?? row.encoder_a, encoder = ENCODER[key];
      const other = row.encoder_b
        ? { other: titled(row.encoder_b, row.dataset), other_order: ENCODER[row.encoder_b].order }
        : {};
      return { ...row, encoder: key, title: titled(key, row.dataset), colour: encoder.colour,
        dash: encoder.dash, order: encoder.order, ...other };
    });
  }
  // How many plots of a facetted chart stand side by side, and how wide each is.
  function fitted(spec, width, count) {
    if (spec.facet) {
      if (spec.facet.field === "dataset") spec.facet.sort = DATA.datasets.map((of) => of.name);
      const { cell, between } = { cell: 200, between: 62, ...spec.usermeta };
      const room = width - 60; // for the first plot's own axis
      const columns = Math.max(1, Math.min(count, Math.floor((room + between) / (cell + between))));
      spec.columns = columns;
      spec.spec = { ...spec.spec, width: Math.floor((room + between) / columns - between) };
      return spec;
    }
    const hint = spec.usermeta ?? {};
    const wide = Math.min(width, hint.maxWidth ?? width);
    spec.width = Math.max(160, wide - (hint.rightMargin ?? 0) - 40);
    if (hint.rightMargin) spec.padding = { left: 5, top: 5, bottom: 5, right: 5 };
    spec.autosize = hint.rightMargin ? { type: "pad" } : { type: "fit-x", contains: "padding" };
    if (!hint.rightMargin) spec.width = wide;
    return spec;
  }
  async function draw(holder) {
    const name = holder.dataset.chart;
    const spec = structuredClone(DATA.specs[name]);
    const source = spec.data.name, rows = rowsOf(source);
    if (!rows.length) {
      holder.replaceChildren(Object.assign(document.createElement("p"), {
        className: "quiet", textContent: "Nothing to draw: this run has no such values." }));
      holder.style.minHeight = "0";
      return;
    }
    const count = spec.facet ? new Set(rows.map((row) => row[spec.facet.field])).size : 1;
    fitted(spec, holder.clientWidth, count);
    if (spec.usermeta?.rowHeight) {
      const lines = new Set(rows.map((row) => row.encoder)).size;
      spec.height = spec.usermeta.rowHeight * lines;
    }
    const set = { titles: DATA.titles, chosen: chosen(), ...choicesOf(name) };
    if (set.dataset) {
      const names = DATA.encoders.map(({ encoder }) => [encoder, marked(encoder, set.dataset)]);
      set.titles = { ...DATA.titles, ...Object.fromEntries(names) };
    }
    spec.params = spec.params.map((p) => (p.name in set ? { ...p, value: set[p.name] } : p));
    spec.datasets = { [source]: rows };
    const theme = { ...CONFIG };
    const result = await window.vegaEmbed(holder, spec, { actions: false, renderer: "svg", config: theme });
    views[name]?.finalize();
    views[name] = result.view;
    holder.dataset.drawn = "yes";
    holder.querySelector("svg")?.setAttribute("aria-hidden", "true");
  }
  const checkedValue = (name) => $(`input[name="${name}"]:checked`)?.value;
  function choicesOf(chart) {
    if (chart === "slopes") return { dataset: checkedValue("ds-slopes") };
    if (chart === "rank_probability" || chart === "pairs") return { dataset: checkedValue("ds-sure") };
    if (chart === "stress") return { dataset: checkedValue("ds-stress"), measure: checkedValue("measure") };
    return {};
  }
  function redrawn(...names) {
    return () => names.forEach((name) => $$(`[data-chart="${name}"]`).forEach(draw));
  }
  onChoice("ds-slopes", redrawn("slopes"));
  onChoice("ds-sure", redrawn("rank_probability", "pairs"));
  onChoice("ds-stress", redrawn("stress"));
  onChoice("measure", redrawn("stress"));

  function nameChosen() {
    const parts = chosen().map((name) => {
      const span = document.createElement("span"), swatch = document.createElement("span");
      swatch.className = `swatch d${ENCODER[name].dash}`;
      swatch.style.setProperty("--c", ENCODER[name].colour);
      span.dir = "auto";
      span.textContent = ENCODER[name].title;
      const both = document.createElement("span");
      both.append(swatch, span);
      return both;
    });
    $("#chosen-names").replaceChildren(...(parts.length ? parts : ["none"]));
  }
  for (const input of $$("#chooser input")) {
    input.addEventListener("change", () => {
      nameChosen();
      for (const view of Object.values(views)) view.signal("chosen", chosen()).runAsync();
    });
  }
  nameChosen();
  async function drawAll() {
    for (const holder of $$("[data-chart]")) {
      try {
        await draw(holder);
      } catch (error) {
        console.error(error);
        holder.textContent = "This chart could not be drawn.";
        holder.classList.add("chart-problem");
      }
    }
    document.documentElement.dataset.ready = "yes";
  }
  let width = window.innerWidth, waiting;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return; // a phone's toolbars change the height alone
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 200);
  });

  // --- the triangle of weights ------------------------------------------------------------------
  const PARTS = DATA.components, USED = DATA.weights, STEPS = 20, TIE = 0;
  const CORNERS = [[0, 260], [300, 260], [150, 0]]; // dominance, proximity, worst axis
  const SVG = "http://www.w3.org/2000/svg";
  let weights = [...USED];

  function scores(w) {
    // In the order of the study `weight_sensitivity`, so that ties are the same ties.
    return PARTS.map((p) => 0 + w[0] * p.dominance + w[1] * p.proximity + w[2] * p.worst_axis);
  }
  function ranks(values) {
    return values.map((value) => 1 + values.filter((other) => other > value + TIE).length);
  }
  function ranking(w) {
    const values = scores(w), places = ranks(values);
    return PARTS.map((p, i) => ({ encoder: p.encoder, score: values[i], rank: places[i] }))
      .sort((a, b) => a.rank - b.rank || (a.encoder < b.encoder ? -1 : 1));
  }
  const at = (w) => [0, 1].map((k) => w.reduce((sum, x, i) => sum + x * CORNERS[i][k], 0));
  function weightsAt(x, y) {
    const top = Math.min(1, Math.max(0, 1 - y / 260));
    const right = Math.min(1 - top, Math.max(0, x / 300 - top / 2));
    return [Math.max(0, 1 - top - right), right, top];
  }
  const onTop = (w) => { const all = ranking(w); return all.filter((of) => of.rank === 1); };

  function svg(kind, attributes, text) {
    const node = document.createElementNS(SVG, kind);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text) node.textContent = text;
    return node;
  }
  function drawTriangle() {
    const triangle = $("#triangle"), first = {};
    let points = 0;
    for (let i = 0; i <= STEPS; i += 1) {
      for (let j = 0; j <= STEPS - i; j += 1) {
        const w = [i / STEPS, j / STEPS, (STEPS - i - j) / STEPS], leaders = onTop(w), [x, y] = at(w);
        points += 1;
        for (const of of leaders) first[of.encoder] = (first[of.encoder] ?? 0) + 1;
        const colour = leaders.length === 1 ? ENCODER[leaders[0].encoder].colour : "var(--faint)";
        const dot = svg("circle", { cx: x, cy: y, r: 6.8, fill: colour, "fill-opacity": 0.85 });
        dot.append(svg("title", {}, leaders.map((of) => DATA.titles[of.encoder]).join(" = ")));
        triangle.append(dot);
      }
    }
    const [ux, uy] = at(USED);
    triangle.append(svg("path", { class: "used", d: `M${ux - 5} ${uy - 5}l10 10m0 -10l-10 10` }));
    triangle.append(svg("text", { x: 0, y: 286, "text-anchor": "middle" }, "dominance"));
    triangle.append(svg("text", { x: 300, y: 286, "text-anchor": "middle" }, "proximity"));
    triangle.append(svg("text", { x: 150, y: -16, "text-anchor": "middle" }, "worst axis"));
    triangle.append(svg("circle", { class: "handle", r: 9 }));
    const shares = Object.entries(first).sort((a, b) => b[1] - a[1])
      .map(([name, n]) => `${DATA.titles[name]} ${Math.round((100 * n) / points)} %`);
    $("#stays").dataset.shares = `First over the whole triangle: ${shares.join(", ")}.`;
  }
  function rerank() {
    const now = ranking(weights), used = Object.fromEntries(ranking(USED).map((r) => [r.encoder, r.rank]));
    const [x, y] = at(weights), handle = $("#triangle .handle");
    handle.setAttribute("cx", x);
    handle.setAttribute("cy", y);
    weights.forEach((w, i) => {
      $(`#w${i}`).value = Math.round(100 * w);
      $(`#o${i}`).textContent = w.toFixed(2);
    });
    const best = Math.max(...now.map((row) => row.score), 1e-9);
    $("#reranked tbody").replaceChildren(...now.map((row) => {
      const tr = document.createElement("tr");
      const cell = (text, kind = "td", name = "") => {
        const td = document.createElement(kind);
        td.textContent = text;
        td.className = name;
        tr.append(td);
        return td;
      };
      cell(row.rank);
      const who = cell(DATA.titles[row.encoder], "th", "text");
      who.scope = "row";
      who.dir = "auto";
      const chip = $$("#chooser input").find((input) => input.value === row.encoder);
      for (const mark of $$(".mark", chip?.parentNode)) who.append(" ", mark.cloneNode(true));
      const score = cell("", "td", "score"), bar = document.createElement("span");
      bar.className = "fill";
      bar.style.setProperty("--c", ENCODER[row.encoder].colour);
      bar.style.width = `${(4.5 * Math.max(0, row.score)) / best}rem`;
      score.append(bar, row.score.toFixed(3));
      const moved = used[row.encoder] - row.rank;
      cell(moved > 0 ? `+${moved}` : moved < 0 ? `−${-moved}` : "0");
      tr.dataset.encoder = row.encoder;
      return tr;
    }));
    const leaders = now.filter((row) => row.rank === 1).map((row) => DATA.titles[row.encoder]);
    const sentence = leaders.length > 3
      ? `${leaders.length} encoders are first together` : `First here: ${leaders.join(" and ")}`;
    $("#stays").textContent = `${sentence}. ${$("#stays").dataset.shares}`;
  }
  function setWeights(next) {
    weights = next;
    rerank();
  }
  if (PARTS.length) {
    drawTriangle();
    rerank();
    const triangle = $("#triangle");
    const drag = (event) => {
      const point = new DOMPoint(event.clientX, event.clientY)
        .matrixTransform(triangle.getScreenCTM().inverse());
      setWeights(weightsAt(point.x, point.y));
    };
    triangle.addEventListener("pointerdown", (event) => {
      triangle.setPointerCapture(event.pointerId);
      drag(event);
    });
    triangle.addEventListener("pointermove", (event) => event.buttons && drag(event));
    [0, 1, 2].forEach((i) => $(`#w${i}`).addEventListener("input", (event) => {
      const own = Number(event.target.value) / 100, rest = 1 - weights[i];
      setWeights(weights.map((w, k) => (k === i ? own : rest > 1e-9 ? (w / rest) * (1 - own) : (1 - own) / 2)));
    }));
    $("#reset-weights").addEventListener("click", () => setWeights([...USED]));
  } else {
    $("#weights").hidden = true;
  }

  drawAll();
})();
