"use strict";
(() => {
  // Words of code are coloured where the browser can colour ranges of text: nothing of the page is changed for it.
  const words = {
    go: "break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct switch type var nil true false",
    js: "async await break case catch class const continue debugger default delete do else export extends finally for from function if import in instanceof let new of return static super switch this throw try typeof var void while with yield null true false undefined interface type enum implements readonly",
    py: "and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield None True False",
    rs: "as async await break const continue crate dyn else enum extern fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait type unsafe use where while true false",
    c: "auto break case char class const continue default do double else enum extern float for goto if inline int long namespace new private protected public return short signed sizeof static struct switch template this throw try typedef union unsigned using virtual void volatile while bool true false null nullptr final import package extends implements",
    sh: "case do done elif else esac fi for function if in select then until while export local return set unset",
    rb: "begin break case class def do else elsif end ensure false for if in module next nil not or redo rescue retry return self super then true undef unless until when while yield require"
  };
  const of = {go:"go", js:"js", mjs:"js", cjs:"js", jsx:"js", ts:"js", tsx:"js", mts:"js", py:"py", rs:"rs", c:"c", h:"c", cc:"c", cpp:"c", hpp:"c", java:"c", kt:"c", cs:"c", swift:"c", sh:"sh", bash:"sh", rb:"rb", json:"js", yml:"sh", yaml:"sh", toml:"sh"};
  const hash = new Set(["py", "sh", "rb"]);
  function colour(cell, lang, into) {
    const node = cell.firstChild;
    if (!node || node.nodeType !== Node.TEXT_NODE || node.data.length > 1000) return;
    const comment = hash.has(lang) ? "#.*" : "\\/\\/.*|\\/\\*.*?(?:\\*\\/|$)";
    const re = new RegExp("(" + comment + ")|(\"(?:[^\"\\\\]|\\\\.)*\"|'(?:[^'\\\\]|\\\\.)*'|`[^`]*`)|\\b(\\d[\\w.]*)\\b|\\b([A-Za-z_]+)\\b", "g");
    const known = into.words[lang];
    for (let m; (m = re.exec(node.data)) && m[0] !== "";) {
      const kind = m[1] !== undefined ? "c" : m[2] !== undefined ? "s" : m[3] !== undefined ? "n" : known.has(m[4]) ? "k" : "";
      if (!kind) continue;
      const r = new Range();
      r.setStart(node, m.index);
      r.setEnd(node, m.index + m[0].length);
      into[kind].push(r);
    }
  }
  if (window.Highlight && CSS.highlights) {
    const into = {c: [], s: [], n: [], k: [], words: {}};
    for (const l in words) into.words[l] = new Set(words[l].split(" "));
    for (const t of document.querySelectorAll("table.diff")) {
      const lang = of[t.dataset.ext];
      if (lang) for (const c of t.querySelectorAll("tr:not(.h):not(.e) td:last-child")) colour(c, lang, into);
    }
    for (const k of ["c", "s", "n", "k"]) CSS.highlights.set("pando-" + k, new Highlight(...into[k].slice(0, 60000)));
  }
  const files = () => document.querySelectorAll("details.file");
  const all = document.getElementById("all");
  if (all) {
    all.hidden = false;
    all.addEventListener("click", () => {
      const open = [...files()].some(d => !d.open);
      for (const d of files()) d.open = open;
      all.textContent = open ? "Close all" : "Open all";
    });
  }
  // On paper is what is open, and what has no lines of a diff: a long file that is closed is not worth ten pages.
  addEventListener("beforeprint", () => { for (const d of files()) if (!d.querySelector(".diff")) d.open = true; });
})();
