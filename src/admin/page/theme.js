// The theme: the system's, or the one that was chosen, which is remembered. Runs before the first paint.
"use strict";
(() => {
  const KEY = "kvpin-theme";
  const CHOICES = ["system", "light", "dark"];

  // A browser that keeps nothing for pages still switches.
  const remembered = () => { try { return localStorage.getItem(KEY); } catch { return null; } };
  const remember = (choice) => { try { localStorage.setItem(KEY, choice); } catch { /* for this visit only */ } };

  let chosen = CHOICES.includes(remembered()) ? remembered() : "system";
  const apply = () => { document.documentElement.dataset.theme = chosen; };
  apply();

  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => {
      const next = CHOICES[(CHOICES.indexOf(chosen) + 1) % CHOICES.length];
      button.textContent = `Theme: ${chosen}`;
      button.setAttribute("aria-label", `Theme: ${chosen}. Switch to ${next}.`);
    };
    label();
    button.addEventListener("click", () => {
      chosen = CHOICES[(CHOICES.indexOf(chosen) + 1) % CHOICES.length];
      remember(chosen);
      apply();
      label();
    });
  });
})();
