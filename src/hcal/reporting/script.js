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
})();
