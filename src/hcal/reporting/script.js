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

  // Classes: find, order, show all.
  const box = byId("stamps");
  const cards = [...box.children];
  const limit = Number(box.dataset.shown);
  const find = byId("find"), order = byId("order"), all = byId("all"), found = byId("found");
  const keys = {
    worst: (c) => Number(c.dataset.place),
    number: (c) => Number(c.dataset.k),
    rows: (c) => -Number(c.dataset.rows),
  };
  const update = () => {
    const text = find.value.trim().toLowerCase();
    const open = all.getAttribute("aria-expanded") === "true";
    const key = keys[order.value];
    cards.sort((a, b) => key(a) - key(b) || Number(a.dataset.k) - Number(b.dataset.k));
    let shown = 0, matching = 0;
    for (const card of cards) {
      const match = !text || card.dataset.k === text || card.dataset.name.includes(text);
      if (match) matching += 1;
      card.hidden = !match || (!open && shown >= limit);
      if (!card.hidden) shown += 1;
    }
    box.append(...cards);
    found.textContent = `${shown} of ${matching} shown`;
    all.textContent = open ? "Show fewer" : `Show all ${cards.length.toLocaleString("en")}`;
  };
  find.addEventListener("input", update);
  order.addEventListener("change", update);
  all.addEventListener("click", () => {
    all.setAttribute("aria-expanded", String(all.getAttribute("aria-expanded") !== "true"));
    update();
  });
})();
