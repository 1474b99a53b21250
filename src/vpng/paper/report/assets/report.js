"use strict";

(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const MARKERS = {
    o: "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z",
    s: "M-3 -3H3V3H-3Z",
    "^": "M0 -4L4 3H-4Z",
    D: "M0 -4.2L4.2 0L0 4.2L-4.2 0Z",
    v: "M0 4L4 -3H-4Z",
    P: "M-1.3 -4H1.3V-1.3H4V1.3H1.3V4H-1.3V1.3H-4V-1.3H-1.3Z",
  };

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const drawn = (parent, name, attributes = {}) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    parent.append(made);
    return made;
  };
  const short = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
    return String(Number(value.toPrecision(5)));
  };

  /** Round places between low and high, about `count` of them; powers of ten on a log scale. */
  const ticks = (low, high, count, log) => {
    if (log && high / low >= 10) {
      const found = [];
      const step = Math.max(1, Math.ceil(Math.log10(high / low) / count));
      for (let power = Math.ceil(Math.log10(low)); power <= Math.log10(high) + 1e-9; power += step)
        found.push(10 ** power);
      return found;
    }
    const raw = (high - low) / Math.max(count, 1);
    const unit = 10 ** Math.floor(Math.log10(raw));
    const step = unit * [1, 2, 5, 10].find((times) => unit * times >= raw);
    const found = [];
    for (let place = Math.ceil(low / step) * step; place <= high + step * 1e-9; place += step)
      found.push(Math.abs(place) < step * 1e-9 ? 0 : place);
    return found;
  };

  class Chart {
    constructor(place, data, name) {
      this.data = data;
      this.axis = data.axes[0].id;
      this.metric = data.metrics[0];
      this.hidden = new Set();
      this.bands = true;
      this.log = { x: false, y: this.metric.higher === false && this.positive() };
      this.view = null;
      this.cursor = null;
      this.build(place, name);
      this.draw();
    }

    get lines() {
      const series = this.data.series[this.metric.id][this.axis];
      return this.data.lines
        .filter((line) => !this.hidden.has(line.id) && series[line.id])
        .map((line) => ({ ...line, ...series[line.id] }));
    }

    positive() {
      return this.lines.every((line) => line.mean.every((value) => value > 0));
    }

    build(place, name) {
      const controls = element("div", { class: "controls" });
      if (this.data.metrics.length > 1) {
        const select = element("select", { "aria-label": "What is drawn" });
        for (const metric of this.data.metrics)
          select.append(element("option", { value: metric.id }, metric.label));
        select.addEventListener("change", () => {
          this.metric = this.data.metrics.find((metric) => metric.id === select.value);
          this.log.y = false;
          this.reset();
        });
        controls.append(select);
      }
      if (this.data.axes.length > 1) {
        const group = element("fieldset", {}, element("legend", {}, "against"));
        for (const axis of this.data.axes) {
          const radio = element("input", { type: "radio", name: `axis-${name}`, value: axis.id });
          radio.checked = axis.id === this.axis;
          radio.addEventListener("change", () => {
            this.axis = axis.id;
            this.reset();
          });
          group.append(element("label", {}, radio, ` ${axis.label}`));
        }
        controls.append(group);
      }
      const logarithmic = this.checkbox(" log axis", false, (on) => {
        this.log.x = on;
        this.draw();
      });
      controls.append(
        logarithmic,
        this.checkbox(" spread over seeds", true, (on) => {
          this.bands = on;
          this.draw();
        }),
        this.button("+", "Zoom in", () => this.zoom(0.6)),
        this.button("−", "Zoom out", () => this.zoom(1 / 0.6)),
        this.button("Reset", "Show everything", () => this.reset()),
      );
      const legend = element("div", { class: "legend", role: "group", "aria-label": "Lines" });
      for (const line of this.data.lines) {
        const sample = document.createElementNS(SVG, "svg");
        sample.setAttribute("width", "30");
        sample.setAttribute("height", "12");
        sample.setAttribute("aria-hidden", "true");
        drawn(sample, "path", { d: "M0 6H30", ...this.stroke(line) });
        drawn(sample, "path", { d: MARKERS[line.marker], fill: line.colour, transform: "translate(15 6)" });
        const toggle = element("button", { type: "button", "aria-pressed": "true", "data-line": line.id }, sample, line.label);
        toggle.addEventListener("click", () => {
          const shown = this.hidden.delete(line.id);
          if (!shown) this.hidden.add(line.id);
          toggle.setAttribute("aria-pressed", String(shown));
          this.draw();
        });
        legend.append(toggle);
      }
      this.svg = document.createElementNS(SVG, "svg");
      this.svg.setAttribute("class", "plot");
      this.svg.setAttribute("tabindex", "0");
      this.svg.setAttribute("role", "application");
      this.readout = element("div", { class: "readout", "aria-live": "polite" });
      place.append(
        controls, legend, this.svg, this.readout,
        element("p", { class: "keys" }, "Drag to zoom, double-click to reset. With the chart focused: ← → read values, shift with ← → moves, + − zoom, 0 resets."),
      );
      this.listen();
      new ResizeObserver(() => this.draw()).observe(place);
    }

    checkbox(label, on, change) {
      const box = element("input", { type: "checkbox" });
      box.checked = on;
      box.addEventListener("change", () => change(box.checked));
      return element("label", {}, box, label);
    }

    button(text, label, press) {
      const made = element("button", { type: "button", "aria-label": label, title: label }, text);
      made.addEventListener("click", press);
      return made;
    }

    stroke(line) {
      return {
        stroke: line.colour, fill: "none", "stroke-width": "2",
        "stroke-dasharray": line.dash.map((part) => part * 2).join(" ") || "none",
      };
    }

    reset() {
      this.view = null;
      this.cursor = null;
      this.draw();
    }

    /** The range of x of all visible lines. */
    whole() {
      const starts = this.lines.map((line) => line.x.find((value) => !this.log.x || value > 0));
      const ends = this.lines.map((line) => line.x[line.x.length - 1]);
      let [low, high] = [Math.min(...starts), Math.max(...ends)];
      if (!(high > low)) [low, high] = [low - 0.5, low + 0.5];
      return [low, high];
    }

    /** The range of y inside the view; the first few percent of a long climb are left out. */
    range([low, high]) {
      const values = [];
      for (const line of this.lines)
        line.x.forEach((x, i) => {
          if (x < low || x > high) return;
          values.push(line.mean[i]);
          if (this.bands && (!this.log.y || line.low[i] > 0)) values.push(line.low[i], line.high[i]);
        });
      if (!values.length) return [0, 1];
      values.sort((a, b) => a - b);
      let [bottom, top] = [values[0], values[values.length - 1]];
      const cut = Math.floor(0.04 * values.length);
      if (!this.view && this.metric.higher === true) bottom = values[cut];
      if (!this.view && this.metric.higher === false && !this.log.y) top = values[values.length - 1 - cut];
      if (this.log.y) return [bottom / 1.3, top * 1.3];
      const margin = 0.06 * (top - bottom) || Math.abs(top) * 0.05 || 1;
      return [bottom - margin, top + margin];
    }

    draw() {
      const width = Math.max(this.svg.parentNode.clientWidth - 24, 240);
      const height = Math.round(Math.min(Math.max(width * 0.5, 250), 420));
      this.size = { left: 58, right: width - 10, top: 10, bottom: height - 42 };
      const { left, right, top, bottom } = this.size;
      const svg = this.svg;
      svg.replaceChildren();
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.setAttribute("height", height);
      const axis = this.data.axes.find((one) => one.id === this.axis);
      svg.setAttribute("aria-label", `${this.metric.label} against ${axis.label}`);
      const lines = this.lines;
      if (!lines.length) {
        drawn(svg, "text", { x: width / 2, y: height / 2, "text-anchor": "middle" }).textContent = "No line is shown";
        return;
      }
      const shown = this.view || this.whole();
      const span = this.range(shown);
      const scale = (value, [low, high], from, to, log) => {
        const share = log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
        return from + share * (to - from);
      };
      this.toX = (value) => scale(value, shown, left, right, this.log.x);
      this.toY = (value) => scale(value, span, bottom, top, this.log.y);
      this.fromX = (pixel) => {
        const share = (pixel - left) / (right - left);
        const [low, high] = shown;
        return this.log.x ? low * (high / low) ** share : low + share * (high - low);
      };
      this.shown = shown;

      for (const place of ticks(...span, Math.max(3, height / 70), this.log.y)) {
        const y = this.toY(place);
        drawn(svg, "path", { class: "grid", d: `M${left} ${y}H${right}` });
        drawn(svg, "text", { x: left - 6, y: y + 4, "text-anchor": "end" }).textContent = short(place);
      }
      for (const place of ticks(...shown, Math.max(3, width / 110), this.log.x)) {
        const x = this.toX(place);
        drawn(svg, "path", { class: "grid", d: `M${x} ${top}V${bottom}` });
        drawn(svg, "text", { x, y: bottom + 16, "text-anchor": "middle" }).textContent = short(place);
      }
      drawn(svg, "text", { x: (left + right) / 2, y: height - 8, "text-anchor": "middle" }).textContent = axis.label;
      const side = drawn(svg, "text", { "text-anchor": "middle", transform: `translate(13 ${(top + bottom) / 2}) rotate(-90)` });
      side.textContent = this.metric.label;

      const clip = `clip-${Math.random().toString(36).slice(2)}`;
      drawn(drawn(svg, "clipPath", { id: clip }), "rect", { x: left, y: top, width: right - left, height: bottom - top });
      const inside = drawn(svg, "g", { "clip-path": `url(#${clip})` });
      for (const line of lines) this.line(inside, line);
      this.overlay = drawn(svg, "g");
      this.mark();
    }

    line(parent, line) {
      const good = line.x.map((x, i) => (!this.log.x || x > 0) && (!this.log.y || line.mean[i] > 0));
      const at = (values, i) => `${this.toX(line.x[i]).toFixed(2)} ${this.toY(values[i]).toFixed(2)}`;
      const places = line.x.map((_, i) => i).filter((i) => good[i]);
      const group = drawn(parent, "g", { class: "line", "data-line": line.id });
      if (this.bands && line.count > 1) {
        const banded = places.filter((i) => !this.log.y || line.low[i] > 0);
        if (banded.length > 1) {
          const up = banded.map((i) => at(line.high, i)).join("L");
          const down = [...banded].reverse().map((i) => at(line.low, i)).join("L");
          drawn(group, "path", { class: "band", d: `M${up}L${down}Z`, fill: line.colour, "fill-opacity": "0.18" });
        }
      }
      drawn(group, "path", { d: `M${places.map((i) => at(line.mean, i)).join("L")}`, ...this.stroke(line) });
      const visible = places.filter((i) => line.x[i] >= this.shown[0] && line.x[i] <= this.shown[1]);
      const step = Math.max(1, Math.floor(visible.length / 8));
      for (let k = 0; k < visible.length; k += step) {
        const [x, y] = at(line.mean, visible[k]).split(" ");
        drawn(group, "path", { d: MARKERS[line.marker], fill: line.colour, transform: `translate(${x} ${y})` });
      }
    }

    /** The cursor's line, and every shown curve's value there. */
    mark() {
      this.overlay.replaceChildren();
      this.readout.replaceChildren();
      if (this.cursor === null) return;
      const at = Math.min(Math.max(this.cursor, this.shown[0]), this.shown[1]);
      const axis = this.data.axes.find((one) => one.id === this.axis);
      drawn(this.overlay, "path", { class: "cursor", d: `M${this.toX(at)} ${this.size.top}V${this.size.bottom}` });
      this.readout.append(element("b", {}, `${axis.label} ${short(at)}: `));
      const slack = 1e-6 * (this.shown[1] - this.shown[0]);
      for (const line of this.lines) {
        if (at < line.x[0] - slack || at > line.x[line.x.length - 1] + slack) {
          this.readout.append(element("span", {}, `${line.label} –; `));
          continue;
        }
        let near = 0;
        line.x.forEach((x, i) => {
          if (Math.abs(x - at) < Math.abs(line.x[near] - at)) near = i;
        });
        const value = line.mean[near];
        const spread = line.count > 1 ? ` ± ${short(Number(((line.high[near] - line.low[near]) / 2).toPrecision(2)))}` : "";
        const y = Math.min(Math.max(this.toY(value), this.size.top), this.size.bottom);
        if (Number.isFinite(y))
          drawn(this.overlay, "path", { d: MARKERS[line.marker], fill: line.colour, stroke: "currentColor", transform: `translate(${this.toX(line.x[near])} ${y}) scale(1.3)` });
        this.readout.append(element("span", {}, `${line.label} ${short(value)}${spread}; `));
      }
    }

    zoom(times, around) {
      const [low, high] = this.view || this.whole();
      const to = this.log.x ? Math.log : (value) => value;
      const back = this.log.x ? Math.exp : (value) => value;
      const middle = to(around ?? this.cursor ?? back((to(low) + to(high)) / 2));
      this.look(back(middle + (to(low) - middle) * times), back(middle + (to(high) - middle) * times));
    }

    pan(share) {
      const [low, high] = this.view || this.whole();
      const move = share * (high - low);
      this.look(low + move, high + move);
    }

    look(low, high) {
      const [first, last] = this.whole();
      const width = Math.min(high - low, last - first);
      const start = Math.min(Math.max(low, first), last - width);
      if (width <= (last - first) * 1e-4) return;
      this.view = width >= last - first ? null : [start, start + width];
      this.draw();
    }

    /** Moves the cursor to the next or previous record of any shown line. */
    step(way) {
      const places = [...new Set(this.lines.flatMap((line) => line.x))]
        .filter((x) => x >= this.shown[0] && x <= this.shown[1]).sort((a, b) => a - b);
      if (!places.length) return;
      const now = this.cursor ?? (way > 0 ? -Infinity : Infinity);
      const next = way > 0 ? places.find((x) => x > now) : places.findLast((x) => x < now);
      this.cursor = next ?? (way > 0 ? places[places.length - 1] : places[0]);
      this.mark();
    }

    listen() {
      const pixel = (event) => {
        const box = this.svg.getBoundingClientRect();
        return ((event.clientX - box.left) / box.width) * this.svg.viewBox.baseVal.width;
      };
      const inside = (value) => Math.min(Math.max(value, this.size.left), this.size.right);
      let from = null;
      this.svg.addEventListener("pointermove", (event) => {
        if (!this.lines.length) return;
        const here = inside(pixel(event));
        this.cursor = this.fromX(here);
        this.mark();
        if (from !== null && event.pointerType === "mouse")
          drawn(this.overlay, "rect", { class: "pick", x: Math.min(from, here), y: this.size.top, width: Math.abs(here - from), height: this.size.bottom - this.size.top });
      });
      this.svg.addEventListener("pointerdown", (event) => {
        if (event.button !== 0 || event.pointerType !== "mouse") return;
        from = inside(pixel(event));
        this.svg.setPointerCapture(event.pointerId);
      });
      this.svg.addEventListener("pointerup", (event) => {
        if (from === null) return;
        const here = inside(pixel(event));
        if (Math.abs(here - from) > 8) this.look(this.fromX(Math.min(from, here)), this.fromX(Math.max(from, here)));
        from = null;
      });
      this.svg.addEventListener("pointerleave", () => {
        if (from !== null || document.activeElement === this.svg) return;
        this.cursor = null;
        if (this.lines.length) this.mark();
      });
      this.svg.addEventListener("dblclick", () => this.reset());
      this.svg.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && document.activeElement !== this.svg) return;
        event.preventDefault();
        this.zoom(event.deltaY < 0 ? 0.8 : 1.25, this.fromX(inside(pixel(event))));
      }, { passive: false });
      this.svg.addEventListener("keydown", (event) => {
        if (!this.lines.length || event.altKey || event.metaKey || event.ctrlKey) return;
        const keys = {
          ArrowRight: () => (event.shiftKey ? this.pan(0.2) : this.step(1)),
          ArrowLeft: () => (event.shiftKey ? this.pan(-0.2) : this.step(-1)),
          "+": () => this.zoom(0.6),
          "=": () => this.zoom(0.6),
          "-": () => this.zoom(1 / 0.6),
          0: () => this.reset(),
        };
        if (!keys[event.key]) return;
        event.preventDefault();
        keys[event.key]();
      });
    }
  }

  const data = JSON.parse(document.getElementById("data").textContent);
  for (const place of document.querySelectorAll("[data-chart]")) {
    const name = place.dataset.chart;
    place.chart = new Chart(place, data[name], name);
  }
})();
