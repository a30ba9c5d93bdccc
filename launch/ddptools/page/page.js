// Draws the curves of a page of ddpreport with dygraphs, saves its pictures, and reads a page of --watch again.

function number(value) {
  if (value === null || Number.isNaN(value)) return "";
  if (Math.abs(value) >= 999950) return `${(value / 1e6).toPrecision(4)} M`;
  const rounded = Number(value.toPrecision(4));
  return Math.abs(value) >= 1000 ? rounded.toLocaleString("en") : String(rounded);
}

function short(value) {  // at an axis: 5 M, 200 k
  for (const [factor, unit, least] of [[1e9, " G", 1e9], [1e6, " M", 1e6], [1e3, " k", 1e4]]) {
    if (Math.abs(value) >= least) return Number((value / factor).toPrecision(4)) + unit;
  }
  return String(Number(value.toPrecision(4)));
}

function duration(seconds) {
  const two = value => String(Math.floor(value)).padStart(2, "0");
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}:${two(seconds % 60)} min`;
  return `${Math.floor(seconds / 3600)}:${two(seconds % 3600 / 60)} h`;
}

const escaped = text => text.replace(/[&<>"]/g, letter => `&#${letter.charCodeAt(0)};`);

function key({color, dashes}) {
  const paint = dashes ? `repeating-linear-gradient(90deg, ${color} 0 3px, transparent 3px 5px)` : color;
  return `<span class="key" style="background: ${paint}"></span>`;
}

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

// ---- Axes

// Place of a point on an axis, its value and its limits; see curves_data() in render.py.
function rowsOf(curves, axis) {
  const axes = curves.axes.length, rows = new Map();
  curves.lines.forEach((line, i) => {
    for (const point of line.points) {
      const place = point[axis], value = point[axes];
      if (place === null) continue;
      if (!rows.has(place)) rows.set(place, [place, ...curves.lines.map(() => null)]);
      rows.get(place)[i + 1] = [point[axes + 1] ?? value, value, point[axes + 2] ?? value];
    }
  });
  return [...rows.values()].sort((one, other) => one[0] - other[0]);
}

// At whole seconds, minutes or hours.
function timeTicks(low, high, pixels) {
  const steps = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800];
  const fits = step => (high - low) / step <= pixels / 70;
  const step = steps.find(fits) ?? 86400 * Math.ceil((high - low) / 86400 / (pixels / 70));
  const ticks = [];
  for (let v = Math.ceil(low / step) * step; v <= high; v += step) ticks.push({v, label: duration(v)});
  return ticks;
}

function placeAxis({names, is_time}) {
  if (is_time) return {valueFormatter: duration, ticker: timeTicks};
  if (names.length === 0) return {valueFormatter: number, axisLabelFormatter: short, pixelsPerLabel: 50};
  const ticker = (low, high, pixels) => {
    const least = 45 * (high - low) / pixels, ticks = [];
    names.forEach((label, v) => {
      const last = ticks.at(-1)?.v ?? -Infinity;
      if (label !== "" && v >= low && v <= high && v - last >= least) ticks.push({v, label});
    });
    return ticks;
  };
  return {valueFormatter: x => names[x] ?? "", ticker};
}

// 1, 2, 5, 10 and so on, as dense as there is room; other round numbers where the axis is shorter than that.
function logarithmicTicks(low, high, pixels) {
  const decades = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; ++power) decades.push(power);
  const most = Math.max(2, Math.floor(pixels / 26));
  const inside = factors => decades.flatMap(power => factors.map(factor => Number(`${factor}e${power}`)))
      .filter(v => v >= low && v <= high);
  const dense = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5], [1, 3], [1]].map(inside).find(found => found.length <= most);
  if (dense === undefined) {  // more decades than there is room for
    const every = Math.ceil(decades.length / most);
    return inside([1]).filter((_, i) => i % every === 0).map(v => ({v, label: short(v)}));
  }
  if (dense.length > 2) return dense.map(v => ({v, label: short(v)}));
  const step = 10 ** Math.floor(Math.log10((high - low) / 2));
  const round = [];
  for (let v = Math.ceil(low / step) * step; v <= high; v += step) round.push(Number(v.toPrecision(6)));
  const every = Math.ceil(round.length / most);
  return round.filter((_, i) => i % every === 0).map(v => ({v, label: short(v)}));
}

