"use strict";
(() => {
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);

  // Light and dark: the system's choice until the reader makes one.
  const stored = (() => { try { return localStorage.getItem("hcal-theme"); } catch { return null; } })();
  if (stored === "light" || stored === "dark") root.dataset.theme = stored;
  byId("theme").addEventListener("click", () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("hcal-theme", root.dataset.theme); } catch { /* a file may not store */ }
  });
  byId("print").addEventListener("click", () => print());

  // Bins of equal width or mass, or a curve without bins.
  const switches = [...document.querySelectorAll("[data-view]")];
  for (const button of switches) {
    button.addEventListener("click", () => {
      for (const other of switches) {
        const on = other === button;
        other.setAttribute("aria-pressed", String(on));
        byId(other.dataset.view).hidden = !on;
      }
    });
  }

  // Commands: copied where the browser allows it, else selected.
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const code = button.previousElementSibling;
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
      }
    });
  }

  // Dots of a diagram: their numbers stand under it, by pointer or by the arrow keys.
  for (const chart of document.querySelectorAll("svg.readable")) {
    const dots = [...chart.querySelectorAll(".bin")];
    const readout = chart.parentElement.querySelector(".readout");
    let current = -1;
    const show = (number) => {
      if (current >= 0) dots[current].classList.remove("current");
      current = number;
      dots[current].classList.add("current");
      readout.textContent = dots[current].querySelector("title").textContent;
    };
    dots.forEach((dot, number) => dot.addEventListener("pointerenter", () => show(number)));
    chart.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      show(Math.min(Math.max(current + step, 0), dots.length - 1));
    });
  }

  // Tables of segments and classes: sorted by a click on a head, searched by name.
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    const sortBy = (column, ascending) => {
      const value = (row) => {
        const cell = row.cells[column];
        return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
      };
      const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));
      const rows = [...body.rows].sort((a, b) => (ascending ? 1 : -1) * compare(value(a), value(b)));
      body.append(...rows);
      heads.forEach((head, number) => {
        if (number === column) head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        else head.removeAttribute("aria-sort");
      });
    };
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        sortBy(column, before ? before === "descending" : column === 0);
      });
    });
    const listing = table.closest(".listing");
    const search = listing && listing.querySelector("input[type=search]");
    if (!search) continue;
    const count = listing.querySelector(".count");
    search.addEventListener("input", () => {
      const text = search.value.trim().toLowerCase();
      let shown = 0;
      for (const row of body.rows) {
        row.hidden = !row.cells[0].textContent.toLowerCase().includes(text);
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = text ? `${shown} of ${body.rows.length}` : "";
    });
  }

  // What if the threshold were another one: counts of every cut, and costs that the reader types.
  const asked = byId("what-if");
  if (asked) {
    const curve = JSON.parse(asked.dataset.curve);
    const [rows, events] = [curve.d[0], curve.c[0]];
    const range = byId("threshold");
    const typed = byId("threshold-value");
    const costs = () => [byId("cost-fn"), byId("cost-fp")].map((field) => Math.max(Number(field.value) || 0, 0));

    // The variance of e·events + d·decided + c·caught at a cut.
    const variance = (cut, e, d, c) => {
      const [dd, cc, dc, ed, ec] = curve.v[cut];
      return e * e * curve.e + d * d * dd + c * c * cc + 2 * (d * c * dc + e * d * ed + e * c * ec);
    };
    // Wilson's interval of a share, with as many rows as its variance is worth.
    const wilson = (share, total, spread) => {
      const size = spread > 0 && share > 0 && share < 1 ? Math.min(share * (1 - share) / spread, total) : total;
      const weight = curve.z ** 2 / size;
      const centre = (share + weight / 2) / (1 + weight);
      const reach = Math.sqrt(weight * share * (1 - share) + weight ** 2 / 4) / (1 + weight);
      return [Math.max(centre - reach, 0), Math.min(centre + reach, 1)];
    };
    const normal = (value, spread) => {
      const reach = curve.z * Math.sqrt(Math.max(spread, 0));
      return [value - reach, value + reach];
    };
    const count = (value) => Math.round(value).toLocaleString("en");
    const percent = (value) => `${(100 * value).toFixed(1)}\u00a0%`;
    const small = (value) => value.toPrecision(3).replace("-", "−");
    const say = (value, ends, format) =>
      Number.isFinite(value) ? `${format(value)} (${format(ends[0])} – ${format(ends[1])})` : "–";
    const share = (part, whole, spread) =>
      whole > 0 ? say(part / whole, wilson(part / whole, whole, spread), percent) : "–";
    const cost = (cut, fn, fp) => (fn * (events - curve.c[cut]) + fp * (curve.d[cut] - curve.c[cut])) / rows;

    const answer = (cut, threshold) => {
      const [decided, caught] = [curve.d[cut], curve.c[cut]];
      const [fn, fp] = costs();
      const rate = caught / decided;
      const odds = threshold < 1 ? threshold / (1 - threshold) : Infinity;
      const benefit = (caught - odds * (decided - caught)) / rows;
      const answers = {
        at: String(Number(threshold.toPrecision(4))),
        tp: count(caught), fp: count(decided - caught),
        fn: count(events - caught), tn: count(rows - events - decided + caught),
        share: share(decided, rows, variance(cut, 0, 1, 0) / rows ** 2),
        precision: share(caught, decided, variance(cut, 0, -rate, 1) / decided ** 2),
        recall: share(caught, events, variance(cut, -caught / events, 0, 1) / events ** 2),
        cost: say(1000 * cost(cut, fn, fp),
          normal(1000 * cost(cut, fn, fp), 1e6 * variance(cut, fn, fp, -fn - fp) / rows ** 2), small),
        benefit: Number.isFinite(odds)
          ? say(benefit, normal(benefit, variance(cut, 0, -odds, 1 + odds) / rows ** 2), small) : "–",
      };
      for (const [name, text] of Object.entries(answers)) {
        asked.querySelector(`[data-answer="${name}"]`).textContent = text;
      }
      const words = `${threshold.toPrecision(3)}, ${answers.share} taken`;
      range.setAttribute("aria-valuetext", words);
    };
    const move = (cut) => {
      range.value = cut;
      typed.value = Number(curve.t[cut].toPrecision(4));
      answer(cut, curve.t[cut]);
    };
    // The cut that takes the rows at or above a threshold: that of the lowest probability not below it.
    const cutOf = (threshold) => {
      const cut = curve.p.findIndex((value) => value >= threshold);
      return cut < 0 ? curve.p.length : cut;
    };
    range.addEventListener("input", () => move(Number(range.value)));
    typed.addEventListener("input", () => {
      const threshold = Number(typed.value);
      if (typed.value === "" || !(threshold >= 0 && threshold <= 1)) return;
      const cut = cutOf(threshold);
      range.value = cut;
      answer(cut, threshold);
    });
    for (const field of [byId("cost-fn"), byId("cost-fp")]) {
      field.addEventListener("input", () => answer(Number(range.value), Number(typed.value)));
    }
    byId("least-cost").addEventListener("click", () => {
      const [fn, fp] = costs();
      const all = curve.d.map((_, cut) => cost(cut, fn, fp));
      move(all.indexOf(Math.min(...all)));
    });
    asked.hidden = false;
    move(Number(asked.dataset.first));
  }
})();
