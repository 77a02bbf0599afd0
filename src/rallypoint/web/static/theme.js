// Sets the theme before the first paint. Not a module, since modules run later.
(function () {
  "use strict";
  const root = document.documentElement;
  let kept = "auto";
  try { kept = localStorage.getItem("theme") || "auto"; } catch (error) { kept = "auto"; }
  root.dataset.theme = kept;
  if (location.search === "?wrong") {
    addEventListener("DOMContentLoaded", () => {
      const wrong = document.getElementById("wrong");
      if (wrong) wrong.hidden = false;
    });
  }
})();