// ---- Curves

function legend(curves, axis, shown) {
  const where = shown.x === undefined ? "" : `${escaped(curves.axes[axis].label)} ${escaped(String(shown.xHTML))}:`;
  const lines = shown.series.map((one, i) =>
      `<span>${key(curves.lines[i])}${escaped(one.label)} <b>${one.yHTML ?? ""}</b></span>`);
  return [where, ...lines].join(" ");
}

function drawMarks(curves, axis, canvas, area, graph) {
  canvas.setLineDash([4, 3]);
  for (const [places, color] of curves.marks) {
    if (places[axis] === null) continue;
    canvas.strokeStyle = color;
    canvas.strokeRect(graph.toDomXCoord(places[axis]), area.y, 0, area.h);
  }
  canvas.setLineDash([]);
}

// One finger scrolls the page, two zoom.
function touchModel() {
  const touch = {...Dygraph.defaultInteractionModel};
  for (const event of ["touchstart", "touchmove"]) {
    const zoom = touch[event];
    touch[event] = (e, graph, context) => {
      if (e.touches.length > 1) zoom(e, graph, context);
    };
  }
  return touch;
}

const graphs = new Map();  // by the box of their picture: {graph, curves, axis}

// Draws a picture over the axis of this name; over its first one if it has none of the name.
function draw(box, axisName, zoom = null) {
  const curves = JSON.parse(box.dataset.curves);
  const axis = Math.max(0, curves.axes.findIndex(one => one.label === axisName));
  graphs.get(box)?.graph.destroy();
  box.querySelector(".below").textContent = curves.axes[axis].label;
  const style = line => [line.label, {color: line.color, strokePattern: line.dashes, drawPoints: line.has_dots}];
  const graph = new Dygraph(box.querySelector(".plot"), rowsOf(curves, axis), {
    labels: [curves.axes[axis].label, ...curves.lines.map(line => line.label)],
    series: Object.fromEntries(curves.lines.map(style)),
    customBars: true, fillAlpha: 0.2, connectSeparatedPoints: true,
    logscale: curves.is_logarithmic, includeZero: curves.from_zero,
    strokeWidth: 1.5, pointSize: 3, highlightCircleSize: 5,
    xRangePad: 14, yRangePad: curves.from_zero ? null : 14,  // null: an axis begins at 0 and not below
    rightGap: 25, axisLabelFontSize: 13,
    gridLineColor: "rgba(128, 128, 128, 0.4)", axisLineColor: "rgba(128, 128, 128, 0.8)",
    axes: {
      x: placeAxis(curves.axes[axis]),
      y: {valueFormatter: number, axisLabelFormatter: v => v > (curves.at_most ?? Infinity) ? "" : short(v), axisLabelWidth: 52,
          ...(curves.is_logarithmic ? {ticker: logarithmicTicks} : {})},
    },
    dateWindow: zoom,
    labelsDiv: box.querySelector(".values"), legend: "always",
    legendFormatter: shown => legend(curves, axis, shown),
    underlayCallback: (canvas, area, drawn) => drawMarks(curves, axis, canvas, area, drawn),
    interactionModel: touchModel(),
  });
  graphs.set(box, {graph, curves, axis});
  for (const button of box.parentElement.querySelectorAll(".axis")) {
    button.setAttribute("aria-pressed", String(button.textContent === curves.axes[axis].label));
  }
}

// All pictures that have the axis are drawn over it.
function drawOver(axisName) {
  for (const [box, {curves}] of graphs) {
    if (curves.axes.some(axis => axis.label === axisName)) draw(box, axisName);
  }
  remember({axis: axisName});
}

// ---- Pictures as files

