// Draws the curves of a page of ddpreport with dygraphs.

function number(value) {
  if (value === null || Number.isNaN(value)) return "";
  if (Math.abs(value) >= 999950) return `${(value / 1e6).toPrecision(4)} M`;
  const rounded = Number(value.toPrecision(4));
  return Math.abs(value) >= 1000 ? rounded.toLocaleString("en") : String(rounded);
}

function short(value) {  // at an axis: 5 M, 200 k
  for (const [factor, unit, least] of [[1e6, " M", 1e6], [1e3, " k", 1e4]]) {
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

// One finger scrolls the page, two zoom.
const touch = {...Dygraph.defaultInteractionModel};
for (const event of ["touchstart", "touchmove"]) {
  const zoom = touch[event];
  touch[event] = (e, graph, context) => {
    if (e.touches.length > 1) zoom(e, graph, context);
  };
}

function xAxis({x_names: names, is_time}) {
  if (names.length === 0) {
    const format = is_time ? duration : number;
    return {valueFormatter: format, axisLabelFormatter: format};
  }
  const ticker = (low, high, pixels) => {
    const every = Math.ceil((high - low + 1) * 60 / pixels);
    return names.map((label, v) => ({v, label})).filter(({v}) => v % every === 0 && v >= low && v <= high);
  };
  return {valueFormatter: x => names[x] ?? "", ticker};
}

function legend(curves, shown) {
  const where = shown.x === undefined ? "" : `${escaped(curves.x_label)} ${escaped(String(shown.xHTML))}:`;
  const lines = shown.series.map((one, i) => `${key(curves.lines[i])}${escaped(one.label)} <b>${one.yHTML ?? ""}</b>`);
  return where + lines.join("");
}

function drawMarks(curves, canvas, area, graph) {
  canvas.setLineDash([4, 3]);
  for (const [x, color] of curves.marks) {
    canvas.strokeStyle = color;
    canvas.strokeRect(graph.toDomXCoord(x), area.y, 0, area.h);
  }
  canvas.setLineDash([]);
}

for (const box of document.querySelectorAll(".curves")) {
  const curves = JSON.parse(box.dataset.curves);
  const style = line => [line.label, {color: line.color, strokePattern: line.dashes, drawPoints: line.has_dots}];
  new Dygraph(box.querySelector(".plot"), curves.rows, {
    labels: [curves.x_label, ...curves.lines.map(line => line.label)],
    series: Object.fromEntries(curves.lines.map(style)),
    customBars: true, fillAlpha: 0.2, connectSeparatedPoints: true,
    logscale: curves.is_logarithmic, includeZero: curves.from_zero,
    strokeWidth: 1.5, pointSize: 3, highlightCircleSize: 5,
    xRangePad: 14, yRangePad: 14, rightGap: 25, axisLabelFontSize: 13,
    gridLineColor: "rgba(128, 128, 128, 0.4)", axisLineColor: "rgba(128, 128, 128, 0.8)",
    axes: {
      x: xAxis(curves),
      y: {valueFormatter: number, axisLabelFormatter: short, axisLabelWidth: 52},
    },
    labelsDiv: box.querySelector(".values"), legend: "always",
    legendFormatter: shown => legend(curves, shown),
    underlayCallback: (canvas, area, graph) => drawMarks(curves, canvas, area, graph),
    interactionModel: touch,
  });
}
