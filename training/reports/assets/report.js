"use strict";
// Draws the figures of a report with Plotly, in the colours of the reader's light or dark theme, and runs the viewer.
(() => {
  // Okabe and Ito's colours, which colour-blind readers can distinguish; the brighter ones come first on dark pages.
  const COLOURS = {
    light: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"],
    dark: ["#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#F0E442"],
  };
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const INK = {
    light: {ink: "#1c2026", muted: "#5b6470", grid: "#dfe3e8", panel: "#f7f8fa", page: "#ffffff"},
    dark: {ink: "#e6e9ee", muted: "#a3acb8", grid: "#363d48", panel: "#1c2027", page: "#14171c"},
  };
  // Viridis, without the end that is hard to see on the background of the theme.
  const makeScale = (...colours) => colours.map((colour, index) => [index / (colours.length - 1), colour]);
  INK.light.scale = makeScale("#440154", "#3b528b", "#21918c", "#5ec962", "#dde318");
  INK.dark.scale = makeScale("#46307e", "#365c8d", "#1fa187", "#8fd744", "#fde725");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const theme = () => (dark.matches ? "dark" : "light");
  const CONFIG = {responsive: true, displaylogo: false, displayModeBar: false};

  async function inflate(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  // Replaces names of colours, such as "@0" or "@muted", by the colours of the theme.
  function paint(value) {
    if (typeof value === "string" && value[0] === "@") {
      const name = value.slice(1), list = COLOURS[theme()];
      return /^\d+$/.test(name) ? list[Number(name) % list.length] : INK[theme()][name];
    }
    if (Array.isArray(value)) {
      return typeof value[0] === "number" || value[0] === null ? value : value.map(paint);
    }
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, paint(part)]));
    }
    return value;
  }

  const AXIS = {
    gridcolor: "@grid", zeroline: false, linecolor: "@muted", automargin: true, ticks: "outside", ticklen: 4,
    tickcolor: "@muted", fixedrange: false,
  };

  function layoutOf(spec) {
    const base = {
      font: {family: 'system-ui, -apple-system, "Segoe UI", Arial, sans-serif', size: 12, color: "@ink"},
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true, dragmode: false,
      margin: {l: 50, r: 14, t: 12, b: 40}, hovermode: "closest", bargap: 0,
      hoverlabel: {bgcolor: "@page", bordercolor: "@muted", font: {color: "@ink"}},
      legend: {orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom"},
    };
    const layout = {...base, ...spec};
    for (const key of new Set([...Object.keys(layout), "xaxis", "yaxis"])) {
      if (/^[xy]axis\d*$/.test(key)) layout[key] = {...AXIS, ...(layout[key] || {})};
    }
    return paint(layout);
  }

  // On a phone, each name of a legend has its own line, for which there must be room.
  function heightOf(element, data, layout) {
    const names = new Set(data.filter((trace) => trace.name && trace.showlegend !== false).map((trace) => trace.name));
    const hasLegend = layout.showlegend !== false && names.size > 2;
    return layout.height + (hasLegend && element.clientWidth < 480 ? 20 * (names.size - 2) : 0);
  }

  function draw(element, data, layout) {
    const height = heightOf(element, data, layout);
    element.style.height = `${height}px`;
    return Plotly.react(element, paint(data), layoutOf({...layout, height}), CONFIG);
  }

  const format = (value) => {
    if (value === null || value === undefined) return "–";
    return Math.abs(value) >= 1000 ? value.toLocaleString("en", {maximumFractionDigits: 0}) : String(+value.toPrecision(4));
  };

  function make(tag, ...children) {
    const element = document.createElement(tag);
    element.append(...children);
    return element;
  }

  function makeViewer(root, spec) {
    const find = (name) => root.querySelector(`[data-part="${name}"]`);
    const [select, slider, play, plot, readout, frames, texts] =
      ["episode", "time", "play", "plot", "readout", "frames", "texts"].map(find);
    let episode = null, timer = null;

    spec.episodes.forEach((each, index) => select.add(new Option(each.label, index)));

    function figure() {
      const groups = episode.groups, gap = 0.055, height = (1 - gap * (groups.length - 1)) / groups.length;
      const layout = {
        height: 120 + 150 * groups.length, margin: {l: 56, r: 14, t: 8, b: 40}, showlegend: false,
        xaxis: {title: {text: "time in the episode (steps)"}, anchor: `y${groups.length > 1 ? groups.length : ""}`},
      };
      const data = [];
      groups.forEach((group, row) => {
        const suffix = row ? String(row + 1) : "";
        const top = 1 - row * (height + gap);
        layout[`yaxis${suffix}`] = {title: {text: group.title, standoff: 6}, domain: [Math.max(0, top - height), top]};
        group.traces.forEach((trace, index) => data.push({
          type: "scatter", x: episode.steps, y: trace.y, name: trace.name, yaxis: `y${suffix}`,
          mode: trace.y.filter((value) => value !== null).length > 1 ? "lines" : "markers",
          line: {
            width: 1.4, color: `@${group.colour === undefined ? index : group.colour}`,
            dash: DASHES[Math.floor(index / 6) % 4], shape: group.stepped ? "hv" : "linear",
          },
          hovertemplate: "%{fullData.name} = %{y:.4g}<br>step %{x}<extra></extra>",
        }));
      });
      return [data, layout];
    }

    const cursor = (step) => ({
      type: "line", x0: step, x1: step, yref: "paper", y0: 0, y1: 1, line: {color: "@ink", width: 1.5, dash: "dot"},
    });

    function redraw() {
      const [data, layout] = figure();
      layout.shapes = [cursor(episode.steps[slider.value])];
      return draw(plot, data, layout);
    }

    function move() {
      const index = Number(slider.value), step = episode.steps[index];
      const values = episode.groups.flatMap((group) => group.readout || []).map(
        ({name, y}) => `${name} ${format(y[index])}`);
      readout.textContent = [`step ${step} of ${episode.length}`, ...values].join(", ");
      Plotly.relayout(plot, {shapes: paint([cursor(step)])});
      episode.frames.forEach(({name, steps, images}, camera) => {
        const frame = Math.max(0, steps.findLastIndex((each) => each <= step));
        const image = frames.children[camera].firstChild;
        image.src = images[frame];
        image.alt = `${name} of step ${steps[frame]}`;
      });
      episode.texts.forEach(({values}, row) => {
        texts.children[2 * row + 1].textContent = values[values.length > 1 ? index : 0];
      });
    }

    function stop() {
      clearInterval(timer);
      timer = null;
      play.textContent = "▶ play";
    }

    async function show(index) {
      stop();
      episode = spec.episodes[index];
      select.value = index;
      slider.max = episode.steps.length - 1;
      slider.value = 0;
      frames.replaceChildren(...episode.frames.map(({name, width}) => {
        const image = Object.assign(make("img"), {className: "frame", width});
        return make("div", image, make("div", name));
      }));
      texts.replaceChildren(...episode.texts.flatMap(({name}) => [make("dt", name), make("dd")]));
      find("facts").textContent = episode.facts;
      await redraw();
      move();
    }

    select.addEventListener("change", () => show(Number(select.value)));
    slider.addEventListener("input", move);
    for (const [name, change] of [["previous", -1], ["next", 1]]) {
      const count = spec.episodes.length;
      find(name).addEventListener("click", () => show((Number(select.value) + change + count) % count));
    }
    play.addEventListener("click", () => {
      if (timer) return stop();
      const last = Number(slider.max), stride = Math.max(1, Math.round(last / 250));
      if (Number(slider.value) >= last) slider.value = 0;
      play.textContent = "⏸ pause";
      timer = setInterval(() => {
        slider.value = Math.min(last, Number(slider.value) + stride);
        move();
        if (Number(slider.value) >= last) stop();
      }, 40);
    });
    return {
      start: () => show(0).then(() => plot.on("plotly_click", (event) => {
        const step = event.points[0].x;
        slider.value = episode.steps.findIndex((each) => each >= step);
        move();
      })),
      redraw,
    };
  }

  async function main() {
    if (!("DecompressionStream" in window)) throw new Error("it requires a browser from 2023 or later");
    const library = document.createElement("script");
    library.textContent = await inflate("plotly");
    document.head.append(library);
    const content = JSON.parse(await inflate("content"));
    const figures = content.figures.map((figure) => [document.getElementById(figure.id), figure.data, figure.layout]);
    const viewers = content.viewers.map((spec) => makeViewer(document.getElementById(spec.id), spec));
    for (const figure of figures) await draw(...figure);
    for (const viewer of viewers) await viewer.start();
    dark.addEventListener("change", () => {
      figures.forEach((figure) => draw(...figure));
      viewers.forEach((viewer) => viewer.redraw());
    });
    document.documentElement.dataset.ready = "true";
  }

  main().catch((error) => {
    const message = document.createElement("p");
    message.setAttribute("role", "alert");
    message.textContent = `The figures of this report cannot be drawn: ${error.message}`;
    document.querySelector("header").append(message);
    throw error;
  });
})();