const xml = text => text.replace(/[&<>"]/g, letter => `&#${letter.charCodeAt(0)};`);
const isPainted = color => !/^transparent$|rgba\(.*, 0\)$/.test(color);

// The words of a text, and where each line of them stands: [text, left, middle].
function linesOf(node) {
  const lines = [], range = document.createRange();
  for (const {index, 0: word} of node.textContent.matchAll(/\S+/g)) {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    const box = range.getBoundingClientRect(), middle = box.top + box.height / 2, last = lines.at(-1);
    if (last && Math.abs(last[2] - middle) < 2) last[0] += ` ${word}`;
    else lines.push([word, box.left, middle]);
  }
  return lines;
}

// Lines of a dygraph, as SVG: grid, bands, curves, dots.
function curvesSvg({graph, curves, axis}, left, top) {
  const area = graph.getArea(), parts = [], rows = rowsOf(curves, axis), clip = `clip-${Math.round(left)}-${Math.round(top)}`;
  const x = place => (left + graph.toDomXCoord(place)).toFixed(1);
  const y = value => (top + graph.toDomYCoord(value)).toFixed(1);
  const [bottom, right] = [top + area.y + area.h, left + area.x + area.w];
  const gray = 'stroke="#808080" stroke-opacity="0.3"';
  for (const tick of graph.layout_.xticks) {
    const at = (left + area.x + tick.pos * area.w).toFixed(1);
    parts.push(`<path d="M${at} ${top + area.y}V${bottom}" ${gray}/>`);
  }
  for (const tick of graph.layout_.yticks) {
    const at = (top + area.y + tick.pos * area.h).toFixed(1);
    parts.push(`<path d="M${left + area.x} ${at}H${right}" ${gray}/>`);
  }
  parts.push(`<path d="M${left + area.x} ${top + area.y}V${bottom}H${right}" fill="none" stroke="#808080"/>`);
  parts.push(`<clipPath id="${clip}"><rect x="${left + area.x}" y="${top + area.y - 3}" width="${area.w + 6}" ` +
      `height="${area.h + 6}"/></clipPath><g clip-path="url(#${clip})" fill="none">`);
  for (const [places, color] of curves.marks) {
    if (places[axis] === null) continue;
    parts.push(`<path d="M${x(places[axis])} ${top + area.y}V${bottom}" stroke="${color}" stroke-dasharray="4 3"/>`);
  }
  curves.lines.forEach((line, i) => {
    const points = rows.filter(row => row[i + 1] !== null).map(row => [row[0], ...row[i + 1]]);
    if (points.some(([, low, , high]) => low !== high)) {
      const band = [...points.map(([at, low]) => `${x(at)} ${y(low)}`),
        ...points.toReversed().map(([at, , , high]) => `${x(at)} ${y(high)}`)];
      parts.push(`<path d="M${band.join("L")}Z" fill="${line.color}" fill-opacity="0.2"/>`);
    }
    const dashes = line.dashes ? ` stroke-dasharray="${line.dashes.join(" ")}"` : "";
    const path = points.map(([at, , value]) => `${x(at)} ${y(value)}`).join("L");
    parts.push(`<path d="M${path}" stroke="${line.color}" stroke-width="1.5"${dashes}/>`);
    for (const [at, , value] of line.has_dots ? points : []) {
      parts.push(`<circle cx="${x(at)}" cy="${y(value)}" r="3" fill="${line.color}"/>`);
    }
  });
  return `${parts.join("")}</g>`;
}

// A figure as it is seen, as SVG: colored boxes, texts, curves. Without its buttons and hints.
function svgOf(figure) {
  const frame = figure.getBoundingClientRect(), pad = 12, parts = [];
  const begin = figure.querySelector(".tools").getBoundingClientRect().bottom;
  const left = box => box.left - frame.left + pad, top = box => box.top - begin + pad;
  const skipped = e => e.matches(".tools, .hint, canvas") || getComputedStyle(e).display === "none";
  let bottom = 0;

  function paint(parent) {
    const style = getComputedStyle(parent), box = parent.getBoundingClientRect();
    if (parent.matches(".key") && style.backgroundImage !== "none") {  // dashes
      const color = style.backgroundImage.match(/rgba?\([^)]*\)/)[0], middle = top(box) + box.height / 2;
      parts.push(`<path d="M${left(box)} ${middle}h${box.width}" stroke="${color}" stroke-width="3" stroke-dasharray="3 2"/>`);
    } else if (parent !== figure && isPainted(style.backgroundColor)) {
      parts.push(`<rect x="${left(box)}" y="${top(box)}" width="${box.width}" height="${box.height}" ` +
          `fill="${style.backgroundColor}"/>`);
    }
    if (graphs.has(parent)) {
      const plot = parent.querySelector(".plot").getBoundingClientRect();
      parts.push(curvesSvg(graphs.get(parent), left(plot), top(plot)));
    }
    for (const node of parent.childNodes) {
      if (node.nodeType === Node.ELEMENT_NODE && !skipped(node)) paint(node);
      if (node.nodeType !== Node.TEXT_NODE) continue;
      const size = parseFloat(style.fontSize);
      for (const [text, x, middle] of linesOf(node)) {
        const baseline = middle - begin + pad + 0.35 * size;
        bottom = Math.max(bottom, baseline + 0.3 * size);
        parts.push(`<text x="${(x - frame.left + pad).toFixed(1)}" y="${baseline.toFixed(1)}" font-size="${size}" ` +
            `font-weight="${style.fontWeight}" fill="${style.color}">${xml(text)}</text>`);
      }
    }
  }

  paint(figure);
  const width = Math.ceil(frame.width + 2 * pad), height = Math.ceil(bottom + pad);
  const page = getComputedStyle(document.body).backgroundColor;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ` +
      `font-family="system-ui, DejaVu Sans, sans-serif"><rect width="100%" height="100%" fill="${page}"/>` +
      `${parts.join("\n")}</svg>`;
}

async function pngOf(svg) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = document.createElement("canvas"), scale = 2;
  [canvas.width, canvas.height] = [scale * image.width, scale * image.height];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise(resolve => canvas.toBlob(resolve, "image/png"));
}

async function save(figure, kind) {
  const svg = svgOf(figure), words = figure.querySelector("figcaption").textContent.toLowerCase();
  const data = kind === "png" ? await pngOf(svg) : new Blob([svg], {type: "image/svg+xml"});
  const link = document.createElement("a");
  link.href = URL.createObjectURL(data);
  link.download = `${words.replace(/[:;,.].*/s, "").replace(/[^a-z0-9]+/g, "-").slice(0, 40)}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

// Buttons below a picture: its axes, and its files.
function addTools(figure, axes) {
  const tools = element("div", "tools"), choice = element("span", "axes");
  for (const {label} of axes.length > 1 ? axes : []) {
    const button = element("button", "axis", label);
    button.addEventListener("click", () => drawOver(label));
    choice.append(button);
  }
  const files = element("span", "files");
  for (const kind of ["svg", "png"]) {
    const button = element("button", "save", `Save ${kind.toUpperCase()}`);
    button.addEventListener("click", () => save(figure, kind));
    files.append(button);
  }
  tools.append(choice, files);
  figure.prepend(tools);
}

// ---- A page that is read again

// What the reader chose stays with the entry of the page in the browser's history: axis and zooms. The browser itself
// keeps how far the page was scrolled.
const chosen = history.state ?? {};
const remember = changes => history.replaceState(Object.assign(chosen, changes), "");

function readAgain() {
  const zooms = [...graphs.values()].map(({graph}) => graph.isZoomed("x") ? graph.xAxisRange() : null);
  remember({zooms});
  location.reload();
}

for (const figure of document.querySelectorAll("figure")) {
  const box = figure.querySelector(".curves");
  if (box || figure.querySelector(".bars, .singles")) addTools(figure, box ? JSON.parse(box.dataset.curves).axes : []);
}
[...document.querySelectorAll(".curves")].forEach((box, i) => draw(box, chosen.axis, chosen.zooms?.[i] ?? null));
if (document.body.dataset.refreshSeconds) setTimeout(readAgain, 1000 * document.body.dataset.refreshSeconds);
