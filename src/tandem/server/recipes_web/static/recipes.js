// Everything here is an extra: the pages are whole without it.
(() => {
  "use strict";

  // Copy buttons on commands.
  for (const box of document.querySelectorAll(".code")) {
    if (!navigator.clipboard) break;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(box.querySelector("code").textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    box.append(button);
  }

  // The cards that were asked about last are filled in again.
  for (const field of document.querySelectorAll("[data-remember]")) {
    const key = "tandem." + field.dataset.remember;
    try {
      if (field.value) localStorage.setItem(key, field.value);
      else field.value = localStorage.getItem(key) || "";
    } catch { /* storage is off */ }
  }

  // At most two recipes can be compared.
  const picks = [...document.querySelectorAll('input[name="id"][type="checkbox"]')];
  const compare = document.querySelector("button.compare");
  const update = () => {
    const chosen = picks.filter((pick) => pick.checked);
    for (const pick of picks) pick.disabled = chosen.length >= 2 && !pick.checked;
    if (compare) compare.disabled = chosen.length !== 2;
  };
  for (const pick of picks) pick.addEventListener("change", update);
  if (picks.length) update();

  // Facets stay open or closed as they were left, while drilling.
  const store = "tandem.facets";
  let state = {};
  try { state = JSON.parse(sessionStorage.getItem(store)) || {}; } catch { /* storage is off */ }
  for (const facet of document.querySelectorAll("details.facet")) {
    const key = facet.dataset.facet;
    if (key in state && !facet.querySelector("[aria-current]")) facet.open = state[key];
    facet.addEventListener("toggle", () => {
      state[key] = facet.open;
      try { sessionStorage.setItem(store, JSON.stringify(state)); } catch { /* storage is off */ }
    });
  }

  // Searching within a facet lists its values while typing; without script the form does the same.
  for (const form of document.querySelectorAll("form.find")) {
    const field = form.querySelector('input[name^="find."]');
    const list = form.parentElement.querySelector("ul");
    const key = field.name.slice("find.".length);
    const root = form.getAttribute("action");
    const before = [...list.children];
    let timer = 0;
    let latest = 0;
    const show = async () => {
      const turn = ++latest;
      if (!field.value.trim()) return list.replaceChildren(...before);
      const query = new URLSearchParams(new FormData(form));
      const answer = await fetch(`${root}/-/facets/${encodeURIComponent(key)}.json?${query}`);
      if (!answer.ok || turn !== latest) return;
      list.setAttribute("aria-live", "polite");
      const items = (await answer.json()).values.map((value) => {
        const item = document.createElement("li");
        const link = document.createElement("a");
        link.href = value.toggle_url.replace(".json", "");
        link.rel = "nofollow";
        if (value.selected) link.setAttribute("aria-current", "true");
        for (const [name, text] of [["label", value.label], ["count", value.count.toLocaleString("en")]]) {
          const part = document.createElement("span");
          part.className = name;
          part.textContent = text;
          link.append(part);
        }
        item.append(link);
        return item;
      });
      list.replaceChildren(...items);
    };
    field.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(show, 200);
    });
  }

  // Drilling keeps the place in the list of filters.
  const place = "tandem.place";
  try {
    const kept = Number(sessionStorage.getItem(place));
    sessionStorage.removeItem(place);
    if (kept && !location.hash) window.scrollTo(0, kept);
    for (const link of document.querySelectorAll("#filters li a")) {
      link.addEventListener("click", () => sessionStorage.setItem(place, String(window.scrollY)));
    }
  } catch { /* storage is off */ }

  // "/" goes to the search, as readers of long lists expect.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) return;
    event.preventDefault();
    document.getElementById("q").focus();
  });
})();
