"use strict";
/* One text, or one text and its other versions, as they were recorded. */

shadeRules();
setUpTheme(document.getElementById("theme"));
const report = JSON.parse(document.getElementById("data").textContent);
const views = report.versions.map((version) => new MemoryView(unpack(version), { heading: version.heading }));
const panes = document.getElementById("panes");
panes.classList.toggle("two", views.length > 1);
panes.append(...views.map((view) => view.element));
views.forEach((view, n) => {
  view.peers = views.filter((other) => other !== view);
  if (n > 0) view.compare(views[0], report.versions[n].passages);
});
