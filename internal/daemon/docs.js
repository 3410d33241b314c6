(() => {
  const search = document.getElementById("search"), none = document.getElementById("none");
  const all = [...document.querySelectorAll("main details")].map(e => ({ e, text: e.textContent.toLowerCase() }));
  const find = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(w => w);
    let found = 0;
    for (const { e, text } of all) {
      e.hidden = !words.every(w => text.includes(w));
      if (!e.hidden) found++;
    }
    for (const s of document.querySelectorAll("main section")) {
      const d = [...s.querySelectorAll("details")];
      s.hidden = words.length > 0 && !d.some(e => !e.hidden);
    }
    none.hidden = found > 0;
  };
  const show = () => {
    const e = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!e) return;
    if (e.hidden) { search.value = ""; find(); }
    if (e.tagName === "DETAILS") e.open = true;
    e.scrollIntoView();
  };
  search.addEventListener("input", find);
  addEventListener("hashchange", show);
  addEventListener("keydown", k => {
    if (k.key === "/" && document.activeElement !== search) { k.preventDefault(); search.focus(); }
    if (k.key === "Escape" && document.activeElement === search) { search.value = ""; find(); }
  });
  for (const { e } of all) e.addEventListener("toggle", () => { if (e.open) history.replaceState(null, "", "#" + e.id); });
  find();
  show();
})();
